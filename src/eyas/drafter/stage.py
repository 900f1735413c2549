"""The train stage: hidden states and a draft vocabulary -> a drafter and its walk over the held-out rows.

The artefact holds `step-XXXXXX/` (model.safetensors, config.json, state.json) of the last step,
`walk.json`, the walk of that drafter over the held-out rows, and `log.jsonl`, a line a step.
Checkpoints that depend on the clock lie under `parts/` and go when the artefact is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
from safetensors.torch import load_file
from torch import Tensor

from eyas.core.artefact import PARTS, Out, Workbench, open_workbench
from eyas.core.contract import TargetFacts, read_facts
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, Source, measured, require_manifest
from eyas.states.store import StateStore

from .checkpoint import CONFIG, STATE, WEIGHTS, folder_name, save_checkpoint
from .config import DrafterConfig
from .init import copy_head, init_from_target, init_random, init_ridge
from .log import read_log, tail_means
from .loss import TeacherHead
from .network import Drafter
from .options import STAGE, VERSION, TrainOptions
from .target_weights import TargetWeights
from .terms import term_counts
from .trainer import LOG, Trainer, using_threads
from .walk import Walk, walk_store

WALK = "walk.json"
_VOCABULARY = "vocab.safetensors"


def run(options: TrainOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Train on `extract` with the vocabulary of `vocab` for the target in folder `target`.

    Raises EyasError where the inputs do not fit together or hold nothing to train on.
    """
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            return bench
        facts = read_facts(inputs["target"].path)
        store = StateStore(inputs["extract"].path)
        held_out = StateStore(inputs["extract"].path, "eval")
        target_ids_R = read_vocabulary(inputs["vocab"].path, facts)
        config = DrafterConfig.like_target(facts, len(store.boundaries), len(target_ids_R))
        bench.predict(_predicted(options, store, config))
        with using_threads(options.threads):
            drafter, teacher = build(options, config, target_ids_R, facts, store)
            counts, terms = _count(store, drafter.t2d, options.ttt_steps)
            trainer = Trainer(drafter, store, teacher, options, bench.folder / PARTS)
            trainer.run()
            walk = walk_store(drafter, held_out, options.walk_drafts)
        return _publish(bench, trainer, walk, counts, terms, store.boundaries)


def read_vocabulary(folder: Path, facts: TargetFacts) -> Tensor:
    """The target ids of the draft vocabulary [R], rising, from a vocab artefact."""
    require_manifest(folder, "vocab")
    tensors = load_file(folder / _VOCABULARY)
    ids_R = tensors["target_ids"]
    if len(tensors["t2d"]) != facts.vocab_size:
        raise EyasError(
            "the draft vocabulary is of another target",
            file=folder / _VOCABULARY,
            expected=f"{facts.vocab_size} target ids",
            found=len(tensors["t2d"]),
            mend="make the vocabulary again with `eyas vocab`",
        )
    return ids_R


def build(
    options: TrainOptions, config: DrafterConfig, target_ids_R: Tensor, facts: TargetFacts, store: StateStore
) -> tuple[Drafter, TeacherHead]:
    """The drafter as it stands before the first step, and the teacher's head. Weights in float32."""
    weights = TargetWeights(facts.folder)
    head_VG, bias_V = weights.head(), weights.head_bias()
    rows_RG = head_VG[target_ids_R].float()
    bias_R = None if bias_V is None else bias_V[target_ids_R].float()
    teacher = TeacherHead(rows_RG, bias_R, config.logit_scale, config.soft_cap)
    drafter = Drafter(config)
    drafter.share_embedding(weights.embedding())
    drafter.set_vocabulary(target_ids_R)
    drafter.lm_head.weight.requires_grad_(options.train_head)
    if options.init == "target":
        init_from_target(drafter, weights, facts.num_layers - 1, options.seed)
    elif options.init == "ridge":
        init_ridge(drafter, weights, (store[i] for i in range(len(store))), options.seed)
    else:
        init_random(drafter, options.seed)
    if options.init != "random" or not options.train_head:
        copy_head(drafter, rows_RG)
    return drafter, teacher


def _predicted(options: TrainOptions, store: StateStore, config: DrafterConfig) -> dict[str, Any]:
    """From the states' manifest alone: every step is taken for a full one."""
    splits = [output for output in store.manifest.outputs if output.file.startswith("states-")]
    rows, tokens = (sum(getattr(output, name) or 0 for output in splits) for name in ("rows", "tokens"))
    return {
        "rows": rows * options.epochs,
        "tokens": tokens * options.epochs,
        "steps": -(-tokens * options.epochs // options.tokens_per_step),
        "parameters": config.num_parameters,
    }


def _count(store: StateStore, t2d_V: Tensor, num_steps: int) -> tuple[Counts, list[int]]:
    """Rows with and without a term, and N_k of one epoch."""
    counts, totals = Counts(), [0] * num_steps
    for index in range(len(store)):
        _ids_T, mask_T, teacher_T = store.tokens(index)
        terms = term_counts(mask_T, teacher_T, t2d_V, num_steps)
        counts.keep() if any(terms) else counts.drop("no_term")
        totals = [total + n for total, n in zip(totals, terms, strict=True)]
    counts.require(0.0, "training", "look at the loss masks and at the coverage of the draft vocabulary")
    return counts, totals


def _publish(
    bench: Workbench, trainer: Trainer, walk: Walk, counts: Counts, terms: list[int], boundaries: list[int]
) -> Manifest:
    position, options = trainer.position, trainer.options
    final = folder_name(position.step)
    figures = {"accept_length": walk.accept_length, "drafts": walk.drafts, "ttt_steps": options.ttt_steps}
    save_checkpoint(bench.folder / final, trainer.drafter, None, position, figures)
    write_whole(bench.folder / WALK, orjson.dumps(walk.plain(), option=orjson.OPT_INDENT_2) + b"\n")
    shutil.copyfile(trainer.folder / LOG, bench.folder / LOG)
    lines = read_log(bench.folder / LOG)
    assert [sum(line["terms"][k] for line in lines) for k in range(len(terms))] == [
        n * options.epochs for n in terms
    ]
    files = [f"{final}/{name}" for name in (CONFIG, WEIGHTS, STATE)] + [WALK, LOG]
    actual = {
        "checkpoint": final,
        "steps": position.step,
        "skipped_steps": position.skipped,
        "rows": sum(len(line["rows"]) for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
        "terms": [n * options.epochs for n in terms],
        "parameters": trainer.drafter.config.num_parameters,
        "trained_parameters": sum(p.numel() for p in trainer.drafter.parameters() if p.requires_grad),
        "final_cross_entropy": tail_means(lines, "cross_entropy"),
        "final_accuracy": tail_means(lines, "accuracy"),
        "accept_length": walk.accept_length,
        "accept_length_by_dataset": walk.by_dataset,
        "ceiling": walk.plain()["ceiling"],
        "drafts": walk.drafts,
        "accuracy": walk.accuracy.plain(),
        "boundaries": list(boundaries),
    }
    return bench.publish([measured(bench.folder, file) for file in files], counts, actual)
