"""Training computes what serving computes: the unrolled forward against the incremental decoder with its cache.

The decoder of src/eyas/bench shares the drafter's weights and norms with training, but its attention, cache
and positions are its own. Here it is fed the row's own tokens as drafts, so that slot for slot and step for
step it must give the logits of the training forward.
"""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import save_file

from tiny import write_extract

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import toy
from eyas.bench.decoder import decode
from eyas.bench.draft import DraftStream
from eyas.bench.plain import decode_plainly
from eyas.core.artefact import Out
from eyas.core.contract import target_source
from eyas.core.manifest import Manifest, Source, measured
from eyas.core.rows import EXACT, GREEDY, TokenRow
from eyas.drafter import stage
from eyas.drafter.batch import make_batch
from eyas.drafter.config import DrafterConfig
from eyas.drafter.network import Drafter, load_drafter
from eyas.drafter.options import TrainOptions
from eyas.drafter.rope import Rotary
from eyas.drafter.target_weights import TargetWeights
from eyas.drafter.unroll import unroll
from eyas.drafter.walk import walk_store
from eyas.engines.demo import demo_folder
from eyas.engines.hf import HfTarget
from eyas.states.store import NO_TEACHER, StateRow

STEPS = 4
LIMITS = {torch.float32: 1e-4, torch.float64: 1e-10}


def in_training(drafter: Drafter, row: StateRow) -> dict[tuple[int, int], torch.Tensor]:
    """Logits of every (slot, step) of the row, by the training forward."""
    batch = make_batch([row], drafter.t2d, STEPS)
    with torch.inference_mode():
        outputs = unroll(drafter, Rotary(drafter.config), batch)
        return {
            (int(position) - k, k): logits
            for k, (step, output) in enumerate(zip(batch.steps, outputs, strict=True))
            for position, logits in zip(step.positions_S, drafter.logits(output), strict=True)
        }


def in_decoding(
    drafter: Drafter, row: StateRow, wanted: set[tuple[int, int]]
) -> dict[tuple[int, int], torch.Tensor]:
    """The same by the decoder: true slots one after the other, a round of drafts behind each."""
    found, ids = {}, row.input_ids_T.tolist()
    stream = DraftStream(drafter, len(ids) + STEPS)
    with torch.inference_mode():
        for slot in range(len(ids) - 1):
            stream.learn(row.aux_TAH[slot : slot + 1].flatten(1), ids[slot + 1 : slot + 2])
            steps = [k for k in range(STEPS) if (slot, k) in wanted]
            drafts: list[int] = []
            for k, logits in zip(steps, stream._chain(len(steps), drafts), strict=True):
                found[slot, k] = logits[0]
                drafts.append(ids[slot + 2 + k])
    return found


def check_parity(drafter: Drafter, rows: list[StateRow]) -> int:
    """The number of (slot, step) that were compared."""
    limit = LIMITS[drafter.fc.weight.dtype]
    compared = 0
    for row in rows:
        trained = in_training(drafter, row)
        served = in_decoding(drafter, row, set(trained))
        assert trained.keys() == served.keys()
        for at, logits in trained.items():
            scale, error = float(logits.abs().max()), float((served[at] - logits).abs().max())
            assert error <= limit * scale, (
                f"{row.id}, (slot, step) {at}: off by {error / scale:.1e} of the largest"
            )
            first, second = logits.topk(2).values.tolist()
            if first - second > limit * scale:
                assert served[at].argmax() == logits.argmax(), f"{row.id}, {at}: another draft in serving"
            compared += 1
    return compared


def widened(row: StateRow, dtype: torch.dtype) -> StateRow:
    return replace(row, aux_TAH=row.aux_TAH.to(dtype), last_TH=row.last_TH.to(dtype))


@dataclass(frozen=True)
class Toy:
    target: HfTarget
    rows: list[TokenRow]
    states: list[StateRow]
    drafter: Drafter


