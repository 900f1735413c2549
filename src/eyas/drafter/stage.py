"""The train stage: hidden states and a draft vocabulary -> a drafter and its walk over the held-out rows.

The artefact holds `step-XXXXXX/` (model.safetensors, config.json, state.json) of the last step, or of the best
one where the states have a development split, `walk.json`, the walk of that drafter over the held-out rows, and
`log.jsonl`, a line a step. Checkpoints that depend on the clock lie under `parts/` and go when the artefact is
complete; `tensorboard/` holds curves, differs from run to run and is no part of the artefact.

On several processes the same command is given to torchrun:

    torchrun --nproc-per-node 4 -m eyas train STATES --vocab VOCAB --target TARGET --out DIR
    torchrun --nproc-per-node 4 -m eyas run RECIPE --from train --until train

training.parallel chooses DDP or FSDP2. Every process must see the same folders. Rank 0 owns the artefact and alone
reports on standard output; the others train with it and return its manifest. Ranks sum, so the number of processes
moves the last bits alone, and a run may go on with another number of them. A rank that fails ends the job: torchrun
names its error.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
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

from .checkpoint import CONFIG, STATE, WEIGHTS, Position, folder_name, save_checkpoint
from .config import DrafterConfig, drafter_config
from .coverage import FullHead
from .device import chosen_device, on_device, using_threads
from .distributed import World, joined
from .importers import read_drafter, start_from
from .init import copy_head, init_from_target, init_random, init_ridge
from .log import read_log, tail_means
from .loss import TeacherHead
from .network import Drafter
from .objectives import idle_settings
from .options import STAGE, VERSION, TrainOptions
from .positions import settled
from .prediction import Slots, forward_tokens, memory_terms
from .schedule import Schedule
from .start import drafter_source
from .target_weights import TargetWeights
from .trainer import LOG, Trainer
from .training_rows import TrainingRows, training_rows
from .walk import Walk, walk_store

WALK = "walk.json"
_VOCABULARY = "vocab.safetensors"


def run(options: TrainOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Train on `extract` with the vocabulary of `vocab` for the target in folder `target`, from the drafter `start`
    (start.drafter_source) where there is one.

    Raises EyasError where the inputs do not fit together or hold nothing to train on.
    """
    if options.start and "start" not in inputs:
        inputs = {**inputs, "start": drafter_source(Path(options.start))}
    with joined() as world:
        return (_lead if world.leads else _follow)(options, inputs, out, world)


def _lead(options: TrainOptions, inputs: dict[str, Source], out: Out, world: World) -> Manifest:
    """What rank 0 does: train, walk, publish."""
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            world.told(None)
            return bench
        world.told((bench.folder, bench.head["fingerprint"]))
        work = _prepare(options, inputs, world, bench.folder, bench.head["fingerprint"], bench.predict)
        held_out = StateStore(inputs["extract"].path, "eval")
        with using_threads(options.threads):
            work.run()
            drafter, position = work.chosen()
            head = FullHead(
                TargetWeights(inputs["target"].path), drafter.config.logit_scale, drafter.config.soft_cap
            )
            walk = walk_store(
                drafter, held_out, options.walk_drafts, head=head, temperature=options.walk_temperature
            )
        manifest = _publish(bench, work, drafter, position, walk)
        world.wait()
        return manifest


def _follow(options: TrainOptions, inputs: dict[str, Source], out: Out, world: World) -> Manifest:
    """What the other ranks do: train along, and wait until rank 0 has published."""
    work = world.told(None)
    if work is not None:
        folder, fingerprint = work
        trainer = _prepare(options, inputs, world, folder, fingerprint, lambda predicted: None)
        with using_threads(options.threads):
            trainer.run()
            trainer.chosen()
        world.wait()
    return require_manifest(out.path, STAGE)


def _prepare(
    options: TrainOptions,
    inputs: dict[str, Source],
    world: World,
    folder: Path,
    fingerprint: str,
    predict: Callable[[dict[str, Any]], None],
) -> Trainer:
    """Everything as it stands before the first step."""
    facts = read_facts(inputs["target"].path)
    if world.leads:
        for name in idle_settings(options):
            print(f"train: training.{name} has no effect: it is read by objective lk_lambda", file=sys.stderr)
    states = StateStore(inputs["extract"].path)
    store = training_rows(states, TargetWeights(facts.folder), options)
    target_ids_R = read_vocabulary(inputs["vocab"].path, facts)
    config = drafter_config(options.network, facts, len(store.boundaries), len(target_ids_R))
    config = settled(config, max(store.lengths, default=0))
    predict(_predicted(options, store, config, world.size))
    with using_threads(options.threads):
        drafter, teacher = build(options, config, target_ids_R, facts, store, inputs.get("start"))
        device = chosen_device(options.device)
        trainer = Trainer(
            drafter.to(device),
            store,
            on_device(teacher, device),
            options,
            folder / PARTS,
            _development(inputs["extract"].path, options, world),
            world,
            fingerprint,
            folder,
        )
    _row_counts(trainer.plan)
    return trainer


