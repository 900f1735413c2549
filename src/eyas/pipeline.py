"""The chain of stages. plan, run, status and verify are walks over it.

Every stage's address follows from the recipe before anything runs: a step's fingerprint takes its
upstream's fingerprints, never their files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.core.artefact import UNITS, Out, remove_scaffolding
from eyas.core.contract import target_source
from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, Source, file_source, fingerprint, read_manifest
from eyas.drafter.start import drafter_source
from eyas.recipe import Recipe

STAGES = ("generate", "tokenize", "merge", "extract", "vocab", "train", "export", "bench")

_ROOMS = {"extract": "states", "train": "drafter"}


@dataclass(frozen=True)
class Step:
    """One stage of a recipe: its options, what it reads, and where its artefact is or will be."""

    name: str
    options: Any
    inputs: dict[str, Source]
    source: Source

    @property
    def folder(self) -> Path:
        return self.source.path

    def run(self, out: Out) -> Manifest:
        """Do the stage's work; only here are its module, and torch, imported."""
        module = importlib.import_module(f"eyas.{room(self.name)}.stage")
        done: Manifest = module.run(self.options, self.inputs, out)
        return done

    @property
    def manifest(self) -> Manifest | None:
        return read_manifest(self.folder) if self.folder.is_dir() else None

    @property
    def units_done(self) -> int:
        """Lines of the unit log of a step that was begun."""
        log = self.folder / UNITS
        return log.read_bytes().count(b"\n") if log.exists() else 0


def default_workspace(recipe: Recipe) -> Path:
    return Path("runs") / recipe.name


def chain(recipe: Recipe, recipe_file: Path, workspace: Path) -> list[Step]:
    """The steps of a recipe in order, each with its address."""
    target = target_source(target_folder(recipe.target, recipe_file.parent))
    data = {f"dataset:{d.name}": file_source(recipe_file.parent / d.path) for d in recipe.datasets}
    steps: dict[str, Step] = {}

    def add(name: str, options: Any, **inputs: Source) -> Source:
        version = importlib.import_module(f"eyas.{room(name)}.options").VERSION
        digest = fingerprint(
            name, version, options, {role: source.fingerprint for role, source in inputs.items()}
        )
        source = Source(_find(workspace, name, digest, recipe.name), digest)
        steps[name] = Step(name, options, inputs, source)
        return source

    generate = add("generate", recipe.generate_options, target=target, **data)
    tokenize = add("tokenize", recipe.tokenisation, generate=generate, target=target)
    merge = add("merge", recipe.merge_options, tokenize=tokenize)
    extract = add("extract", recipe.states, merge=merge, target=target)
    vocab = add("vocab", recipe.vocabulary, merge=merge, target=target)
    start = {}
    if recipe.training.start:
        start["start"] = drafter_source(recipe_file.parent / Path(recipe.training.start).expanduser())
    train = add("train", recipe.training, extract=extract, vocab=vocab, target=target, **start)
    export = add("export", recipe.export, train=train, vocab=vocab, target=target)
    add("bench", recipe.bench, export=export, extract=extract, merge=merge, train=train, target=target)
    return [steps[name] for name in STAGES]


def target_folder(target: str, beside: Path) -> Path:
    """The checkpoint folder that a recipe or an option names; a relative path is taken from `beside`.

    `demo` must have been prepared (`eyas target demo`).
    """
    if target != "demo":
        return beside / Path(target).expanduser()
    from eyas.engines.demo import demo_folder

    folder = demo_folder()
    if not folder.is_dir():
        raise EyasError(
            "the demo target is not there yet", file=folder, mend="run `eyas target demo` (93 MB, a minute)"
        )
    return folder


def room(stage: str) -> str:
    """The package of a stage. Its `options` module is light; its `stage` module may import torch."""
    return _ROOMS.get(stage, stage)


def run(
    steps: list[Step], name: str, until: str | None, begin: str | None
) -> Iterator[tuple[Step, Manifest, bool]]:
    """Run the steps; (step, manifest, reused) of each as it is complete.

    until: the last stage to run. begin: this stage and later ones run anew, earlier ones must be complete.
    """
    wanted = STAGES[: STAGES.index(_known(until)) + 1] if until else STAGES
    first = STAGES.index(_known(begin)) if begin else 0
    for step in steps[: len(wanted)]:
        position = STAGES.index(step.name)
        before = step.manifest
        if before is None and begin and position < first:
            raise EyasError(
                f"{step.name} is not complete, so --from {begin} cannot begin there",
                file=step.folder,
                mend=f"run without --from, or with --from {step.name}",
            )
        if before is not None and (begin is None or position < first):
            remove_scaffolding(step.folder)
            yield step, before, True
        else:
            yield step, step.run(Out(step.folder, name, anew=before is not None)), False


def _known(stage: str) -> str:
    if stage not in STAGES:
        raise EyasError(
            f"there is no stage {stage!r}", expected=", ".join(STAGES), mend="name one of the stages"
        )
    return stage


def _find(workspace: Path, stage: str, digest: str, name: str) -> Path:
    """An artefact is found by stage and fingerprint, whatever the name in front."""
    short = digest[:12]
    own = workspace / stage / f"{name}-{short}"
    found = sorted(path for path in (workspace / stage).glob(f"*-{short}") if not path.name.startswith("."))
    return own if own in found or not found else found[0]