@pytest.fixture(scope="module")
def trained_toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    folder = toy.write_target(tmp_path_factory.mktemp("toy") / "target")
    target = HfTarget(folder)
    rows = [toy.greedy_row(target, prompt, 28, f"row-{i}") for i, prompt in enumerate(toy.prompts(5))]
    states = [toy.without_gradients(toy.with_states(target, row)) for row in rows]
    return Toy(target, rows, states, toy.good_drafter(folder, states))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_training_and_incremental_decoding_give_the_same_logits(trained_toy: Toy, dtype: torch.dtype) -> None:
    drafter = copy.deepcopy(trained_toy.drafter).to(dtype)
    rows = [widened(row, dtype) for row in trained_toy.states]
    assert check_parity(drafter, rows) > 300


@pytest.mark.parametrize(
    "changes",
    [{"norm_output": True}, {"norm_before_residual": True}, {"fc_norm": True}, {"norm_before_fc": True}],
    ids=str,
)
def test_so_they_do_under_every_norm_flag(trained_toy: Toy, changes: dict[str, bool]) -> None:
    drafter = toy.chance_drafter(trained_toy.target.facts.folder, 0, **changes).double()
    with torch.no_grad():  # large weights, so that every part of the layer moves the logits
        for parameter in drafter.midlayer.parameters():
            parameter.mul_(10)
    check_parity(drafter, [widened(row, torch.float64) for row in trained_toy.states[:2]])


def test_a_position_off_by_one_in_serving_is_seen(trained_toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = copy.deepcopy(trained_toy.drafter).double()
    rows = [widened(trained_toy.states[0], torch.float64)]
    right = DraftStream._rotated
    monkeypatch.setattr(
        DraftStream,
        "_rotated",
        lambda self, x, a, b: right(self, x, a + (b == self.length + 1), b + (b == self.length + 1)),
    )
    with pytest.raises(AssertionError, match="off by"):
        check_parity(drafter, rows)


ANSWERS, TOKENS, SHORTEST, DRAFT_VOCABULARY = 8, 64, 48, 1024
QUESTIONS = Path(__file__).parents[2] / "recipes" / "prompts"


def is_loop(ids: list[int]) -> bool:
    """Hardly anything but repetition: under 70 % of its runs of four tokens are new."""
    runs = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(set(runs)) < 0.7 * len(runs)


def questions(target: HfTarget) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target.facts.folder)
    found = []
    for name in ("chat.jsonl", "maths.jsonl"):
        for line in (QUESTIONS / name).read_bytes().splitlines()[:12]:
            messages = orjson.loads(line)["messages"]
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            found.append(ids)
    return found


def own_answers(target: HfTarget) -> list[TokenRow]:
    """The first eight greedy answers that are long enough and no loop."""
    rows: list[TokenRow] = []
    for number, prompt in enumerate(questions(target)):
        answer = decode_plainly(target, prompt, TOKENS).tokens
        if len(answer) >= SHORTEST and not is_loop(answer):
            mask = [0] * len(prompt) + [1] * len(answer)
            rows.append(TokenRow(f"row-{number}", "own", prompt + answer, mask, [GREEDY, EXACT]))
        if len(rows) == ANSWERS:
            return rows
    raise AssertionError(f"only {len(rows)} of the target's answers are long enough and no loop")


def with_states(target: HfTarget, row: TokenRow, boundaries: list[int]) -> StateRow:
    aux, last = (part.clone() for part in target.states([row.input_ids], boundaries)[0])
    mask = torch.tensor(row.loss_mask, dtype=torch.bool)
    label_next = torch.cat([mask[1:], torch.zeros(1, dtype=torch.bool)])
    teacher = torch.where(label_next, target.head(last).argmax(-1), NO_TEACHER)
    return StateRow(row.id, row.dataset, row.flags, torch.tensor(row.input_ids), mask, teacher, aux, last)


