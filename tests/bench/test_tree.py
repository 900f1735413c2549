"""Draft trees: their shape, and that decoding with them is the target's own greedy text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toy
from eyas.bench import draft
from eyas.bench.decoded import Decoded
from eyas.bench.decoder import decode
from eyas.bench.target import TargetStream
from eyas.bench.tree import DraftTree, TreeBuilder, TreeShape
from eyas.core.rows import TokenRow
from eyas.drafter.network import Drafter
from eyas.engines.hf import HfTarget

SHAPES = [TreeShape(1, 3, 3), TreeShape(3, 2, 6), TreeShape(3, 4, 10), TreeShape(5, 3, 8)]


def decoded(target: HfTarget, drafter: Drafter, row: TokenRow, shape: TreeShape) -> Decoded:
    labels = row.num_labels
    prompt = row.input_ids[:-labels]
    return decode(target, drafter, toy.BOUNDARIES, prompt, shape.depth, labels, tree=shape)


def accept_length(all_decoded: list[Decoded]) -> float:
    rounds = [n for of in all_decoded for n in of.rounds]
    return sum(rounds) / len(rounds)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tree_leaves_the_output_as_generate_makes_it(
    target: HfTarget, good: Drafter, rows: list[TokenRow], shape: TreeShape
) -> None:
    for row in rows:
        made = decoded(target, good, row, shape)
        assert made.tokens == row.input_ids[-row.num_labels :], "a tree changed what the target says"
        assert sum(made.rounds) == len(made.tokens) - 1


def test_a_random_drafters_tree_leaves_the_output_as_it_is(
    target: HfTarget, chance: Drafter, rows: list[TokenRow]
) -> None:
    for row in rows:
        assert decoded(target, chance, row, SHAPES[2]).tokens == row.input_ids[-row.num_labels :]


def test_a_tree_of_width_one_is_the_chain(target: HfTarget, good: Drafter, rows: list[TokenRow]) -> None:
    for row in rows:
        prompt = row.input_ids[: -row.num_labels]
        chain = decode(target, good, toy.BOUNDARIES, prompt, 3, row.num_labels)
        assert decoded(target, good, row, TreeShape(3, 1, 3)).rounds == chain.rounds


def test_a_wide_tree_accepts_more_than_a_chain(target: HfTarget, good: Drafter, rows: list[TokenRow]) -> None:
    spoiled = toy.chance_drafter(target.facts.folder)
    spoiled.load_state_dict(good.state_dict())
    with torch.no_grad():
        noise = torch.Generator().manual_seed(0)
        weight = spoiled.lm_head.weight
        weight += torch.randn(weight.shape, generator=noise) * weight.std() * 2.5
    chain = [decoded(target, spoiled, row, TreeShape(3, 1, 3)) for row in rows]
    tree = [decoded(target, spoiled, row, TreeShape(3, 6, 30)) for row in rows]
    assert accept_length(tree) > accept_length(chain) + 0.1


def test_no_round_of_a_tree_reads_the_prefix_again(
    target: HfTarget, good: Drafter, rows: list[TokenRow]
) -> None:
    read: list[int] = []
    handle = target.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    made = decoded(target, good, rows[0], TreeShape(3, 2, 6))
    handle.remove()
    prompt = len(rows[0].input_ids) - rows[0].num_labels
    assert read == [prompt] + [7] * len(made.rounds)


def test_a_node_that_sees_its_siblings_is_noticed(
    target: HfTarget, good: Drafter, rows: list[TokenRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DraftTree, "ancestry_NN", lambda self: torch.ones(len(self.tokens), len(self.tokens)).tril().bool()
    )
    outputs = [decoded(target, good, row, SHAPES[2]).tokens for row in rows]
    assert outputs != [row.input_ids[-row.num_labels :] for row in rows], "a leaking mask went unnoticed"


def test_a_cache_that_keeps_the_wrong_path_is_noticed(
    target: HfTarget, good: Drafter, rows: list[TokenRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = TargetStream.keep_path
    monkeypatch.setattr(
        TargetStream, "keep_path", lambda self, start, path: keep(self, start, range(len(path)))
    )
    outputs = [decoded(target, good, row, SHAPES[2]).tokens for row in rows]
    assert outputs != [row.input_ids[-row.num_labels :] for row in rows]


def test_draft_nodes_see_their_ancestors_alone(chance: Drafter) -> None:
    """The likeliest child of each node is the greedy draft of a chain that is fed the node's own path."""
    with torch.no_grad():  # attention that decides what is drafted
        for name, parameter in chance.midlayer.named_parameters():
            parameter.mul_(20 if "attn" in name else 5)
    with torch.inference_mode():
        for seed in range(4):
            tree = stream_after(chance, seed).propose_tree(20, TreeShape(3, 4, 40))
            for node in range(len(tree.tokens)):
                children, path = tree.children(node), path_to(tree, node)
                if children:
                    assert forced(stream_after(chance, seed), path) == tree.tokens[children[0]], (
                        "a mask leaks"
                    )


def path_to(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node > 0:
        path.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return path


def stream_after(drafter: Drafter, seed: int) -> draft.DraftStream:
    aux = torch.randn(6, len(toy.BOUNDARIES) * 32, generator=torch.Generator().manual_seed(seed))
    stream = draft.DraftStream(drafter, 64)
    stream.learn(aux, [10, 12, 13, 14, 16, 20])
    return stream


def forced(stream: draft.DraftStream, path: list[int]) -> int:
    """The greedy draft after the drafts of `path`."""
    drafts: list[int] = []
    for logits in stream._chain(len(path) + 1, drafts):
        drafts += path[len(drafts) : len(drafts) + 1] or stream._target_ids_R[logits.argmax(-1)].tolist()
    return drafts[-1]


@given(depth=st.integers(1, 4), width=st.integers(1, 4), extra=st.integers(0, 12), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_the_kept_nodes_are_a_tree_of_the_most_confident(
    depth: int, width: int, extra: int, seed: int
) -> None:
    shape = TreeShape(depth, width, depth + extra)
    builder, generator = TreeBuilder(7, shape), torch.Generator().manual_seed(seed)
    for _ in range(depth):
        logits = torch.randn(len(builder.frontier), 9, generator=generator)
        best = logits.log_softmax(-1).topk(width)
        builder.grow(best.indices, best.values)
    tree = builder.finish()
    assert tree.tokens[0] == 7
    assert 1 < len(tree.tokens) <= shape.nodes + 1
    for node in range(1, len(tree.tokens)):
        parent = tree.parents[node]
        assert parent < node
        assert tree.depths[node] == tree.depths[parent] + 1
        siblings = tree.children(parent)
        assert len({tree.tokens[s] for s in siblings}) == len(siblings), "a token would be tried twice"
    sees = tree.ancestry_NN()
    assert sees.sum(1).tolist() == [d + 1 for d in tree.depths]
