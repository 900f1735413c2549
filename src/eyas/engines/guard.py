"""Runs a command and kills its whole process group when the parent goes away, however that goes.

`python -I guard.py COMMAND...` with a pipe for standard input: as long as the parent lives the pipe is open. At its
end the command's group gets SIGTERM and ten seconds later SIGKILL. Started by path, so that it needs no package.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

PATIENCE_S = 10.0


def end_group(process: subprocess.Popen[bytes], patience_s: float = PATIENCE_S) -> None:
    """SIGTERM to the process's group, SIGKILL to what is left of it after a while."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + patience_s
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], 0.2)
            if readable and not os.read(sys.stdin.fileno(), 1):
                break
    finally:
        end_group(process)
    return process.returncode


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(main(sys.argv[1:]))
