"""Weights of a trained drafter, of Eyas or of another tool, into a drafter that trains on.

Known forms: Eyas's checkpoints, the plain form that SGLang and vLLM read and SpecForge writes (`midlayer.*` or
`layers.0.*`, names wrapped or under `model.`), and speculators' (`speculators_model_type` in its config, where
norm_before_residual is true unless said otherwise). Names are strict: what is missing or unknown is an error.
Rows of the head go by target id, so the draft vocabulary may be another one.

Shapes: R draft vocabulary of this run, S of the other drafter, V target vocabulary, H draft hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.core.errors import EyasError

from .config import DrafterConfig
from .foreign import read_config, read_weights
from .network import Drafter
from .start import CONFIG

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")

_WRAPPERS = frozenset({"draft_model", "_orig_mod", "_fsdp_wrapped_module", "module"})
_OF_NO_USE = ("rotary_emb.inv_freq", "verifier_lm_head.", "verifier_norm.", "mask_hidden")
"""What other tools store beside a drafter: tables made from the config, copies of the target's own weights."""


@dataclass(frozen=True)
class Imported:
    """A drafter as it was found. state: under the network's names, without the vocabulary maps.
    target_ids_S: of its draft ids, rising. layer_ids: as its config writes them, None if it writes none."""

    folder: Path
    kind: str
    state: dict[str, Tensor]
    target_ids_S: Tensor
    flags: dict[str, bool]
    layer_ids: list[int] | None