def _development(extract: Path, options: TrainOptions, world: World) -> StateStore | None:
    store = StateStore(extract, "dev")
    if len(store):
        return store
    if options.evaluate_steps and world.leads:
        text = "train: training.evaluate_steps has no effect: the states have no development split"
        print(f"{text} (merge.dev_fraction makes one)", file=sys.stderr, flush=True)
    return None


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
    options: TrainOptions,
    config: DrafterConfig,
    target_ids_R: Tensor,
    facts: TargetFacts,
    store: StateStore,
    start: Source | None = None,
) -> tuple[Drafter, TeacherHead]:
    """The drafter as it stands before the first step, and the teacher's head. Weights in float32."""
    if config.has_own_embedding and not options.train_head:
        raise EyasError(
            "a drafter of another width than the target needs a head of its own",
            expected=f"hidden size {config.target_hidden_size}, or a trained head",
            found=f"hidden size {config.hidden_size} with the target's head",
            mend="set training.train_head to true",
        )
    weights = TargetWeights(facts.folder)
    head_VG, bias_V = weights.head(), weights.head_bias()
    rows_RG = head_VG[target_ids_R].float()
    bias_R = None if bias_V is None else bias_V[target_ids_R].float()
    teacher = TeacherHead(rows_RG, bias_R, config.logit_scale, config.soft_cap)
    drafter = Drafter(config)
    if not config.has_own_embedding:
        drafter.share_embedding(weights.embedding())
    drafter.set_vocabulary(target_ids_R)
    drafter.lm_head.weight.requires_grad_(options.train_head)
    if start is not None:
        start_from(drafter, read_drafter(start.path, config), rows_RG, store.boundaries)
        return drafter, teacher
    if options.init == "target":
        init_from_target(drafter, weights, facts.num_layers - 1, options.seed)
    elif options.init == "ridge":
        init_ridge(drafter, weights, (store[i] for i in range(len(store))), options.seed)
    else:
        init_random(drafter, options.seed)
    if options.init != "random" or not options.train_head:
        copy_head(drafter, rows_RG)
    return drafter, teacher


def _predicted(
    options: TrainOptions, store: StateStore, config: DrafterConfig, processes: int
) -> dict[str, Any]:
    """From the states' manifest alone: every step is taken for a full one."""
    splits = [output for output in store.manifest.outputs if output.file.startswith("states-")]
    rows, tokens = (sum(getattr(output, name) or 0 for output in splits) for name in ("rows", "tokens"))
    slots = Slots.most(forward_tokens(options, store.lengths, processes), options.ttt_steps)
    return {
        "rows": rows * options.epochs,
        "tokens": tokens * options.epochs,
        "steps": -(-tokens * options.epochs // options.tokens_per_step),
        "parameters": config.num_parameters,
        "memory": memory_terms(config, options, slots, processes=processes),
    }


def _row_counts(plan: Schedule) -> Counts:
    """Rows with and without a term; EyasError if there is none to train on."""
    counts = Counts()
    for terms in plan.terms_RK.any(1).tolist():
        counts.keep() if terms else counts.drop("no_term")
    counts.require(0.0, "training", "look at the loss masks and at the coverage of the draft vocabulary")
    return counts


def _publish(
    bench: Workbench, trainer: Trainer, drafter: Drafter, position: Position, walk: Walk
) -> Manifest:
    plan, options = trainer.plan, trainer.options
    assert isinstance(trainer.store, TrainingRows)
    final = folder_name(position.step)
    figures = {"accept_length": walk.accept_length, "drafts": walk.drafts, "ttt_steps": options.ttt_steps}
    save_checkpoint(bench.folder / final, drafter, None, position, figures)
    write_whole(bench.folder / WALK, orjson.dumps(walk.plain(), option=orjson.OPT_INDENT_2) + b"\n")
    shutil.copyfile(trainer.folder / LOG, bench.folder / LOG)
    lines = read_log(bench.folder / LOG)
    terms = [int(n) * options.epochs for n in plan.terms_RK.sum(0)]
    assert [sum(line["terms"][k] for line in lines) for k in range(len(terms))] == terms
    files = [f"{final}/{name}" for name in (CONFIG, WEIGHTS, STATE)] + [WALK, LOG]
    trained = plan.terms_RK.any(1).tolist()
    actual = {
        "checkpoint": final,
        "steps": trainer.position.step,
        "skipped_steps": trainer.position.skipped,
        "rows": sum(len(line["rows"]) for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
        "terms": terms,
        "trained_length": max(length for length, has in zip(plan.lengths, trained, strict=True) if has),
        "parameters": drafter.config.num_parameters,
        "trained_parameters": sum(p.numel() for p in trainer.drafter.parameters() if p.requires_grad),
        "attention": trainer.attention,
        "cuts": trainer.store.cuts,
        "final_cross_entropy": tail_means(lines, "cross_entropy"),
        "final_accuracy": tail_means(lines, "accuracy"),
        "best": asdict(trainer.best) if trainer.best else None,
        "accept_length": walk.accept_length,
        "accept_length_by_dataset": walk.by_dataset,
        "accept_length_by_kind": walk.by_kind,
        "ceiling": walk.plain()["ceiling"],
        "coverage": walk.coverage.plain(),
        "drafts": walk.drafts,
        "accuracy": walk.accuracy.plain(),
        "boundaries": list(trainer.store.boundaries),
    }
    notes = {"processes": trainer.world.size, "device": str(trainer.drafter.d2t.device)}
    outputs = [measured(bench.folder, file) for file in files]
    return bench.publish(outputs, _row_counts(plan), actual, notes)
