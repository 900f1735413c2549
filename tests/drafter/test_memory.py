"""Nothing of size T x T or T x V is ever made: by the size of every tensor, and by the process's own peak."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eyas.drafter.attention import Backend
from eyas.drafter.batch import make_batch
from eyas.drafter.loss import TeacherHead, batch_loss
from eyas.drafter.network import Drafter
from eyas.drafter.objectives import LossSpec
from eyas.drafter.rope import Rotary
from eyas.drafter.unroll import unroll
from eyas.states.store import StateRow
from tiny import HIDDEN, tiny_config

VOCAB, STEPS = 4096, 3


class Largest(TorchDispatchMode):
    """The most elements that any operator, forward or backward, gave out."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.elements = max(self.elements, leaf.numel())
        return out


def long_row(length: int) -> StateRow:
    """One conversation, all of it answer but the first token."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, VOCAB, (length,), generator=generator)
    aux = torch.randn(length, 3 * HIDDEN, generator=generator)
    last = torch.randn(length, HIDDEN, generator=generator)
    mask = torch.ones(length, dtype=torch.bool)
    mask[0] = False
    return StateRow("long", "tiny", [], ids, mask, ids.roll(-1), aux, last)


def step(length: int, attention: Backend | None = None, objective: str = "cross_entropy") -> int:
    """Forward and backward of one row; the elements of the largest tensor."""
    torch.manual_seed(0)
    drafter = Drafter(tiny_config(vocab_size=VOCAB, draft_vocab_size=VOCAB))
    drafter.set_vocabulary(torch.arange(VOCAB))
    teacher = TeacherHead(torch.randn(VOCAB, HIDDEN), None, 1.0, None)
    batch = make_batch([long_row(length)], drafter.t2d, STEPS)
    with Largest() as largest:
        outputs = unroll(drafter, Rotary(drafter.config), batch, attention)
        spec = LossSpec(objective=objective)  # type: ignore[arg-type]
        batch_loss(drafter, outputs, batch, teacher, spec, batch.term_counts).loss.backward()
    return largest.elements


@pytest.mark.parametrize("objective", ["cross_entropy", "lk_alpha", "lk_lambda"])
def test_no_tensor_holds_the_logits_of_more_than_a_chunk(objective: str) -> None:
    chunk = LossSpec().chunk
    assert step(1024, objective=objective) == step(512, objective=objective) == STEPS * chunk * VOCAB, (
        "the largest tensor must be the draft logits of one chunk, however long the row"
    )


def test_no_tensor_holds_scores_of_all_pairs() -> None:
    length = 4096
    assert step(length) < length * length // 8
    assert step(1536, "plain") >= 1536 * 1536, "the plain form does hold them: the test can fail"


def measured() -> dict[str, int]:
    """Peak over the start of each length, in this process. Lengths rise, so no peak hides behind another."""
    from eyas.drafter import walk  # noqa: F401  (imports are not part of the peak)

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    torch.set_num_threads(1)
    step(64)
    start = status("VmRSS")
    peaks = {}
    for length in (2048, 8192):
        step(length)
        peaks[str(length)] = status("VmHWM") - start
    return peaks


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_peak_memory_grows_by_what_a_token_needs_and_no_more() -> None:
    """From T to 4T: T x T scores of the four heads would add 1 GB, T x V logits 16 KB a token for each step and copy.
    What a token needs is 6 to 11 KB here, the allocator's noise included; a row of logits more would be over 22."""
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_memory as t; print(t.json.dumps(t.measured()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout.splitlines()[-1])
    per_token = (peaks["8192"] - peaks["2048"]) / (8192 - 2048)
    assert per_token < 20_000, f"{per_token:.0f} bytes a token: a row of logits is {VOCAB * 4}"
