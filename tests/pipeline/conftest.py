from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tinytarget as tiny

Run = Callable[..., "subprocess.CompletedProcess[str]"]
DRIVER = Path(__file__).parent / "driver.py"


@pytest.fixture(scope="session")
def eyas(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Call the command line in a process of its own."""
    cache = tmp_path_factory.getbasetemp() / "cache"

    def call(*arguments: object, die: tuple[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "eyas"] if die is None else [sys.executable, str(DRIVER), *die, "--"]
        environment = {**os.environ, "EYAS_CACHE": str(cache), "COLUMNS": "140", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
        )

    return call


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    return tiny.write_recipe(tmp_path_factory.mktemp("recipe"), tiny_target)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, eyas: Run, recipe: Path) -> Path:
    """The workspace of an unbroken run of the tiny recipe."""
    workspace = tmp_path_factory.mktemp("finished")
    done = eyas("run", recipe, "--workspace", workspace, "--json")
    assert done.returncode == 0, done.stderr
    (workspace / "printed.json").write_text(done.stdout)
    return workspace
