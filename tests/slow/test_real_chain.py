"""The whole chain on the real demo target, with few prompts. Needs `eyas target demo`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eyas.engines.demo import demo_folder

pytestmark = [pytest.mark.slow, pytest.mark.real]

PROMPTS = Path(__file__).parents[2] / "recipes" / "prompts"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    if not demo_folder().is_dir():
        pytest.fail("the demo target is not there: run `eyas target demo` (`make test-slow` does)")
    folder = tmp_path_factory.mktemp("real")
    recipe = {
        "name": "real",
        "target": "demo",
        "datasets": [
            {"name": "maths", "path": str(PROMPTS / "maths.jsonl"), "cap": 8},
            {"name": "code", "path": str(PROMPTS / "code.json"), "cap": 8},
            {"name": "held", "path": str(PROMPTS / "heldout-maths.jsonl"), "role": "heldout", "cap": 3},
        ],
        "generation": {"max_new_tokens": 48, "batch_rows": 10},
        "vocabulary": {"size": 2048},
        "training": {"epochs": 6},
        "bench": {"prompts": 2, "max_new_tokens": 24},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "eyas",
            "run",
            str(folder / "recipe.yaml"),
            "--workspace",
            str(folder / "w"),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_speculative_outputs_are_the_targets_own(result: dict[str, object]) -> None:
    assert result["identical_outputs"] is True


def test_decoding_gives_the_walks_accept_length(result: dict[str, object]) -> None:
    assert result["decoded_accept_length"] == result["decoded_walk"]


def test_a_little_training_already_drafts_something(result: dict[str, object]) -> None:
    assert result["accept_length"] > 1.05, "the drafter learned nothing: alignment, export or decoding is off"


def test_memory_stays_small(result: dict[str, object]) -> None:
    peaks = result["peak_rss_mb"]
    assert peaks["largest"] < 2560
    assert peaks["together"] < 5120
