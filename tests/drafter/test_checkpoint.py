"""Checkpoints are whole or passed over, and say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

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
from tiny import tiny_config, tiny_drafter

CASES = Path(__file__).parents[1] / "cases" / "inputs"


def save(folder: Path, step: int) -> Drafter:
    drafter = tiny_drafter(step, torch.float32)
    save_checkpoint(
        folder / f"step-{step:06d}", drafter, {"x/step": torch.tensor(1.0)}, Position(step, 1, 2), {}
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
    path = tmp_path / "step-000002" / "optimizer.safetensors"
    data = bytearray(path.read_bytes())
    if spoil == "gone":
        path.unlink()
    else:
        data[-1] ^= 1
        path.write_bytes(bytes(data[:-3] if spoil == "cut" else data))
    assert "optimizer.safetensors" in (fault(path.parent) or "")
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
