from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import toy
import toy_run
from eyas.core.manifest import Source
from eyas.drafter.network import Drafter


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_target(tmp_path_factory.mktemp("toy") / "target")


@pytest.fixture(scope="session")
def drafter(target_folder: Path) -> Drafter:
    return toy.chance_drafter(target_folder, seed=3)


@pytest.fixture
def train(tmp_path: Path, drafter: Drafter) -> Source:
    """A train artefact around the drafter."""
    return toy_run.train_artefact(tmp_path / "train", drafter)
