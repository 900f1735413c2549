"""The recipe: what the user decides, one strict YAML a run.

Each section is the options dataclass of its stage, so a setting's meaning and default stand beside the
code that uses it. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from eyas.bench.options import BenchOptions
from eyas.core.errors import EyasError
from eyas.core.options import options
from eyas.drafter.options import TrainOptions
from eyas.export.options import ExportOptions
from eyas.generate.options import DatasetChoice, GenerateOptions
from eyas.merge.options import MergeOptions
from eyas.states.options import ExtractOptions
from eyas.tokenize.options import TokenizeOptions
from eyas.vocab.options import VocabOptions


@options
class DatasetEntry:
    """One dataset of a recipe. path: relative to the recipe's folder."""

    name: str
    path: str
    role: Literal["train", "heldout"] = "train"
    """Held-out rows are measured on, and never counted or trained on."""
    cap: int | None = None
    """Most conversations to take, drawn by a hash of seed, dataset and id."""
    sample: float | None = None
    """Share of the conversations to take (0..1], drawn before the cap."""
    answers: Literal["generate", "given"] = "generate"
    """Let the target answer, or keep the answers that the file holds."""


@options
class Recipe:
    """A run. target: a local checkpoint folder, or `demo`."""

    name: str
    target: str
    datasets: tuple[DatasetEntry, ...]
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    tokenisation: TokenizeOptions = field(default_factory=TokenizeOptions)
    merge: MergeOptions = field(default_factory=MergeOptions)
    states: ExtractOptions = field(default_factory=ExtractOptions)
    vocabulary: VocabOptions = field(default_factory=VocabOptions)
    training: TrainOptions = field(default_factory=TrainOptions)
    export: ExportOptions = field(default_factory=ExportOptions)
    bench: BenchOptions = field(default_factory=BenchOptions)

    @property
    def generate_options(self) -> GenerateOptions:
        choices = tuple(
            DatasetChoice(name=d.name, cap=d.cap, sample=d.sample, answers=d.answers) for d in self.datasets
        )
        return dataclasses.replace(self.generation, datasets=choices)

    @property
    def merge_options(self) -> MergeOptions:
        heldout = tuple(d.name for d in self.datasets if d.role == "heldout")
        return dataclasses.replace(self.merge, heldout=heldout)


def read_recipe(file: Path) -> Recipe:
    """Read and check a recipe; EyasError for anything that is not exactly right."""
    import yaml
    from pydantic import TypeAdapter, ValidationError

    if not file.is_file():
        raise EyasError(
            "the recipe does not exist", file=file, mend="give the path of a recipe, say recipes/demo.yaml"
        )
    try:
        fields = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise EyasError(
            "the recipe is not valid YAML", file=file, found=str(error).replace("\n", " ")
        ) from error
    try:
        # JSON mode is strict about types and still reads a list as a tuple
        recipe = TypeAdapter(Recipe).validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        raise _explain(error.errors()[0], file) from error
    _check(recipe, file)
    return recipe


def _check(recipe: Recipe, file: Path) -> None:
    names = [d.name for d in recipe.datasets]
    roles = {d.role for d in recipe.datasets}
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise EyasError(
            "two datasets have one name", file=file, record=repeated[0], mend="rename one of them"
        )
    if "train" not in roles:
        raise EyasError(
            "no dataset is for training", file=file, mend="give a dataset without `role: heldout`"
        )
    if "heldout" not in roles:
        raise EyasError(
            "no dataset is held out, so nothing could be measured",
            file=file,
            mend="give a dataset `role: heldout`: other prompts of the same kinds",
        )
    for section, key, where in (
        ("generation", "datasets", "datasets"),
        ("merge", "heldout", "role: heldout"),
    ):
        if getattr(getattr(recipe, section), key):
            raise EyasError(
                f"`{section}.{key}` is set by the datasets of the recipe",
                file=file,
                mend=f"use {where} instead",
            )


def _explain(problem: Any, file: Path) -> EyasError:
    """The first problem that pydantic found, in our own form."""
    path = [str(part) for part in problem["loc"]]
    where = ".".join(path) or "the whole file"
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.0)
        return EyasError(
            f"the recipe has an unknown key `{where}`",
            file=file,
            record=where,
            expected=f"one of {', '.join(known)}",
            found=path[-1],
            mend=f"did you mean `{near[0]}`?" if near else "remove it",
        )
    missing = problem["type"] in ("missing", "missing_argument")
    return EyasError(
        f"the recipe lacks `{where}`" if missing else f"the recipe's `{where}` is wrong",
        file=file,
        record=where,
        expected=problem["msg"],
        found=None if missing else _short(problem.get("input")),
        mend="add it" if missing else "correct the value",
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _known_keys(path: list[str]) -> list[str]:
    """The keys that the section at `path` may have."""
    section: Any = Recipe
    for part in path:
        if part == "datasets":
            section = DatasetEntry
        elif not part.isdigit():
            default = next(f for f in dataclasses.fields(section) if f.name == part)
            section = (
                default.default_factory if dataclasses.is_dataclass(default.default_factory) else section
            )
    return sorted(f.name for f in dataclasses.fields(section))
