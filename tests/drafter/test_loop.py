"""The training loop: what it computes is a plain loop's result, however it is cut up, stored and watched."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.core.artefact import Out
from eyas.core.errors import EyasError, StoppedEarly
from eyas.core.manifest import Source
from eyas.drafter import stage
from eyas.drafter.batch import make_batch
from eyas.drafter.checkpoint import Position
from eyas.drafter.loader import Loader
from eyas.drafter.loss import batch_loss
from eyas.drafter.network import Drafter
from eyas.drafter.objectives import LossSpec
from eyas.drafter.optimizer import Optimizer, learning_rate
from eyas.drafter.options import TrainOptions
from eyas.drafter.rope import Rotary
from eyas.drafter.schedule import divide
from eyas.drafter.trackers import open_tracker
from eyas.drafter.trainer import Trainer
from eyas.drafter.unroll import unroll
from tiny import memory_store, tiny_drafter, tiny_teacher, train_inputs

OPTIONS = TrainOptions(
    ttt_steps=2, epochs=2, tokens_per_step=40, warmup_steps=3, threads=1, train_head=True, tracker="none"
)


def trained(folder: Path, options: TrainOptions, dtype: torch.dtype = torch.float64) -> Trainer:
    drafter = tiny_drafter(0, dtype)
    drafter.embed_tokens.weight.requires_grad_(False)
    teacher, head = tiny_teacher(drafter)
    folder.mkdir(exist_ok=True)
    trainer = Trainer(drafter, memory_store(head), teacher, options, folder)
    trainer.run()
    return trainer


def distance(one: Drafter, two: Drafter) -> float:
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def test_the_trainers_weights_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", OPTIONS, torch.float32)
    drafter = tiny_drafter(0, torch.float32)
    drafter.embed_tokens.weight.requires_grad_(False)
    teacher, head = tiny_teacher(drafter)
    store, optimizer = memory_store(head), Optimizer(drafter, OPTIONS)
    for step, (rows, _) in enumerate(found.plan.ahead(Position())):
        batch = make_batch([store[row] for row in rows], drafter.t2d, 2)
        if not any(batch.term_counts):
            continue
        outputs = unroll(drafter, Rotary(drafter.config), batch)
        batch_loss(drafter, outputs, batch, teacher, LossSpec.of(OPTIONS), batch.term_counts).loss.backward()
        optimizer.clip()
        optimizer.step(learning_rate(step, found.plan.num_steps, OPTIONS))
    assert distance(found.drafter, drafter) == 0.0, "the same options no longer give the same bits"


@pytest.mark.parametrize("budget", [1, 12, 25])
def test_accumulation_changes_nothing(tmp_path: Path, budget: int) -> None:
    whole = trained(tmp_path / "whole", OPTIONS)
    parts = trained(tmp_path / "parts", dataclasses.replace(OPTIONS, tokens_per_forward=budget))
    assert any(len(parts._parts(rows)) > 1 for rows, _ in parts.plan.ahead(Position()))
    assert distance(whole.drafter, parts.drafter) < 1e-12, (
        "a term's weight depends on the part that it landed in"
    )
    figures = [[json.loads(line) for line in (t.folder / "log.jsonl").open()] for t in (whole, parts)]
    for one, two in zip(*figures, strict=True):
        assert one["accuracy"] == two["accuracy"]
        assert one["loss"] is two["loss"] is None or one["loss"] == pytest.approx(two["loss"], rel=1e-12)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 60), st.integers(1, 5), st.randoms()
)
def test_parts_are_within_the_budget_even_for_all_ranks_and_hold_each_row_once(
    lengths: list[int], budget: int, processes: int, chance: object
) -> None:
    rows = list(range(len(lengths)))
    chance.shuffle(rows)  # type: ignore[attr-defined]
    parts = divide(rows, lengths, budget, processes)
    assert len(parts) % processes == 0
    assert sorted(row for part in parts for row in part) == sorted(rows)
    for part in parts:
        assert part == sorted(part, key=rows.index), "the order within a part is the step's"
        assert not budget or len(part) == 1 or sum(lengths[row] for row in part) <= budget
    if processes == 1 and not budget:
        assert parts == [rows]


def test_recomputing_gives_the_same_bits(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", OPTIONS, torch.float32)
    again = trained(tmp_path / "again", dataclasses.replace(OPTIONS, recompute=True), torch.float32)
    assert distance(plain.drafter, again.drafter) == 0.0


def test_recomputing_keeps_less_for_the_backward_pass() -> None:
    kept = []
    for recompute in (False, True):
        drafter = tiny_drafter(0, torch.float32, intermediate_size=200)
        teacher, head = tiny_teacher(drafter)
        store = memory_store(head)
        options = dataclasses.replace(OPTIONS, recompute=recompute)
        from eyas.drafter.step import TrainStep

        step, total = TrainStep(drafter, teacher, options), [0]
        batch = make_batch(store.rows, drafter.t2d, 2)

        def pack(tensor: torch.Tensor, total: list[int] = total) -> torch.Tensor:
            total[0] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step(batch, batch.term_counts, batch.num_tokens)
        kept.append(total[0])
    assert kept[1] < 0.6 * kept[0]


def test_bfloat16_products_leave_weights_and_loss_in_float32(tmp_path: Path) -> None:
    wide = trained(tmp_path / "wide", OPTIONS, torch.float32)
    narrow = trained(tmp_path / "narrow", dataclasses.replace(OPTIONS, precision="bfloat16"), torch.float32)
    assert {p.dtype for p in narrow.drafter.parameters()} == {torch.float32}
    losses = [[json.loads(line)["loss"] for line in (t.folder / "log.jsonl").open()] for t in (wide, narrow)]
    assert losses[0] != losses[1], "bfloat16 has no effect"
    for one, two in zip(*losses, strict=True):
        assert one is two is None or one == pytest.approx(two, rel=0.05)


@pytest.mark.slow
def test_compiling_moves_only_the_last_bits(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, epochs=1)
    plain = trained(tmp_path / "plain", options, torch.float32)
    compiled = trained(tmp_path / "compiled", dataclasses.replace(options, compile=True), torch.float32)
    assert compiled.drafter.midlayer.training_form is not None
    assert distance(plain.drafter, compiled.drafter) < 1e-4


def test_muon_steps_are_orthogonal_and_leave_the_head_to_adamw() -> None:
    drafter = tiny_drafter(0, torch.float32)
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    optimizer = Optimizer(drafter, dataclasses.replace(OPTIONS, optimizer="muon", fc_rate=1.0))
    for parameter in drafter.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step(1.0)
    names = {name.split("/")[0] for name in optimizer.state() if name.endswith("momentum_buffer")}
    assert "fc.weight" in names
    assert "midlayer.mlp.up_proj.weight" in names
    assert not names & {"lm_head.weight", "embed_tokens.weight", "norm.weight"}
    step = before["fc.weight"] - drafter.fc.weight.detach()
    turned = torch.linalg.svdvals(step / (0.2 * max(step.shape) ** 0.5))
    assert turned.min() > 0.5
    assert turned.max() < 1.5


def test_rows_that_end_before_the_plan_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eyas.drafter.schedule import Schedule

    ahead = Schedule.ahead
    monkeypatch.setattr(Schedule, "ahead", lambda self, position: list(ahead(self, position))[:-1])
    with pytest.raises(StoppedEarly) as caught:
        trained(tmp_path / "run", OPTIONS)
    assert caught.value.exit_code == 3
    assert caught.value.found == caught.value.expected - 1


def test_weights_that_are_no_numbers_are_neither_saved_nor_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = train_inputs(tmp_path / "inputs", num_development=2)
    real = Optimizer.step

    def poisoned(self: Optimizer, rate: float) -> None:
        real(self, rate)
        with torch.no_grad():
            self._named[0][1].fill_(torch.nan)

    monkeypatch.setattr(Optimizer, "step", poisoned)
    options = dataclasses.replace(OPTIONS, evaluate_steps=1, checkpoint_steps=1)
    with pytest.raises(EyasError, match="no number") as caught:
        stage.run(options, inputs, Out(tmp_path / "run"))
    assert "tiny/r" in caught.value.record
    assert not list((tmp_path / "run").rglob("step-*"))


def test_in_an_accumulated_step_only_the_spoiled_part_is_named(tmp_path: Path) -> None:
    drafter = tiny_drafter(0, torch.float32)
    teacher, head = tiny_teacher(drafter)
    store = memory_store(head)
    store.rows[4].aux_TAH[3] = torch.inf
    options = dataclasses.replace(OPTIONS, tokens_per_step=500, tokens_per_forward=1, epochs=1)
    tmp_path.joinpath("run").mkdir()
    with pytest.raises(EyasError) as caught:
        Trainer(drafter, store, teacher, options, tmp_path / "run").run()
    assert caught.value.record == "tiny/r4"


def test_asking_for_evaluations_without_a_development_split_is_said_to_be_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = train_inputs(tmp_path / "inputs")
    stage.run(dataclasses.replace(OPTIONS, evaluate_steps=2, epochs=1), inputs, Out(tmp_path / "run"))
    assert "evaluate_steps has no effect" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_whoever_reads_them(workers: int) -> None:
    loader = Loader(lambda part: part * 10, workers)
    assert list(loader.batches(iter(range(25)))) == [part * 10 for part in range(25)]
    assert loader.waited >= 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_that_cannot_be_read_is_an_error_in_its_turn(workers: int) -> None:
    loader = Loader(lambda part: 1 // (7 - part), workers)
    batches = loader.batches(iter(range(20)))
    assert [next(batches) for _ in range(7)]
    with pytest.raises(ZeroDivisionError):
        next(batches)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[tuple]:
    """A stand-in for wandb or trackio that notes what it is told."""
    calls: list[tuple] = []
    module = types.ModuleType(request.param)
    module.__spec__ = types.SimpleNamespace(name=request.param)
    module.init = lambda **fields: calls.append(("init", fields))
    module.log = lambda figures, step: calls.append(("log", step, figures))
    module.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, request.param, module)
    return [request.param, calls]


@pytest.mark.parametrize("service", ["wandb", "trackio"], indirect=True)
def test_a_service_gets_each_step_once(service: list, tmp_path: Path) -> None:
    kind, calls = service
    inputs = train_inputs(tmp_path / "inputs")
    manifest = stage.run(
        dataclasses.replace(OPTIONS, tracker=kind, epochs=1), inputs, Out(tmp_path / "run-7")
    )
    assert calls[0][0] == "init"
    assert calls[0][1]["name"] == "run-7"
    assert calls[0][1]["config"]["epochs"] == 1
    assert [call[1] for call in calls if call[0] == "log"] == list(range(1, manifest.actual["steps"] + 1))
    assert {"loss", "accuracy/0", "accuracy/1", "expected_length", "rate", "waiting"} <= calls[1][2].keys()
    assert calls[-1] == ("finish",)


@pytest.mark.parametrize("kind", ["wandb", "trackio", "tensorboard"])
def test_a_missing_tracker_is_an_error_that_names_the_package(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EyasError, match="not installed") as caught:
        open_tracker(kind, tmp_path, 0, {})
    assert f"pip install {kind}" in caught.value.mend
    open_tracker("auto", tmp_path, 0, {}).log(1, {"loss": 1.0})
    assert not list(tmp_path.iterdir()), "auto falls back on nothing where TensorBoard is missing"


def test_tensorboard_is_written_beside_the_checkpoint_and_is_no_output(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `train` is not installed")
    inputs: dict[str, Source] = train_inputs(tmp_path / "inputs")
    manifest = stage.run(dataclasses.replace(OPTIONS, tracker="auto"), inputs, Out(tmp_path / "run"))
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    assert not any("tensorboard" in output.file for output in manifest.outputs)
