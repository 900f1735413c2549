"""Two gloo processes on CPUs do what one process does, with DDP and with FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eyas.drafter.distributed import World
from ranks import RESUMED, WAYS, train, train_all

RANKS = Path(__file__).parent / "ranks.py"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders 1 and 2 with the results of one process and of two."""
    folder = tmp_path_factory.mktemp("ranks")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_all(folder, World())
    torch.set_num_threads(threads)
    processes = [
        subprocess.Popen(
            [sys.executable, RANKS, folder, str(rank), "2"],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return folder


def results(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return torch.load(folder / "result.pt", weights_only=True)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").open()]


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("float64")])
def test_twenty_steps_of_two_processes_give_the_weights_of_one(jobs: Path, way: str) -> None:
    one, two = (results(jobs / size / way)["weights"] for size in "12")
    for name in one:
        torch.testing.assert_close(
            two[name], one[name], rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: ranks do not sum: {m}"
        )
    rows = [[(line["rows"], line["terms"], line["accuracy"]) for line in lines(jobs / s / way)] for s in "12"]
    assert rows[0] == rows[1], "the log of two processes must speak of the whole step"


@pytest.mark.parametrize("way", ["float32", "float32 sharded"])
def test_in_float32_losses_and_first_gradients_are_close(jobs: Path, way: str) -> None:
    for one, two in zip(lines(jobs / "1" / way), lines(jobs / "2" / way), strict=True):
        assert one["loss"] is two["loss"] is None or two["loss"] == pytest.approx(one["loss"], abs=1e-4)
    one, two = (results(jobs / size / way)["gradients"] for size in "12")
    assert one.keys() == two.keys()
    for name in one:
        error = (two[name] - one[name]).norm() / one[name].norm()
        assert error < 1e-5, f"{name}: the first gradient of two processes is not that of one"


def test_muon_on_shards_is_muon_on_whole_matrices(jobs: Path) -> None:
    """The iteration is in bfloat16, so the last bits of the momentum may move a step by some 1e-2 of it."""
    whole, sharded = (results(jobs / "2" / way)["weights"] for way in ("muon", "muon sharded"))
    first, second = (lines(jobs / "2" / way) for way in ("muon", "muon sharded"))
    assert first[0]["loss"] == pytest.approx(second[0]["loss"], abs=1e-6)
    for name in whole:
        assert (whole[name] - sharded[name]).norm() < 0.02 * whole[name].norm(), name


@pytest.mark.parametrize("way", RESUMED)
def test_another_number_of_processes_goes_on_from_the_same_row(jobs: Path, way: str, tmp_path: Path) -> None:
    import shutil

    expected = results(jobs / "1" / way)["weights"]
    shutil.copytree(jobs / "2" / f"half of {way}", tmp_path / "half")
    train(tmp_path / "half", World(), way)
    for folder in (tmp_path / "half", jobs / "2" / f"on from one of {way}"):
        assert [line["rows"] for line in lines(folder)] == [line["rows"] for line in lines(jobs / "1" / way)]
        for name, weight in results(folder)["weights"].items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-9)


def test_each_rank_of_a_sharded_run_writes_its_own_part_of_the_optimiser(jobs: Path) -> None:
    folders = {way: next((jobs / "2" / f"half of {way}").glob("step-*")) for way in RESUMED}
    names = {way: sorted(p.name for p in folder.glob("optimizer-*")) for way, folder in folders.items()}
    assert names["float64"] == ["optimizer-00000-of-00001.safetensors"]
    assert names["float64 sharded"] == [f"optimizer-0000{rank}-of-00002.safetensors" for rank in range(2)]
    sizes = [(folders["float64 sharded"] / name).stat().st_size for name in names["float64 sharded"]]
    assert max(sizes) < 0.7 * (folders["float64"] / names["float64"][0]).stat().st_size
