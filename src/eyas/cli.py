"""The command line: parse, call one thing, print one report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from eyas import commands
from eyas.bench.command import bench_command
from eyas.core import env
from eyas.core.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USER, EyasError, FaultFound, disk_error
from eyas.export.command import export_command
from eyas.merge.command import merge_command
from eyas.plan.merge import plan_merge_command
from eyas.report.text import print_json, print_parts

app = typer.Typer(
    name="eyas",
    help="Trains EAGLE-3 drafters: from prompts to a measured speed-up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.")]
Workspace = Annotated[Path | None, typer.Option(help="Folder of the artefacts. (default: runs/<name>)")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@app.command()
def run(
    recipe: RecipeFile,
    until: Annotated[str | None, typer.Option(help="The last stage to run.")] = None,
    begin: Annotated[str | None, typer.Option("--from", help="Run this stage and later ones anew.")] = None,
    workspace: Workspace = None,
    as_json: Json = False,
) -> None:
    """Run a recipe from prompts to a measured accept length; finished stages are reused."""
    from eyas import pipeline
    from eyas.report import run as report

    read, steps = _chain(recipe, workspace)
    _note(f"{read.name}: {len(steps)} stages in {steps[0].folder.parent.parent}")
    ran = []
    for step, manifest, reused in pipeline.run(steps, read.name, until, begin):
        ran.append((step.name, manifest, reused))
        _note(report.stage_line(step.name, manifest, reused))
    if all(reused for _, _, reused in ran):
        _note("nothing to do: every artefact is complete and up to date")
    if env.is_leader():
        _write_report(steps[0].folder.parent.parent, read.name, ran)
    if as_json:
        print_json(report.as_json(ran))
    else:
        print_parts(*report.parts(ran))


plan_app = typer.Typer(
    help="Say what something will do and cost before anything is spent.", no_args_is_help=True
)
app.add_typer(plan_app, name="plan")
plan_app.command("merge")(plan_merge_command)


@plan_app.command("run")
def plan_run(
    recipe: RecipeFile,
    workspace: Workspace = None,
    break_even: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of what `eyas bench --break-even` measured. (default: break-even in the workspace)",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rows, tokens, disk, time and memory of a recipe's run (estimates), and the break-even (measured)."""
    from eyas.plan import break_even as break_evens
    from eyas.plan import run as plans

    read, steps = _chain(recipe, workspace)
    outline = plans.outline(read, recipe, steps)
    target, folder = steps[0].inputs["target"], steps[0].folder.parent.parent
    outline["break_even"] = break_evens.break_even(read, recipe, target, folder, break_even)
    if as_json:
        print_json(outline)
    else:
        print_parts(*plans.tables(outline), *break_evens.parts(outline["break_even"]))


@plan_app.command("train")
def plan_train(
    recipe: RecipeFile,
    workspace: Workspace = None,
    processes: Annotated[int, typer.Option(help="Processes of a job under torchrun.")] = 1,
    as_json: Json = False,
) -> None:
    """Parameters, steps and each term of the memory of a recipe's training."""
    from eyas.plan import training

    read, steps = _chain(recipe, workspace)
    outline = training.outline_recipe(read, recipe, steps, processes)
    print_json(outline) if as_json else print_parts(*training.tables(outline))


@app.command()
def status(recipe: RecipeFile, workspace: Workspace = None, as_json: Json = False) -> None:
    """Show which stages of a recipe are complete, begun or still to do."""
    from eyas.report import status as report

    _, steps = _chain(recipe, workspace)
    found = report.states(steps)
    print_json({"stages": found}) if as_json else print_parts(report.table(found))


@app.command()
def verify(
    what: Annotated[
        Path, typer.Argument(metavar="RECIPE|ARTEFACT", help="A recipe, or an artefact's folder.")
    ],
    workspace: Workspace = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(help="Where the sources of a merged corpus lie now, if they were moved."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read artefacts again and prove them: bytes, digests, lineage. Exit code 1 if anything is wrong."""
    from eyas import verification

    if what.is_dir():
        faults = {str(what): verification.artefact(what, inputs)}
    else:
        _, steps = _chain(what, workspace)
        faults = verification.recipe(steps)
    if as_json:
        print_json({"faults": faults})
    else:
        for name, found in faults.items():
            print(f"{name}: {'; '.join(found) if found else 'good'}")
    if any(faults.values()):
        raise typer.Exit(FaultFound.exit_code)


@app.command()
def target(name: Annotated[str, typer.Argument(help="The target to prepare: demo.")]) -> None:
    """Prepare a target that Eyas knows by name and print its folder (`demo`: 93 MB download, a minute)."""
    from eyas.engines import demo

    if name != "demo":
        raise EyasError(
            f"there is no target named {name!r}",
            expected="demo",
            mend="give a checkpoint folder in the recipe",
        )
    print(demo.prepare_demo())


for _name, _command in (
    ("generate", commands.generate),
    ("tokenize", commands.tokenize),
    ("merge", merge_command),
    ("extract", commands.extract),
    ("vocab", commands.vocab),
    ("train", commands.train),
    ("export", export_command),
    ("bench", bench_command),
):
    app.command(_name)(_command)


def _chain(recipe: Path, workspace: Path | None) -> tuple[Any, Any]:
    from eyas import pipeline
    from eyas.recipe import read_recipe

    read = read_recipe(recipe)
    return read, pipeline.chain(read, recipe, workspace or pipeline.default_workspace(read))


def _write_report(workspace: Path, name: str, ran: Any) -> None:
    from eyas.report.draw import MISSING
    from eyas.report.run_page import write_page

    path, has_plots = write_page(workspace, name, ran)
    _say(f"report: {path}" if has_plots else f"report: {path}; {MISSING}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _note(text: str) -> None:
    """What a run says on its way: rank 0 alone, where an error is any rank's."""
    if env.is_leader():
        _say(text)


def main() -> None:
    """Entry point: EyasError and a full disk become one clear message and exit code 2 (or the error's own)."""
    env.quiet_threads()
    try:
        with _reports():
            code = app(standalone_mode=False)
    except EyasError as error:
        _fail(error)
    except OSError as error:
        known = disk_error(error)
        if known is None:
            raise
        _fail(known)
    except (KeyboardInterrupt, typer.Abort):
        _say("stopped; the same command goes on where this one was")
        sys.exit(EXIT_INTERRUPTED)
    except TyperException as error:
        usage: Any = error  # every error of the parser can show itself; the base class does not say so
        usage.show()
        sys.exit(EXIT_USER)
    else:
        sys.exit(code if isinstance(code, int) else EXIT_DONE)


@contextlib.contextmanager
def _reports() -> Iterator[None]:
    """Standard output, which is rank 0's alone under torchrun: one line, or one object, a job."""
    if env.is_leader():
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _fail(error: EyasError) -> None:
    if "--json" in sys.argv and env.is_leader():
        print_json({"error": error.fields()})
    else:
        _say(f"eyas: {error}")
    sys.exit(error.exit_code)