def write_vocabulary(folder: Path, rows: list[TokenRow], vocab_size: int) -> Source:
    """Every label, filled up with the lowest ids."""
    folder.mkdir()
    labels = {i for row in rows for i, m in zip(row.input_ids, row.loss_mask, strict=True) if m}
    fill = [i for i in range(vocab_size) if i not in labels][: DRAFT_VOCABULARY - len(labels)]
    ids = torch.tensor(sorted(labels | set(fill)))
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    tensors = {"target_ids": ids, "d2t": ids - torch.arange(len(ids)), "t2d": t2d}
    save_file(tensors, folder / "vocab.safetensors")
    counts = {"rows_in": 0, "rows_out": 0, "dropped": {}}
    outputs = [measured(folder, "vocab.safetensors")]
    Manifest("vocab", 1, "own", "v" * 32, {}, {}, outputs, counts, {}, {}).write(folder)
    return Source(folder, "v" * 32)


@dataclass(frozen=True)
class Overfitted:
    target: HfTarget
    rows: list[TokenRow]
    states: list[StateRow]
    drafter: Drafter
    manifest: Manifest
    seconds: float
    boundaries: tuple[int, ...]


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Overfitted:
    """The train stage on eight answers of the demo target, held out rows and all the same."""
    begun, folder = time.process_time(), tmp_path_factory.mktemp("overfit")
    if not demo_folder().is_dir():
        pytest.fail("the demo target is not there: run `eyas target demo` (`make test-slow` does)")
    target = HfTarget(demo_folder())
    boundaries = [2, target.facts.num_layers // 2, target.facts.num_layers - 3]
    rows = own_answers(target)
    states = [with_states(target, row, boundaries) for row in rows]
    inputs = {
        "extract": write_extract(folder / "extract", states, states),
        "vocab": write_vocabulary(folder / "vocab", rows, target.facts.vocab_size),
        "target": target_source(demo_folder()),
    }
    options = TrainOptions(epochs=60, threads=1, warmup_steps=10, tracker="none")
    manifest = stage.run(options, inputs, Out(folder / "run"))
    checkpoint = folder / "run" / manifest.actual["checkpoint"]
    config = DrafterConfig.read(checkpoint / "config.json")
    drafter = load_drafter(checkpoint, config, TargetWeights(demo_folder()).embedding())
    spent = time.process_time() - begun
    drafter.requires_grad_(False)
    return Overfitted(target, rows, states, drafter, manifest, spent, tuple(boundaries))


@pytest.mark.slow
@pytest.mark.real
def test_eight_answers_are_learned_by_heart(overfitted: Overfitted) -> None:
    assert len(overfitted.rows) == ANSWERS
    assert min(row.num_labels for row in overfitted.rows) >= SHORTEST
    assert overfitted.manifest.actual["accept_length"] > 3.5, (
        "of 4: a drafter that cannot learn these learns nothing"
    )
    print(
        f"accept length {overfitted.manifest.actual['accept_length']:.3f} of 4 after {overfitted.seconds:.0f} s"
    )
    assert overfitted.seconds < 240, f"{overfitted.seconds:.0f} seconds of one processor"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_trained_drafter_serves_the_logits_that_it_was_trained_on(
    overfitted: Overfitted, dtype: torch.dtype
) -> None:
    drafter = copy.deepcopy(overfitted.drafter).to(dtype)
    assert check_parity(drafter, [widened(row, dtype) for row in overfitted.states[:3]]) > 300


@pytest.mark.slow
@pytest.mark.real
def test_real_decoding_makes_the_rounds_of_the_walk(overfitted: Overfitted) -> None:
    rows, states = overfitted.rows[:3], overfitted.states[:3]
    walked = walk_store(overfitted.drafter, states, 3).rows
    for row, found in zip(rows, walked, strict=True):
        labels = row.num_labels
        made = decode(
            overfitted.target, overfitted.drafter, overfitted.boundaries, row.input_ids[:-labels], 3, labels
        )
        assert made.tokens == row.input_ids[-labels:], "drafting changed what the target says"
        assert made.rounds == found.rounds
