"""The reference decoder: speculative decoding of one stream, greedy or sampled, with a chain or a tree of drafts.

A round: the drafter proposes drafts after the last token x; the target reads x and the drafts in one forward;
the leading drafts that it agrees with are accepted, and its own token after them is the bonus token. Then both
caches forget what was rejected, and the drafter replaces the keys and values of its own drafts by those of the
true states. No round reads the prefix again.

Greedy, the target agrees with its likeliest token; sampled, by the rules of `sampling`, which leave its
distribution as it is. tau = tokens / rounds; the first token comes from the prefill and is not counted, tokens
past the end token or the limit are cut from the last round (docs/design.md section 2, `walk`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.drafter.network import Drafter
from eyas.engines.hf import HfTarget

from .clock import now
from .decoded import Decoded, until_end
from .draft import DraftStream
from .sampling import accept_candidate, accept_chain, distribution, draw
from .target import TargetStream, open_stream
from .tree import TreeShape


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. seed: of the draws of one prompt."""

    temperature: float = 0.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()


@dataclass
class Round:
    """What a round gave. fresh: accepted drafts and the bonus token. aux: the states [fresh, A*G] that the drafter
    learns them with. drafting: CPU seconds of the drafter."""

    fresh: list[int]
    aux_nAG: Tensor
    drafting: float


def leading_matches(drafts: Sequence[int], greedy: Sequence[int]) -> int:
    """How many drafts from the first on are the target's own greedy choices."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == greedy[accepted]:
        accepted += 1
    return accepted


def decode(
    target: HfTarget,
    drafter: Drafter,
    boundaries: Sequence[int],
    prompt: Sequence[int],
    draft_tokens: int,
    max_new_tokens: int,
    end_ids: Collection[int] | None = None,
    sampling: Sampling = GREEDY,
    tree: TreeShape | None = None,
) -> Decoded:
    """Answer `prompt` with `draft_tokens` drafts a round, or with a `tree` of that depth; end_ids are the target's
    unless given.

    The drafter's slots of the prompt are part of the first token's time, as in an engine's prefill; only
    the slot that reads the first token is part of the decoding.
    """
    assert draft_tokens >= 1
    assert max_new_tokens >= 1
    assert tree is None or tree.depth == draft_tokens
    ends = target.facts.eos_ids if end_ids is None else end_ids
    room = (
        len(prompt)
        + max_new_tokens
        + (draft_tokens if tree is None else tree.nodes + tree.depth * tree.width)
    )
    begun = now()
    with open_stream(target, boundaries, room) as stream:
        verifier = _Verifier(stream, DraftStream(drafter, room), draft_tokens, tree, sampling)
        first, aux = verifier.prefill(prompt)
        tokens, rounds, accepted, drafting = [first], [], [], 0.0
        known = now()
        fresh = [first]
        while tokens[-1] not in ends and len(tokens) < max_new_tokens:
            made = verifier.round(aux, fresh)
            fresh, aux = made.fresh, made.aux_nAG
            kept = until_end(fresh, max_new_tokens - len(tokens), ends)
            tokens += kept
            rounds.append(len(kept))
            accepted.append(min(len(fresh) - 1, len(kept)))
            drafting += made.drafting
        ended = now()
    return Decoded(tokens, known.since(begun), ended.since(known), rounds, accepted, drafting)


@dataclass
class _Verifier:
    stream: TargetStream
    drafts: DraftStream
    draft_tokens: int
    tree: TreeShape | None
    sampling: Sampling
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.generator.manual_seed(self.sampling.seed)

    def prefill(self, prompt: Sequence[int]) -> tuple[int, Tensor]:
        """(the first token, the aux state [1, A*G] that the drafter learns it with)."""
        if self.sampling.is_greedy:
            (first,), aux_nAG = self.stream.read(prompt, last_only=True)
        else:
            hidden_nG, aux_nAG = self.stream.read_states(prompt)
            first = draw(self._wanted(hidden_nG[-1:])[0], self.generator)
        if len(prompt) > 1:
            self.drafts.learn(aux_nAG[:-1], prompt[1:])
        return first, aux_nAG[-1:]

    def round(self, aux_nAG: Tensor, fresh: Sequence[int]) -> Round:
        before = now()
        self.drafts.learn(aux_nAG, fresh)
        if self.tree is not None:
            return self._tree_round(fresh[-1], self.tree, before.cpu)
        if self.sampling.is_greedy:
            proposed = self.drafts.propose(self.draft_tokens)
            drafting = now().since(before).cpu
            greedy, aux_nAG = self.stream.read([fresh[-1], *proposed])
            made = greedy[: leading_matches(proposed, greedy) + 1]
        else:
            proposed, drafted_DV = self.drafts.propose_sampled(
                self.draft_tokens, self.sampling.temperature, self.generator
            )
            drafting = now().since(before).cpu
            hidden_nG, aux_nAG = self.stream.read_states([fresh[-1], *proposed])
            made = accept_chain(proposed, drafted_DV, self._wanted(hidden_nG), self.generator)
        self.stream.trim(self.stream.length - len(proposed) + len(made) - 1)
        return Round(made, aux_nAG[: len(made)], drafting)

    def _tree_round(self, root: int, shape: TreeShape, before_cpu: float) -> Round:
        tree = self.drafts.propose_tree(root, shape)
        drafting = now().cpu - before_cpu
        start = self.stream.length
        hidden_nG, aux_nAG = self.stream.read_tree(tree.tokens, tree.depths, tree.ancestry_NN())
        greedy = self.stream.greedy(hidden_nG) if self.sampling.is_greedy else []
        path, made = [0], list[int]()
        while True:
            children = tree.children(path[-1])
            candidates = [tree.tokens[child] for child in children]
            if self.sampling.is_greedy:
                token = greedy[path[-1]]
                index = candidates.index(token) if token in candidates else None
            else:
                wanted_V = self._wanted(hidden_nG[path[-1], None])[0]
                index, token = accept_candidate(candidates, wanted_V, self.generator)
            made.append(token)
            if index is None:
                break
            path.append(children[index])
        self.stream.keep_path(start, path)
        return Round(made, aux_nAG[path], drafting)

    def _wanted(self, hidden_nG: Tensor) -> Tensor:
        return distribution(self.stream.logits(hidden_nG), self.sampling.temperature)
