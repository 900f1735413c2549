"""`eyas bench`: the reference decoder and stand-in servers through the command, and what the figures mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench_cli import command
from eyas.core.contract import target_source
from eyas.core.errors import EyasError
from stub_server import Stub, serving

CASES = Path(__file__).resolve().parents[2] / ".." / "shared" / "cases" / "inputs"

CELL = [
    "set",
    "engine",
    "draft_tokens",
    "concurrency",
    "temperature",
    "requests",
    "tokens",
    "rounds",
    "accept_length",
    "accept_length_mean",
    "acceptance_by_position",
    "tok_s",
    "baseline_tok_s",
    "speedup",
    "round_cost",
    "identical_outputs",
    "engine_reported",
]


@pytest.fixture
def question_set(tmp_path: Path) -> Path:
    file = tmp_path / "mt.jsonl"
    records = [{"question_id": i, "category": "x", "turns": [f"w{20 + i} w21", "w30 w31"]} for i in range(3)]
    file.write_bytes(b"\n".join(orjson.dumps(record) for record in records))
    return file


def test_the_reference_decoder_fills_every_field_of_a_cell(
    chat_target: Path, drafter_folder: Path, row_set: Path
) -> None:
    found = command(
        *("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set),
        *("--draft-tokens", "1,3", "--max-tokens", 24),
    )
    assert [list(cell) for cell in found["cells"]] == [CELL, CELL]
    for cell in found["cells"]:
        assert cell["set"] == "held-out"
        assert cell["identical_outputs"] is True
        assert cell["accept_length"] == pytest.approx((cell["tokens"] - cell["requests"]) / cell["rounds"])
        assert cell["speedup"] == pytest.approx(cell["tok_s"] / cell["baseline_tok_s"])
        assert cell["round_cost"] == pytest.approx(cell["accept_length"] / cell["speedup"])
        assert len(cell["acceptance_by_position"]) == cell["draft_tokens"]
        assert cell["accept_length"] > 1.2
    assert found["clock"] == "cpu"
    assert set(found["serve_with"]) == {"1"}
    assert found["versions"]["torch"]
    assert found["hardware"]["cores"] >= 1


def test_the_second_turn_is_asked_with_the_first_ones_answer(
    chat_target: Path, drafter_folder: Path, question_set: Path
) -> None:
    found = command(
        *("--target", chat_target, "--drafter", drafter_folder, "--prompts", question_set),
        *("--max-tokens", 6, "--limit", 2),
    )
    assert found["cells"][0]["requests"] == 4, "two questions of two turns"
    assert found["details"][0]["longest"] >= 6 + 10


def test_several_sets_may_follow_one_flag(
    chat_target: Path, drafter_folder: Path, question_set: Path, row_set: Path
) -> None:
    found = command(
        *("--target", chat_target, "--drafter", drafter_folder, "--prompts", question_set, row_set),
        *("--max-tokens", 4, "--limit", 1),
    )
    assert [cell["set"] for cell in found["cells"]] == ["mt", "held-out"]


def test_a_tree_and_a_temperature_are_decoded_with(
    chat_target: Path, drafter_folder: Path, row_set: Path
) -> None:
    given = ("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, "--limit", 2)
    tree = command(*given, "--max-tokens", 12, "--tree", 2)["cells"][0]
    assert tree["identical_outputs"] is True
    warm = command(*given, "--max-tokens", 12, "--temperature", 0.8)["cells"][0]
    assert warm["temperature"] == 0.8
    assert warm["identical_outputs"] is None, "sampled answers differ by chance"


def test_break_even_needs_no_drafter_and_says_what_a_better_one_gives(
    chat_target: Path, row_set: Path
) -> None:
    found = command(
        *("--target", chat_target, "--prompts", row_set, "--break-even", "--draft-vocab", 40),
        *("--draft-tokens", "1,3", "--max-tokens", 10, "--limit", 3),
    )
    assert [row["draft_tokens"] for row in found["break_even"]] == [1, 3]
    for row in found["break_even"]:
        for tau, speedup in row["speedup_at"].items():
            unreachable = float(tau) > row["draft_tokens"] + 1
            assert (
                speedup is None if unreachable else speedup == pytest.approx(float(tau) / row["break_even"])
            )
    assert found["hints"] == [], "a random drafter is meant to be poor"
    assert found["serve_with"] == {}, "nor is it any advice"
    assert "with 3 drafts" in found["verdict"]
    assert found["planned_drafter"]["draft_vocab_size"] == 40
    assert found["target"]["fingerprint"] == target_source(chat_target).fingerprint


def test_requests_beyond_the_trained_length_are_warned_of(
    chat_target: Path, drafter_folder: Path, row_set: Path
) -> None:
    """C045: trained to so many tokens, served beyond."""
    record = orjson.loads((drafter_folder / "vllm" / "eyas.json").read_bytes())
    (drafter_folder / "vllm" / "eyas.json").write_bytes(orjson.dumps({**record, "trained_length": 20}))
    given = ("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, "--limit", 2)
    found = command(*given, "--max-tokens", 24)
    assert any("the longest trained row has 20" in note for note in found["notes"])
    assert found["details"][0]["accept_length_by_context"]


def stub_bench(target: Path, prompts: Path, url: str, *more: object, drafts: int = 3) -> dict[str, Any]:
    return command(
        *("--target", target, "--prompts", prompts, "--engine", url, "--draft-tokens", drafts),
        *("--max-tokens", 16, "--limit", 4, *more),
    )


def test_vllms_accept_length_comes_from_tokens_and_the_counter(chat_target: Path, row_set: Path) -> None:
    with serving(Stub("vllm", (3, 1, 2), 3, overshoot=1)) as url:
        found = stub_bench(chat_target, row_set, url)
    cell = found["cells"][0]
    assert (cell["engine"], cell["requests"], cell["tokens"], cell["rounds"]) == ("vllm", 4, 28, 12)
    assert cell["accept_length"] == 2.0, "(28 tokens - 4 first ones) / 12 drafts"
    assert cell["engine_reported"] == pytest.approx(1 + 4 / 3), "the engine counts past the end"
    assert cell["accept_length_mean"] == 2.0
    assert found["details"][0]["foreign_requests"] is False


def test_without_a_baseline_the_speedup_is_not_measured(chat_target: Path, row_set: Path) -> None:
    with serving(Stub("vllm", (3, 1, 2), 3)) as url:
        found = stub_bench(chat_target, row_set, url)
    cell = found["cells"][0]
    assert (cell["speedup"], cell["baseline_tok_s"], cell["round_cost"]) == (None, None, None)
    assert cell["identical_outputs"] is None
    assert found["speedup"] == "not measured"
    assert "not measured" in found["verdict"]


def test_a_baseline_server_gives_speedup_and_round_cost(chat_target: Path, row_set: Path) -> None:
    plain, drafted = Stub("vllm", (), 3, length=7, step_s=0.02), Stub("vllm", (3, 1, 2), 3, step_s=0.03)
    with serving(plain) as plain_url, serving(drafted) as url:
        found = stub_bench(chat_target, row_set, url, "--baseline-url", plain_url, "--concurrency", "1,4")
    one, four = found["cells"]
    assert one["speedup"] == pytest.approx(6 * 0.02 / (3 * 0.03), rel=0.25)
    assert one["round_cost"] == pytest.approx(1.5, rel=0.25), "a round takes 0.03 s, a plain step 0.02 s"
    assert one["identical_outputs"] is True
    assert four["tok_s"] > 2 * one["tok_s"], "four streams at once"
    assert len(plain.bodies) > len(drafted.bodies), "plain blocks stand around the drafted one"


def test_sglangs_rounds_come_with_each_request(chat_target: Path, row_set: Path) -> None:
    with serving(Stub("sglang", (4, 1), 3)) as url:
        cell = stub_bench(chat_target, row_set, url)["cells"][0]
    assert (cell["engine"], cell["rounds"], cell["accept_length"]) == ("sglang", 8, 2.5)
    assert cell["engine_reported"] is None


def test_a_server_with_other_users_is_reported(chat_target: Path, row_set: Path) -> None:
    with serving(Stub("vllm", (3, 1, 2), 3, drift=5)) as url:
        found = stub_bench(chat_target, row_set, url)
    assert found["details"][0]["foreign_requests"] is True
    assert any("without our requests" in note for note in found["notes"])


def test_another_number_of_drafts_than_asked_is_refused(chat_target: Path, row_set: Path) -> None:
    with (
        serving(Stub("vllm", (3, 1, 2), 3)) as url,
        pytest.raises(EyasError, match="another number") as caught,
    ):
        stub_bench(chat_target, row_set, url, drafts=4)
    assert caught.value.expected == "--draft-tokens 3"


def test_a_server_that_drafts_nothing_is_refused(chat_target: Path, row_set: Path) -> None:
    with serving(Stub("vllm", (), 3, length=7)) as url, pytest.raises(EyasError, match="drafts nothing"):
        stub_bench(chat_target, row_set, url)


def test_a_poor_accept_length_ends_with_hints_likeliest_first(
    chat_target: Path, drafter_folder: Path, row_set: Path
) -> None:
    """C043: served under the older method the accept length is exactly 1.00 and nothing else is wrong."""
    with serving(Stub("vllm", (1,) * 6, 3)) as url:
        found = stub_bench(chat_target, row_set, url, "--drafter", drafter_folder)
    assert found["cells"][0]["accept_length"] == 1.0
    causes = [hint["cause"] for hint in found["hints"]]
    assert causes[:4] == ["method name", "tensor names", "layer ids", "norm flags"]
    assert found["hints"][0]["found"] is True
    assert found["hints"][1]["found"] is False
    assert len(causes) == 7


def test_the_reference_decoder_tries_which_cause_it_is(
    tmp_path: Path, chat_target: Path, drafter_folder: Path, row_set: Path
) -> None:
    """Layer ids one off, and nothing in the folder says so: the trial with the ids shifted back accepts more."""
    folder = drafter_folder / "vllm"
    record = orjson.loads((folder / "eyas.json").read_bytes())
    (folder / "eyas.json").write_bytes(
        orjson.dumps({**record, "boundaries": [0, 1, 2], "accept_length": 3.0})
    )
    fields = orjson.loads((folder / "config.json").read_bytes())
    fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    (folder / "config.json").write_bytes(orjson.dumps(fields))
    given = ("--target", chat_target, "--drafter", folder, "--prompts", row_set, "--max-tokens", 24)
    found = command(*given)
    cell = found["cells"][0]
    assert cell["accept_length"] < 1.5, "below half of what training predicted"
    hint = next(hint for hint in found["hints"] if hint["cause"] == "layer ids")
    assert hint["found"] is True
    assert "shifted by +1" in hint["detail"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--target", "x"],
        ["--target", "x", "--prompts", "y"],
        ["--target", "x", "--drafter", "d", "--prompts", "y", "--draft-vocab", "8"],
        ["--target", "x", "--drafter", "d", "--prompts", "y", "--recipe", "r"],
        ["--break-even", "--prompts", "y", "--recipe", "r", "--draft-vocab", "8"],
    ],
)
def test_what_is_missing_is_asked_for(arguments: list[str]) -> None:
    with pytest.raises(EyasError):
        command(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "1,8"],
        ["--draft-tokens", "0"],
        ["--draft-tokens", "a"],
        ["--max-tokens", "1"],
        ["--baseline-url", "http://localhost:1"],
        ["--temperature", "-1"],
        ["--engine", "http://localhost:1", "--draft-tokens", "1,2"],
        ["--engine", "http://localhost:1", "--break-even"],
        ["--engine", "http://localhost:1"],
        ["--engine", "vllm", "--tree", "2"],
        ["--engine", "vllm", "--threads", "2"],
        ["--engine", "http://localhost:1", "--dtype", "float32"],
        ["--tree", "0"],
        ["--dtype", "float31"],
    ],
)
def test_settings_that_cannot_be_are_refused(
    chat_target: Path, drafter_folder: Path, row_set: Path, arguments: list[str]
) -> None:
    with pytest.raises(EyasError):
        command("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, *arguments)


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
def test_a_log_gives_the_pooled_accept_length_and_the_mean_beside_it() -> None:
    """C046."""
    expected = orjson.loads((CASES / "C046.expected.json").read_bytes())
    found = command("--from-log", CASES / "C046.requests.json")
    assert found["accept_length"] == pytest.approx(expected["pooled"], abs=5e-5)
    assert found["accept_length_mean"] == pytest.approx(expected["mean_of_per_request"])


def test_the_module_is_light_to_import() -> None:
    code = (
        "import sys, eyas.bench.command\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'pydantic', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "`eyas --help` would wait for it"
