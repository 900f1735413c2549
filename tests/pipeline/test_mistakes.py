"""What users get wrong: one clear sentence, exit code 2, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import tinytarget as tiny

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr, f"the message does not say {part!r}: {done.stderr}"


@pytest.fixture
def folder(tmp_path: Path, tiny_target: Path) -> Path:
    tiny.write_recipe(tmp_path, tiny_target)
    return tmp_path


def edit(folder: Path, **changes: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changes}))
    return path


def test_help_is_answered_without_heavy_imports() -> None:
    script = (
        "import sys\nsys.argv = ['eyas', '--help']\nfrom eyas.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'pydantic') if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]", "eyas --help waits for heavy libraries"


def test_a_missing_recipe(eyas: Run, tmp_path: Path) -> None:
    refused(eyas("run", tmp_path / "none.yaml"), "the recipe does not exist", "none.yaml")


def test_a_missing_data_file(eyas: Run, folder: Path) -> None:
    (folder / "one.jsonl").unlink()
    refused(eyas("run", folder / "recipe.yaml", "--workspace", folder / "w"), "does not exist", "one.jsonl")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"trainng": {}}, ("unknown key `trainng`", "did you mean `training`?")),
        ({"training": {"epoch": 3}}, ("unknown key `training.epoch`", "did you mean `epochs`?")),
        ({"training": {"epochs": "three"}}, ("`training.epochs` is wrong",)),
        ({"training": {"epochs": 0}}, ("`epochs` is out of range",)),
        ({"merge": {"heldout": ["held"]}}, ("role: heldout",)),
        ({"target": None}, ("`target` is wrong",)),
        ({"datasets": []}, ("no dataset is for training",)),
    ],
)
def test_a_recipe_with_a_mistake_names_the_place_and_the_mend(
    eyas: Run, folder: Path, change: dict[str, object], parts: tuple[str, ...]
) -> None:
    refused(eyas("run", edit(folder, **change), "--workspace", folder / "w"), *parts)


def test_a_recipe_that_is_no_yaml(eyas: Run, folder: Path) -> None:
    (folder / "recipe.yaml").write_text("a: [1, 2")
    refused(eyas("run", folder / "recipe.yaml"), "not valid YAML")


def test_a_target_that_is_not_there(eyas: Run, folder: Path) -> None:
    refused(eyas("run", edit(folder, target="nowhere"), "--workspace", folder / "w"), "no checkpoint folder")


def test_a_target_without_chat_template(eyas: Run, folder: Path) -> None:
    tiny.write_target(folder / "bare", layers=2, template=None)
    refused(eyas("run", edit(folder, target="bare"), "--workspace", folder / "w"), "no chat template")


def test_an_empty_dataset(eyas: Run, folder: Path) -> None:
    (folder / "two.jsonl").write_bytes(b"")
    refused(eyas("run", folder / "recipe.yaml", "--workspace", folder / "w"), "dataset two is empty")


def test_a_dataset_whose_rows_are_all_dropped(eyas: Run, folder: Path) -> None:
    done = eyas("run", edit(folder, generation={"max_prompt_tokens": 2}), "--workspace", folder / "w")
    refused(done, "all rows of dataset one were dropped", "prompt over 2 tokens")


def test_a_workspace_of_a_newer_format(eyas: Run, recipe: Path, finished: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(finished, tmp_path / "w")
    (manifest,) = (tmp_path / "w" / "generate").rglob("manifest.json")
    manifest.write_bytes(orjson.dumps({**orjson.loads(manifest.read_bytes()), "format": 99}))
    refused(eyas("run", recipe, "--workspace", tmp_path / "w"), "newer version of Eyas", "format 99")


def test_an_unknown_stage(eyas: Run, recipe: Path, tmp_path: Path) -> None:
    refused(eyas("run", recipe, "--until", "trian", "--workspace", tmp_path), "no stage 'trian'")


def test_an_error_under_json_is_one_object(eyas: Run, tmp_path: Path) -> None:
    done = eyas("run", tmp_path / "none.yaml", "--json")
    assert done.returncode == 2
    assert set(json.loads(done.stdout)["error"]) == {"what", "file", "record", "expected", "found", "mend"}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a small file system to fill")
def test_a_full_disk_ends_with_one_sentence_and_the_run_goes_on_later(
    eyas: Run, recipe: Path, tmp_path: Path
) -> None:
    """A file system of 64 KiB where the user may mount one, else a limit on the size of files."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        done = eyas("run", recipe, "--workspace", small / "w")
        refused(done, "disk")
        assert not list(small.rglob("*.tmp-eyas")), "half a file was left on the full disk"
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        assert eyas("run", recipe, "--workspace", small / "w", "--until", "vocab").returncode == 0
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
