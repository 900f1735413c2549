"""Servers that Eyas starts: ready or explained, and gone with all their processes however the work ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.core.errors import EyasError
from eyas.engines.serving import free_port, running
from eyas.engines.vllm import VllmServer, vllm_python

HEALTHY = """
import http.server, os, subprocess, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[2], "w").write(f"{os.getpid()} {child.pid}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""
"""A server with a child, as an engine with its workers."""


def command(port: int, pids: Path) -> list[str]:
    return [sys.executable, "-c", HEALTHY, str(port), str(pids)]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + 20
    while alive(pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pids)


def test_a_server_is_ready_inside_the_block_and_gone_after_it(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    with running(command(port, pids), port, dict(os.environ), tmp_path / "log") as ready:
        assert ready.url == f"http://127.0.0.1:{port}"
        started = [int(pid) for pid in pids.read_text().split()]
        assert alive(started) == started
        assert 0 < ready.cpu_seconds() < 10, "a server has spent some CPU time to start"
    assert gone(started), "a server or its child was left running"


def test_a_server_is_gone_after_an_exception(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    with (
        pytest.raises(ZeroDivisionError),
        running(command(port, pids), port, dict(os.environ), tmp_path / "log"),
    ):
        raise ZeroDivisionError
    assert gone([int(pid) for pid in pids.read_text().split()])


def test_a_server_is_gone_when_eyas_is_killed(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from eyas.engines.serving import running\n"
        f"with running({command(port, pids)!r}, {port}, dict(os.environ), Path({str(tmp_path / 'log')!r})):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    eyas = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert eyas.stdout is not None
    assert eyas.stdout.readline() == b"up\n"
    os.kill(eyas.pid, signal.SIGKILL)
    eyas.wait()
    eyas.stdout.close()
    assert gone([int(pid) for pid in pids.read_text().split()]), "a kill of Eyas left its server running"


def test_a_server_that_ends_by_itself_is_explained_by_its_log(tmp_path: Path) -> None:
    dying = [sys.executable, "-c", "print('ValueError: no module model.fc'); raise SystemExit(3)"]
    with (
        pytest.raises(EyasError, match="ended while it started") as caught,
        running(dying, free_port(), dict(os.environ), tmp_path / "log"),
    ):
        pass
    assert caught.value.found == "ValueError: no module model.fc"


def test_a_server_that_is_not_ready_in_time_is_given_up(tmp_path: Path) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        pytest.raises(EyasError, match="not ready in time"),
        running(sleeping, free_port(), dict(os.environ), tmp_path / "log", limit_s=1.0),
    ):
        pass


def server(**more: object) -> VllmServer:
    given = {"target": Path("T"), "drafter": Path("D"), "draft_tokens": 3, "dtype": "float32"}
    return VllmServer(**{**given, "max_length": 512, "max_streams": 4, **more})


def test_vllm_is_told_three_drafts_as_three_and_the_right_method() -> None:
    """C046 and C043."""
    given = server().arguments(8000)
    config = given[given.index("--speculative-config") + 1]
    assert config == '{"method":"eagle3","model":"D","num_speculative_tokens":3}'
    assert given[given.index("--host") + 1] == "127.0.0.1"
    assert "--no-enable-prefix-caching" in given


def test_a_plain_server_has_no_drafter() -> None:
    assert "--speculative-config" not in server(drafter=None, draft_tokens=0).arguments(8000)


def test_another_method_is_refused() -> None:
    """C043: a draft of kind eagle3 under method eagle."""
    with pytest.raises(EyasError, match="cannot be served under method 'eagle'"):
        server(method="eagle")


def test_an_environment_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(tmp_path / "python"))
    with pytest.raises(EyasError, match="environment is not there"):
        vllm_python()
