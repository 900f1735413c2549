"""The network's own promises: vocabulary maps, predicted sizes, what its file holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.core.errors import EyasError
from eyas.drafter.batch import make_batch
from eyas.drafter.network import Drafter, load_drafter
from eyas.drafter.rope import Rotary
from eyas.drafter.unroll import unroll
from eyas.drafter.walk import drafted_ids
from tiny import DRAFT, HIDDEN, VOCAB, tiny_config, tiny_drafter, tiny_row, tiny_teacher


def test_a_draft_is_the_target_id_whose_head_row_won() -> None:
    """Fails when d2t is shifted by one: every draft would be a neighbour of the token that was meant."""
    drafter = tiny_drafter()
    vocabulary = [2, 3, 7, 8, 9, 12, 15, 16, 20, 21, 22]
    drafter.set_vocabulary(torch.tensor(vocabulary))
    _, head = tiny_teacher(drafter)
    batch = make_batch([tiny_row([0, 0, *[1] * 12], head)], drafter.t2d, 2)
    outputs = unroll(drafter, Rotary(drafter.config), batch)
    for output, ids in zip(outputs, drafted_ids(drafter, Rotary(drafter.config), batch), strict=True):
        raw = drafter.norm(output) @ drafter.lm_head.weight.T
        assert ids.tolist() == [vocabulary[row.argmax()] for row in raw]
    assert drafter.d2t.tolist() == [token - i for i, token in enumerate(vocabulary)]
    assert torch.nonzero(drafter.t2d).flatten().tolist() == vocabulary


def test_equal_logits_draft_the_lower_id() -> None:
    drafter = tiny_drafter()
    _, head = tiny_teacher(drafter)
    with torch.no_grad():
        drafter.lm_head.weight.zero_()
    batch = make_batch([tiny_row([0, 0, *[1] * 5], head)], drafter.t2d, 1)
    (ids,) = drafted_ids(drafter, Rotary(drafter.config), batch)
    assert set(ids.tolist()) == {int(drafter.target_ids_R[0])}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fc_norm": True},
        {"norm_before_fc": True},
        {"hidden_size": 8, "target_hidden_size": HIDDEN},
        {"num_kv_heads": 4},
    ],
    ids=str,
)
def test_the_number_of_parameters_is_known_before_they_are_made(changes: dict[str, object]) -> None:
    drafter = Drafter(tiny_config(**changes))
    state = drafter.exported_state()
    held = sum(tensor.numel() for name, tensor in state.items() if name not in ("d2t", "t2d"))
    assert drafter.config.num_parameters == held


def test_the_shared_embedding_is_neither_trained_nor_in_the_file() -> None:
    drafter = Drafter(tiny_config())
    drafter.share_embedding(torch.ones(VOCAB, HIDDEN, dtype=torch.bfloat16))
    assert "embed_tokens.weight" not in drafter.exported_state()
    assert not drafter.embed_tokens.weight.requires_grad
    assert drafter.embed(torch.tensor([1])).dtype == torch.float32


@pytest.mark.parametrize("fault", ["missing", "unknown"])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, fault: str) -> None:
    state = {name: tensor.contiguous() for name, tensor in Drafter(tiny_config()).exported_state().items()}
    if fault == "missing":
        del state["fc.weight"]
    else:
        state["model.fc.weight"] = torch.zeros(1)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(EyasError, match="do not fit"):
        load_drafter(tmp_path, tiny_config(), torch.zeros(VOCAB, HIDDEN))


def test_the_draft_vocabulary_is_smaller_than_the_targets() -> None:
    assert DRAFT < VOCAB
