"""A server of the target that Eyas itself starts and stops: loopback only, its process group killed in every case."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.core.errors import EyasError

from . import guard

START_LIMIT_S = 600.0
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Running:
    """url: of a server that answers. seconds: how long it took to start. command: as it was started. guard_pid: the
    process that all of the server's descend from."""

    url: str
    seconds: float
    command: list[str]
    log: Path
    guard_pid: int

    def cpu_seconds(self) -> float:
        """CPU time that the server's processes have spent so far; on a CPU alone it is the time of its work, which
        other work on the machine does not move."""
        ticks = {}
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
                    ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
        family = {self.guard_pid}
        while grown := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= grown
        return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as opened:
        opened.bind((HOST, 0))
        return int(opened.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    environment: dict[str, str],
    log: Path,
    limit_s: float = START_LIMIT_S,
) -> Iterator[Running]:
    """Start `command`, wait until GET /health answers, and end its process group when the block is left.

    EyasError with the log's last lines if it ends by itself or is not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait_ready(process, port, begun + limit_s, log)
        seconds = time.monotonic() - begun
        yield Running(f"http://{HOST}:{port}", seconds, list(command), log, process.pid)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the guard ends the server's group, then itself
        try:
            process.wait(guard.PATIENCE_S + 5)
        except subprocess.TimeoutExpired:
            guard.end_group(process)


def _wait_ready(process: subprocess.Popen[bytes], port: int, deadline: float, log: Path) -> None:
    while not _is_healthy(port):
        if process.poll() is not None:
            raise _unstarted("the engine ended while it started", log)
        if time.monotonic() > deadline:
            raise _unstarted("the engine is not ready in time", log)
        time.sleep(0.25)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _unstarted(what: str, log: Path) -> EyasError:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and "Traceback" not in line]
    return EyasError(
        what,
        file=log,
        found=(errors or lines or ["nothing in its log"])[-1].strip()[:400],
        mend="read its log; `eyas export --check` tells what an engine refuses of a drafter",
    )
