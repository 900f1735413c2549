"""What each engine does with the tensors of a drafter's file.

Read in the engines' own sources: SGLang's `llama_eagle3.py` (tries a name and `model.` + name, drops every
other in silence), vLLM 0.32's `llama_eagle3.py` (puts `model.` in front of all but the head, renames
`midlayer.` to `layers.0.`, refuses unknown names), TensorRT-LLM's `modeling_speculative.py` (renames
`layers.0.` to `midlayer.`, drops the rest in silence). speculators' format goes through vLLM; its own library
knows `layers.0.` alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

USED, SHARED, IGNORED, MISSING, REFUSED = "used", "shared", "ignored", "missing", "refused"

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Place:
    """Where a stored tensor goes. name: the network's name, None if it goes nowhere. harmless: an engine that
    does nothing with it is right."""

    name: str | None
    fate: str
    why: str = ""
    harmless: bool = False


@dataclass(frozen=True)
class Shape:
    """What of a drafter's configuration decides where its tensors go. known: the network's own names.
    reduced: the draft vocabulary is smaller than the target's. own_embedding: it is of another width."""

    known: frozenset[str]
    reduced: bool
    own_embedding: bool


def place(engine: str, stored: str, shape: Shape) -> Place:
    """Where `engine` puts the tensor that is stored under this name."""
    if "t2d" in stored:
        why = "the engine needs d2t alone" if engine != "speculators" else "read by the library, not by vLLM"
        return Place("t2d", IGNORED, why, harmless=True)
    return {"sglang": _sglang, "vllm": _vllm, "speculators": _speculators, "trtllm": _trtllm}[engine](
        stored, shape
    )


def _sglang(stored: str, shape: Shape) -> Place:
    if "d2t" in stored:
        return Place("d2t", USED)
    name = stored.removeprefix("model.") if stored.removeprefix("model.") != HEAD else stored
    if name not in shape.known:
        return Place(None, IGNORED, "SGLang knows no such name and drops it without a word")
    if name == EMBEDDING and not shape.own_embedding:
        return Place(name, SHARED, "SGLang replaces it by the target's")
    return Place(name, USED)


def _vllm(stored: str, shape: Shape) -> Place:
    if "d2t" in stored:
        if not shape.reduced:
            return Place(
                "d2t", REFUSED, "vLLM has no place for a map where the draft vocabulary is the target's"
            )
        return Place("d2t", USED)
    if "mask_hidden" in stored:
        return Place(None, IGNORED, "only parallel drafting reads it", harmless=True)
    name = re.sub(r"layers\.0\.|midlayer\.", "midlayer.", stored)
    if "input_norm." in stored and "input_norm.weight" not in shape.known:
        return Place(None, IGNORED, "norm_before_fc is not set, so vLLM leaves this norm out")
    if name not in shape.known:
        return Place(None, REFUSED, "vLLM knows no such name and does not start")
    return Place(name, USED)


def _speculators(stored: str, shape: Shape) -> Place:
    if stored.startswith("midlayer."):
        return Place(None, REFUSED, "speculators names the layer `layers.0.`")
    if stored == "d2t" and not shape.reduced:
        return Place("d2t", REFUSED, "vLLM has no place for a map where the draft vocabulary is the target's")
    return _vllm(stored, shape)


def _trtllm(stored: str, shape: Shape) -> Place:
    name = re.sub(r"^layers\.0\.", "midlayer.", stored)
    if name == "d2t":
        if not shape.reduced:
            return Place("d2t", IGNORED, "a full draft vocabulary needs no map", harmless=True)
        return Place("d2t", USED)
    if name == EMBEDDING and not shape.own_embedding:
        return Place(name, SHARED, "TensorRT-LLM takes the target's")
    if name not in shape.known:
        return Place(None, IGNORED, "TensorRT-LLM knows no such name and drops it without a word")
    return Place(name, USED)


def absent(engine: str, name: str, shape: Shape) -> Place:
    """What the engine does where the network's tensor `name` is not stored."""
    if name == EMBEDDING and not shape.own_embedding:
        return Place(name, SHARED, "not stored: the engine takes the target's", harmless=True)
    if name == "t2d" or (name == "d2t" and not shape.reduced):
        return Place(name, SHARED, "not needed", harmless=True)
    if name == HEAD and not shape.reduced and engine in ("vllm", "speculators", "trtllm"):
        return Place(
            name,
            SHARED,
            "not stored: the engine takes the target's head, which was not trained as this one's",
        )
    if name == HEAD:
        return Place(name, MISSING, "the engine drafts with a head of random weights: accept length 1.00")
    if name == "d2t":
        return Place(name, MISSING, "the engine takes draft ids for the first target ids")
    return Place(name, MISSING, "the engine leaves it at random weights")
