"""Checkpoints are whole or passed over, and say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.core.errors import EyasError
from eyas.drafter import checkpoint
from eyas.drafter import config as config_module
from eyas.drafter.checkpoint import (
    Position,
    fault,
    load_checkpoint,
    newest_checkpoint,
    read_position,
    remove_old,
    save_checkpoint,
)
from eyas.drafter.network import Drafter
from eyas.drafter.options import TrainOptions
from tiny import tiny_config, tiny_drafter

OPTIMIZER = "optimizer-00000-of-00001.safetensors"
CASES = Path(__file__).parents[1] / "cases" / "inputs"


def save(folder: Path, step: int, run: str | None = None) -> Drafter:
    drafter = tiny_drafter(step, torch.float32)
    save_checkpoint(
        folder / f"step-{step:06d}",
        drafter,
        {"x/step": torch.tensor(1.0)},
        Position(step, 1, 2),
        {"run": run},
    )
    return drafter


def test_c042_a_half_saved_checkpoint_is_passed_over_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = json.loads((CASES / "C042.layout.json").read_text())
    assert [c["step"] for c in layout["checkpoints"]] == [100, 200, "200.tmp"]
    save(tmp_path, 100)
    save(tmp_path, 200)
    half = tmp_path / "step-000200"
    weights = (half / "model.safetensors").read_bytes()
    for path in half.iterdir():
        path.unlink()
    (half / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    (tmp_path / "step-000200.tmp").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "step-000100"
    said = capsys.readouterr().err
    assert "step-000200" in said
    assert "never completed" in said
    assert (half / "model.safetensors").exists(), "nothing is deleted unasked"


@pytest.mark.parametrize("spoil", ["cut", "flip", "gone"])
def test_a_checkpoint_whose_files_are_not_those_written_is_passed_over(tmp_path: Path, spoil: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "step-000002" / OPTIMIZER
    data = bytearray(path.read_bytes())
    if spoil == "gone":
        path.unlink()
    else:
        data[-1] ^= 1
        path.write_bytes(bytes(data[:-3] if spoil == "cut" else data))
    assert OPTIMIZER in (fault(path.parent) or "")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-000001"


def test_weights_and_position_come_back_bit_for_bit(tmp_path: Path) -> None:
    saved = save(tmp_path, 7)
    loaded = Drafter(tiny_config())
    state = load_checkpoint(tmp_path / "step-000007", loaded)
    assert state.keys() == {"x/step"}
    assert read_position(tmp_path / "step-000007") == Position(7, 1, 2)
    for name, tensor in saved.exported_state().items():
        assert torch.equal(loaded.exported_state()[name], tensor), name


def test_old_checkpoints_go_and_the_newest_never_does(tmp_path: Path) -> None:
    for step in (1, 2, 10, 11):
        save(tmp_path, step)
    remove_old(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000010", "step-000011"]


def test_the_best_checkpoint_stays_however_old_it_is(tmp_path: Path) -> None:
    for step in (1, 2, 10, 11):
        save(tmp_path, step)
    remove_old(tmp_path, 1, protected=frozenset([2]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000011"]


def test_c048_a_longer_old_run_is_neither_counted_nor_touched(tmp_path: Path) -> None:
    layout = json.loads((CASES / "C048.layout.json").read_text())
    for before in layout["before"]:
        save(tmp_path, int(before["name"].removeprefix("step-")), before["run"])
    save(tmp_path, 100, "new")
    remove_old(tmp_path, layout["keep_last"], "new")
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["step-000050", "step-000100", "step-000500", "step-000600"], (
        "the checkpoint just written was taken for the oldest"
    )
    with pytest.raises(AssertionError):
        remove_old(tmp_path, 0, "new")
    with pytest.raises(EyasError, match="keep_last"):
        TrainOptions(keep_last=0)


def test_another_runs_checkpoint_is_not_resumed_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 500, "old")
    save(tmp_path, 50, "new")
    assert newest_checkpoint(tmp_path, "new") == tmp_path / "step-000050"
    assert "another run" in capsys.readouterr().err


def test_the_optimisers_shards_come_back_as_one(tmp_path: Path) -> None:
    drafter = tiny_drafter(0, torch.float32)
    folder = tmp_path / "step-000001"
    whole = {"fc.weight/exp_avg": torch.randn(5, 3), "fc.weight/step": torch.tensor(7.0)}
    save_checkpoint(folder, drafter, {}, Position(1), {})
    (folder / OPTIMIZER).unlink()
    for rank, rows in enumerate(
        (whole["fc.weight/exp_avg"][:3], whole["fc.weight/exp_avg"][3:], torch.empty(0, 3))
    ):
        shard = {**whole, "fc.weight/exp_avg": rows.contiguous()}
        save_file(shard, folder / f"optimizer-{rank:05d}-of-00003.safetensors")
    loaded = load_checkpoint(folder, Drafter(tiny_config()))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("writes", range(5))
def test_c042_a_save_that_dies_at_any_write_leaves_the_one_before(
    tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optimiser, weights, config, state: the process is gone after so many of them; after all the save is good."""
    before = save(tmp_path, 100)
    left, real = [writes], checkpoint.write_whole

    class Gone(BaseException):
        pass

    def dying(path: Path, data: bytes) -> None:
        if not left[0]:
            raise Gone
        left[0] -= 1
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_whole", dying)
    monkeypatch.setattr(config_module, "write_whole", dying)
    if writes < 4:
        with pytest.raises(Gone):
            save(tmp_path, 200)
        found = newest_checkpoint(tmp_path)
        assert found == tmp_path / "step-000100"
        loaded = Drafter(tiny_config())
        load_checkpoint(found, loaded)
        assert torch.equal(loaded.fc.weight, before.fc.weight)
    else:
        save(tmp_path, 200)
        assert newest_checkpoint(tmp_path) == tmp_path / "step-000200"
