"""Draft trees: what a round proposes when it branches, as in EAGLE-2 (arXiv 2406.16858).

Each step keeps the `width` nodes of the highest confidence, the product of the drafter's probabilities from the
root on, and expands each by its `width` likeliest tokens; of all nodes the `nodes` most confident are verified.
Node 0 is the round's last true token; parents stand before their children.

Shapes: N nodes, the root included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TreeShape:
    """depth: drafts from the root to a leaf. width: tokens that a node is expanded by, and nodes that are expanded
    in each step. nodes: drafts that the target verifies in a round."""

    depth: int
    width: int
    nodes: int

    def __post_init__(self) -> None:
        assert self.depth >= 1
        assert self.width >= 1
        assert self.nodes >= self.depth, "a tree smaller than a chain would forget its deepest drafts"


@dataclass(frozen=True)
class DraftTree:
    """tokens, parents and depths of each node; the root's parent is -1."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]

    def children(self, node: int) -> list[int]:
        """In the order of their confidence."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def ancestry_NN(self) -> Tensor:
        """bool [N, N]: node i sees node j, that is, j is i or one of its ancestors."""
        sees = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                sees[node] |= sees[parent]
        return sees


class TreeBuilder:
    """Grows a tree level by level and prunes it to the most confident nodes."""

    def __init__(self, root: int, shape: TreeShape) -> None:
        self.shape = shape
        self._tokens, self._parents, self._depths = [root], [-1], [0]
        self._confidence = [0.0]
        self.frontier = [0]

    def token(self, node: int) -> int:
        return self._tokens[node]

    def parent(self, node: int) -> int:
        return self._parents[node]

    def grow(self, target_ids_wk: Tensor, log_probabilities_wk: Tensor) -> None:
        """Add the likeliest tokens of each frontier node, likeliest first; the best of them are the new frontier."""
        made: list[int] = []
        for node, ids, confidences in zip(
            self.frontier, target_ids_wk.tolist(), log_probabilities_wk.tolist(), strict=True
        ):
            for token, confidence in zip(ids, confidences, strict=True):
                made.append(len(self._tokens))
                self._tokens.append(token)
                self._parents.append(node)
                self._depths.append(self._depths[node] + 1)
                self._confidence.append(self._confidence[node] + confidence)
        self.frontier = sorted(made, key=self._rank)[: self.shape.width]

    def finish(self) -> DraftTree:
        """The most confident nodes. A child is never more confident than its parent and stands behind it, so the
        kept ones are a tree."""
        order = sorted(range(1, len(self._tokens)), key=self._rank)[: self.shape.nodes]
        kept = [0, *sorted(order, key=lambda node: (self._depths[node], *self._rank(node)))]
        place = {node: i for i, node in enumerate(kept)}
        parents = [-1, *(place[self._parents[node]] for node in kept[1:])]
        return DraftTree([self._tokens[n] for n in kept], parents, [self._depths[n] for n in kept])

    def _rank(self, node: int) -> tuple[float, int]:
        return -self._confidence[node], node
