from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tinytarget as tiny

    return tiny.write_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Tests neither read nor fill the user's cache, but for those on the real target."""
    if "real" not in request.keywords:
        monkeypatch.setenv("EYAS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
