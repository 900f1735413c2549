"""`eyas export`: write engine folders from a checkpoint, or check one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from eyas.core.contract import TargetFacts
    from eyas.core.manifest import Manifest

    from .check import CheckReport


def export_command(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="CHECKPOINT", help="A train artefact, one of its steps, or a checkpoint folder."
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="sglang, vllm, speculators or trtllm; may be given several times."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the artefact; one folder an engine in it.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The target: a checkpoint folder, or `demo`.")] = None,
    vocab: Annotated[
        Path | None, typer.Option(help="The vocab artefact, to hold the draft vocabulary against its counts.")
    ] = None,
    boundaries: Annotated[
        str | None, typer.Option(help="Aux boundaries of a bare checkpoint, as 2,15,27.")
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="Drafts a round in the serving command.")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence field of the model card.")] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Check this folder instead of writing one.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="With --check: the method that the server is to be started with.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="With --check: warnings fail too.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is in the output folder.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
) -> None:
    """Write a folder that an engine loads, or replay an engine's loading with --check."""
    from eyas.core.errors import EyasError

    if check is not None:
        _refuse(
            {"CHECKPOINT": checkpoint, "--out": out, "--boundaries": boundaries, "--licence": licence},
            "--check",
        )
        if engine is None or len(engine) != 1:
            raise EyasError(
                "--check replays one engine", found=engine or "none", mend="name it with --engine"
            )
        _check(check, engine[0], target, vocab, method, strict, as_json)
        return
    _refuse({"--strict": strict or None, "--method": method}, "an export")
    if checkpoint is None or out is None or not engine:
        raise EyasError(
            "an export needs a checkpoint, an engine and a folder to write to",
            mend="eyas export CHECKPOINT --engine vllm --out DIR, or eyas export --check DIR --engine vllm",
        )
    manifest = _export(checkpoint, engine, out, target, vocab, boundaries, draft_tokens, licence, overwrite)
    _show_export(manifest, out, as_json)


def _refuse(given: dict[str, Any], why: str) -> None:
    """An option that would have no effect is a mistake."""
    from eyas.core.errors import EyasError

    for name, value in given.items():
        if value is not None:
            raise EyasError(f"{name} has no effect with {why}", mend=f"leave {name} out")


def _export(
    checkpoint: Path,
    engines: list[str],
    out: Path,
    target: str | None,
    vocab: Path | None,
    boundaries: str | None,
    draft_tokens: int | None,
    licence: str | None,
    overwrite: bool,
) -> Manifest:
    from eyas.core.artefact import Out
    from eyas.core.contract import target_source
    from eyas.core.manifest import artefact_source
    from eyas.core.options import overridden

    from .checkpoint import checkpoint_source
    from .options import ExportOptions
    from .stage import run

    options = overridden(
        ExportOptions(engines=tuple(dict.fromkeys(engines))),
        draft_tokens=draft_tokens,
        licence=licence,
        boundaries=_numbers(boundaries),
    )
    inputs = {
        "train": checkpoint_source(checkpoint),
        "target": target_source(_target_of(checkpoint, target)),
        **({"vocab": artefact_source(vocab, "vocab")} if vocab else {}),
    }
    return run(options, inputs, Out(out, name=out.name, overwrite=overwrite))


def _target_of(checkpoint: Path, given: str | None) -> Path:
    """The target given, else the demo's if the drafter was trained for that."""
    from eyas.core.contract import target_source
    from eyas.core.errors import EyasError
    from eyas.core.manifest import read_manifest
    from eyas.engines.demo import demo_folder
    from eyas.pipeline import target_folder

    if given is not None:
        return target_folder(given, Path())
    for folder in (checkpoint, checkpoint.parent):
        manifest = read_manifest(folder) if folder.is_dir() else None
        if manifest is not None and demo_folder().is_dir():
            demo = target_source(demo_folder())
            if manifest.inputs.get("target") == demo.fingerprint:
                return demo.path
    raise EyasError(
        "the target of this checkpoint is not known: artefacts hold no paths",
        file=checkpoint,
        mend="give it with --target",
    )


def _show_export(manifest: Manifest, out: Path, as_json: bool) -> None:
    from eyas.report.run import stage_object
    from eyas.report.text import print_json

    if as_json:
        print_json(stage_object(manifest, out))
        return
    for engine in manifest.options["engines"]:
        print(f"{out / engine}: layer ids {manifest.actual['layer_ids'][engine]}, {manifest.actual['dtype']}")


def _check(
    path: Path,
    engine: str,
    target: str | None,
    vocab: Path | None,
    method: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    import orjson

    from eyas.core.contract import read_facts
    from eyas.core.errors import FaultFound
    from eyas.pipeline import target_folder

    from .check import check
    from .coverage import read_counts
    from .layer_ids import require_engine
    from .reading import engine_folder

    require_engine(engine)
    facts: TargetFacts | None = None if target is None else read_facts(target_folder(target, Path()))
    folder = engine_folder(path, engine)
    report = check(folder, engine, facts, None if vocab is None else read_counts(vocab), method)
    if as_json:
        print(orjson.dumps(report.plain(strict), option=orjson.OPT_INDENT_2).decode())
    else:
        _show_check(report)
    if report.passed(strict):
        return
    if as_json:
        raise typer.Exit(FaultFound.exit_code)
    found = report.faults or report.warnings
    raise FaultFound(
        f"{engine} would not read this drafter as it is meant: {len(found)} found",
        file=folder,
        found=found[0],
        mend="export the checkpoint again with `eyas export`",
    )


def _show_check(report: CheckReport) -> None:
    width = max((len(line.tensor) for line in report.tensors), default=0)
    for line in report.tensors:
        print(f"{line.tensor:<{width}}  {line.fate:<8} {line.why}".rstrip())
    for kind, texts in (
        ("fault", report.faults),
        ("mind", report.warnings),
        ("not checked", report.unchecked),
    ):
        for text in texts:
            print(f"{kind}: {text}")
    if not report.faults:
        print(f"{report.engine} reads {report.folder} as it is meant")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    from eyas.core.errors import EyasError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise EyasError("not a list of numbers", expected="as 2,15,27", found=text) from error
