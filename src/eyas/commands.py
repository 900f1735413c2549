"""Each stage as a command of its own on plain files; `cli.py` registers them.

A command turns its arguments into the stage's options and sources, calls the stage, and prints one line
or one object. Whatever is not given keeps the default of the stage's options.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from eyas.core.manifest import Manifest, Source

Target = Annotated[str, typer.Option(help="The target: a checkpoint folder, or `demo`.")]
OutDir = Annotated[Path, typer.Option("--out", help="Folder of the artefact.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is in the output folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes.")]
Threads = Annotated[int | None, typer.Option(help="Threads of each process.")]
Dtype = Annotated[str | None, typer.Option(help="Number type of the target.")]


def generate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files of prompts; one dataset each.")
    ],
    target: Target,
    out: OutDir,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens that an answer is cut at.")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longer prompts are dropped.")] = None,
    cap: Annotated[int | None, typer.Option(help="Most conversations of each file.")] = None,
    batch_rows: Annotated[int | None, typer.Option(help="Prompts of a fixed batch.")] = None,
    dtype: Dtype = None,
    threads: Threads = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Answer prompts with the target."""
    from eyas.core.manifest import file_source
    from eyas.core.options import overridden
    from eyas.generate.options import DatasetChoice, GenerateOptions
    from eyas.generate.stage import run

    named = _by_stem(files)
    options = overridden(
        GenerateOptions(datasets=tuple(DatasetChoice(name=name, cap=cap) for name in named)),
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        batch_rows=batch_rows,
        dtype=dtype,
        threads=threads,
        workers=workers,
    )
    inputs = {f"dataset:{name}": file_source(path) for name, path in named.items()}
    _report(run(options, {"target": _target(target), **inputs}, _out(out, overwrite)), out, as_json)


def tokenize(
    source: Annotated[Path, typer.Argument(metavar="ANSWERS", help="A generate artefact.")],
    target: Target,
    out: OutDir,
    min_kept: Annotated[float | None, typer.Option(help="Fail if a smaller share is kept.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn answers into token rows with loss masks."""
    from eyas.core.manifest import artefact_source
    from eyas.core.options import overridden
    from eyas.tokenize.options import TokenizeOptions
    from eyas.tokenize.stage import run

    inputs = {"generate": artefact_source(source, "generate"), "target": _target(target)}
    _report(run(overridden(TokenizeOptions(), min_kept=min_kept), inputs, _out(out, overwrite)), out, as_json)


def extract(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="A merge artefact.")],
    target: Target,
    out: OutDir,
    boundaries: Annotated[str | None, typer.Option(help="Aux boundaries, as 2,15,27.")] = None,
    codec: Annotated[str | None, typer.Option(help="bfloat16 or float32.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Padded tokens of a forward.")] = None,
    shard_tokens: Annotated[int | None, typer.Option(help="Tokens that close a shard.")] = None,
    dtype: Dtype = None,
    threads: Threads = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Store the target's hidden states of a corpus."""
    from eyas.core.manifest import artefact_source
    from eyas.core.options import overridden
    from eyas.states.options import ExtractOptions
    from eyas.states.stage import run

    options = overridden(
        ExtractOptions(),
        boundaries=_numbers(boundaries),
        codec=codec,
        batch_tokens=batch_tokens,
        shard_tokens=shard_tokens,
        dtype=dtype,
        threads=threads,
        workers=workers,
    )
    inputs = {"merge": artefact_source(corpus, "merge"), "target": _target(target)}
    _report(run(options, inputs, _out(out, overwrite)), out, as_json)


def vocab(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="A merge artefact.")],
    target: Target,
    out: OutDir,
    size: Annotated[int | None, typer.Option(help="Ids that a drafter can emit; 0: all of them.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Choose the draft vocabulary."""
    from eyas.core.manifest import artefact_source
    from eyas.core.options import overridden
    from eyas.vocab.options import VocabOptions
    from eyas.vocab.stage import run

    inputs = {"merge": artefact_source(corpus, "merge"), "target": _target(target)}
    _report(run(overridden(VocabOptions(), size=size), inputs, _out(out, overwrite)), out, as_json)


def train(
    states: Annotated[Path, typer.Argument(metavar="STATES", help="An extract artefact.")],
    vocabulary: Annotated[Path, typer.Option("--vocab", help="A vocab artefact.")],
    target: Target,
    out: OutDir,
    ttt_steps: Annotated[int | None, typer.Option(help="Draft steps unrolled in training.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Visits of each row.")] = None,
    tokens_per_step: Annotated[int | None, typer.Option(help="Token budget of an optimiser step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak of the schedule.")] = None,
    init: Annotated[str | None, typer.Option(help="Where the weights start.")] = None,
    start: Annotated[Path | None, typer.Option(help="A trained drafter's folder to go on from.")] = None,
    seed: Annotated[int | None, typer.Option(help="Order of the rows, initial weights.")] = None,
    threads: Threads = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a drafter; given again, it goes on from its newest checkpoint."""
    from eyas.core.manifest import artefact_source
    from eyas.core.options import overridden
    from eyas.drafter.options import TrainOptions
    from eyas.drafter.stage import run
    from eyas.drafter.start import drafter_source

    options = overridden(
        TrainOptions(),
        ttt_steps=ttt_steps,
        epochs=epochs,
        tokens_per_step=tokens_per_step,
        learning_rate=learning_rate,
        init=init,
        seed=seed,
        threads=threads,
    )
    inputs = {
        "extract": artefact_source(states, "extract"),
        "vocab": artefact_source(vocabulary, "vocab"),
        "target": _target(target),
    }
    if start is not None:
        inputs["start"] = drafter_source(start)
    _report(run(options, inputs, _out(out, overwrite)), out, as_json)


def _by_stem(files: list[Path]) -> dict[str, Path]:
    """Dataset names from file names; two files of one name are a mistake."""
    from eyas.core.errors import EyasError

    named: dict[str, Path] = {}
    for path in files:
        if path.stem in named:
            raise EyasError(
                "two files would be one dataset", file=path, found=str(named[path.stem]), mend="rename one"
            )
        named[path.stem] = path
    return named


def _target(given: str) -> Source:
    from eyas.core.contract import target_source
    from eyas.pipeline import target_folder

    return target_source(target_folder(given, Path()))


def _out(folder: Path, overwrite: bool) -> Any:
    from eyas.core.artefact import Out

    return Out(folder, name=folder.name, overwrite=overwrite)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """Numbers of a comma-separated list; EyasError if one of them is none."""
    from eyas.core.errors import EyasError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise EyasError(
            "not a list of numbers", expected="numbers and commas, as 2,15,27", found=text
        ) from error


def _report(manifest: Manifest, folder: Path, as_json: bool) -> None:
    """What the stage made, in one line or one object."""
    from eyas.report.run import stage_line, stage_object
    from eyas.report.text import print_json

    if as_json:
        print_json(stage_object(manifest, folder))
    else:
        print(stage_line(manifest.stage, manifest, False).strip())
        for reason, number in manifest.counts["dropped"].items():
            print(f"  dropped, {reason}: {number:,}")