def read_drafter(folder: Path, config: DrafterConfig) -> Imported:
    """Read and check what lies in `folder` against the network that the run trains.

    Raises EyasError for names, shapes or conventions that are not this network's.
    """
    fields = read_config(folder / CONFIG)
    kind = _kind_of(fields)
    stored = _network_names(read_weights(folder), folder)
    maps: dict[str, Tensor] = {name: stored.pop(name) for name in ("d2t", "t2d") if name in stored}
    layer_ids = (fields.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    found = Imported(
        folder=folder,
        kind=kind,
        state=stored,
        target_ids_S=_target_ids(maps, stored, config, folder),
        flags={name: bool(fields.get(name, _default(name, kind))) for name in FLAGS},
        layer_ids=layer_ids or fields.get("eagle_aux_hidden_state_layer_ids"),
    )
    _require_flags(found, config)
    _require_tensors(found, config)
    return found


def start_from(drafter: Drafter, found: Imported, rows_RG: Tensor, boundaries: Sequence[int]) -> None:
    """Put the weights into `drafter`, whose vocabulary is set.

    rows_RG: the target's head rows of the draft vocabulary, for draft ids that the other drafter did not have.
    """
    _require_boundaries(found, boundaries)
    own = drafter.state_dict()
    with torch.no_grad():
        for name, tensor in found.state.items():
            if name == HEAD:
                own[name].copy_(_head_rows(drafter, found, tensor, rows_RG))
            elif name != EMBEDDING or drafter.config.has_own_embedding:
                own[name].copy_(tensor)
    if EMBEDDING in found.state and not drafter.config.has_own_embedding:
        _compare_embedding(found, drafter.embed_tokens.weight)


def _head_rows(drafter: Drafter, found: Imported, head_SH: Tensor, rows_RG: Tensor) -> Tensor:
    places_R = torch.searchsorted(found.target_ids_S, drafter.target_ids_R).clamp(
        max=len(found.target_ids_S) - 1
    )
    known_R = found.target_ids_S[places_R] == drafter.target_ids_R
    new = int((~known_R).sum())
    if new and drafter.config.has_own_embedding:
        raise EyasError(
            "the draft vocabulary has ids that the drafter to start from never had",
            file=found.folder,
            expected=f"all of {len(known_R)} ids among its {len(found.target_ids_S)}",
            found=f"{new} new ones, for which a head of this width has no rows",
            mend="use its draft vocabulary, or start anew",
        )
    if new:
        text = f"train: {new:,} of {len(known_R):,} draft ids are new to {found.folder.name}"
        print(f"{text}; their head rows are the target's", file=sys.stderr, flush=True)
    rows_RH = head_SH[places_R].float()
    return rows_RH if not new else torch.where(known_R.unsqueeze(-1), rows_RH, rows_RG.float())


def _compare_embedding(found: Imported, target_VH: Tensor) -> None:
    stored_VH = found.state[EMBEDDING]
    step = 4096
    for first in range(0, len(target_VH), step):
        ours, theirs = (x[first : first + step].to(torch.bfloat16) for x in (target_VH, stored_VH))
        if not torch.equal(ours, theirs):
            text = f"train: the embedding in {found.folder.name} is not the target's and is left out"
            print(f"{text}: engines share the target's", file=sys.stderr, flush=True)
            return


def _kind_of(fields: Mapping[str, Any]) -> str:
    if "speculators_model_type" in fields:
        return "speculators"
    return "eyas" if "num_aux" in fields and "draft_vocab_size" in fields else "plain"


def _default(flag: str, kind: str) -> bool:
    return flag == "norm_before_residual" and kind == "speculators"


def _network_names(stored: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if any(part in name for part in _OF_NO_USE):
            continue
        bare = ".".join(part for part in name.split(".") if part not in _WRAPPERS).removeprefix("model.")
        if bare.startswith("layers.0."):
            bare = "midlayer." + bare.removeprefix("layers.0.")
        if bare in state:
            raise EyasError("two tensors have one name without their wrappers", file=folder, record=name)
        state[bare] = tensor
    return state


def _target_ids(
    maps: Mapping[str, Tensor], state: Mapping[str, Tensor], config: DrafterConfig, folder: Path
) -> Tensor:
    rows = len(state[HEAD]) if HEAD in state else 0
    given = "d2t" in maps
    ids_S = torch.arange(len(maps["d2t"]) if given else rows)
    if given:
        ids_S = ids_S + maps["d2t"].long()
    fits = len(ids_S) == rows and (not rows or int(ids_S[-1]) < config.vocab_size)
    fits = fits and (given or rows == config.vocab_size)
    if rows and not (fits and bool((ids_S.diff() > 0).all())):
        raise EyasError(
            "the draft vocabulary of the drafter to start from is unclear",
            file=folder,
            expected=f"d2t as offsets to rising ids below {config.vocab_size}, one for each of {rows} head rows",
            found=f"{len(ids_S)} ids up to {int(ids_S.max())}" if given else "no d2t",
            mend="give the drafter of this target, with its d2t",
        )
    return ids_S


def _require_flags(found: Imported, config: DrafterConfig) -> None:
    for name in FLAGS:
        if found.flags[name] != getattr(config, name):
            value = str(found.flags[name]).lower()
            raise EyasError(
                f"the drafter to start from has {name}: {value}, this run has not",
                file=found.folder / CONFIG,
                expected=str(getattr(config, name)).lower(),
                found=value,
                mend=f"set training.network.{name} to {value}",
            )


def _require_tensors(found: Imported, config: DrafterConfig) -> None:
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Drafter(config).state_dict().items()}
    for name in ("d2t", "t2d"):
        del shapes[name]
    shapes[HEAD] = torch.Size([len(found.target_ids_S), config.hidden_size])
    required = {name for name in shapes if name != EMBEDDING or config.has_own_embedding}
    missing, unknown = sorted(required - found.state.keys()), sorted(found.state.keys() - shapes.keys())
    misshapen = {
        name: f"{list(found.state[name].shape)}, not {list(shapes[name])}"
        for name in sorted(shapes.keys() & found.state.keys())
        if found.state[name].shape != shapes[name]
    }
    if missing or unknown or misshapen:
        faults = {"missing": missing, "unknown": unknown, "misshapen": misshapen}
        raise EyasError(
            "the drafter to start from is not of this run's shape",
            file=found.folder,
            expected="exactly the tensors of the network",
            found="; ".join(f"{what}: {which}" for what, which in faults.items() if which),
            mend="set training.network to its shape, or give a drafter of this target",
        )


def _require_boundaries(found: Imported, boundaries: Sequence[int]) -> None:
    """Engines write one boundary in two ways: as itself, or as the layer whose output it is."""
    if found.layer_ids is None or list(boundaries) in (found.layer_ids, [i + 1 for i in found.layer_ids]):
        return
    raise EyasError(
        "the drafter to start from was trained on other layers of the target",
        file=found.folder / CONFIG,
        expected=f"layer ids {list(boundaries)} or {[b - 1 for b in boundaries]}",
        found=found.layer_ids,
        mend="extract the states at its boundaries (states.boundaries), or start anew",
    )
