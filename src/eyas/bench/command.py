"""`eyas bench`: accept length, speed-up and round cost of a drafter, and what to serve with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.report.text import print_json, print_parts

if TYPE_CHECKING:
    from .shape import Shape

RESULTS, REPORT = "results.json", "report.html"


def bench_command(
    prompts: Annotated[
        list[Path] | None,
        typer.Option(metavar="SET...", help="Prompt sets: benchmark files, conversations, or token rows."),
    ] = None,
    more_prompts: Annotated[list[Path] | None, typer.Argument(metavar="[SET...]", hidden=True)] = None,
    target: Annotated[str | None, typer.Option(help="The target: a checkpoint folder, or `demo`.")] = None,
    drafter: Annotated[
        Path | None, typer.Option(help="An export artefact, an engine's folder, or one that others made.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="hf (in process), vllm (Eyas starts it), or a server's URL.")
    ] = "hf",
    draft_tokens: Annotated[str, typer.Option(help="Drafts a round, as 1,2,3,5.")] = "3",
    concurrency: Annotated[str, typer.Option(help="Streams at once, as 1,8,32.")] = "1",
    max_tokens: Annotated[int, typer.Option(help="Tokens that an answer is cut at.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    baseline_url: Annotated[
        str | None, typer.Option(help="A server of the target alone, beside the one of --engine URL.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Questions of each set. (default: all)")] = None,
    tree: Annotated[
        int | None, typer.Option(help="Engine hf: branches of a draft tree. (default: a chain)")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Number type of target and drafter.")] = None,
    threads: Annotated[int, typer.Option(help="Engine hf: threads; with 1 the clock is CPU time.")] = 1,
    break_even: Annotated[
        bool, typer.Option("--break-even", help="Measure the round cost with a drafter of random weights.")
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(help="--break-even: plan the drafter of this recipe, on its target.")
    ] = None,
    draft_vocab: Annotated[
        int | None, typer.Option(help="--break-even without --recipe: ids of the planned drafter.")
    ] = None,
    from_log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Accept length of a log of requests; nothing is run.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.json, report.html and plots; a stopped benchmark goes on there."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is in --out when all is measured.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
) -> None:
    """Measure a drafter: accept length, speed-up, round cost, and the draft length to serve with."""
    from eyas.core.errors import EyasError

    if from_log is not None:
        _show_log(from_log, as_json)
        return
    sets = [*(prompts or []), *(more_prompts or [])]
    if (target is None and recipe is None) or not sets:
        raise EyasError(
            "a benchmark needs a target and prompts",
            mend="eyas bench --target PATH --drafter DIR --prompts SET",
        )
    if drafter is None and not break_even and engine in ("hf", "vllm"):
        raise EyasError(
            "there is no drafter to measure",
            mend="give it with --drafter, or measure the round cost of a planned one with --break-even",
        )
    if overwrite and out is None:
        raise EyasError("--overwrite has no effect without --out", mend="leave it out")
    plans = break_even and drafter is None
    folder, shape = _planned(target, recipe, draft_vocab, plans)
    from .artefact import benchmark
    from .job import run_job
    from .work import BenchJob

    job = BenchJob(
        target=folder,
        drafter=drafter,
        prompts=sets,
        engine=engine,
        draft_tokens=_numbers(draft_tokens),
        concurrency=_numbers(concurrency),
        max_tokens=max_tokens,
        temperature=temperature,
        baseline_url=baseline_url,
        limit=limit,
        dtype=dtype,
        threads=threads,
        tree=tree,
        random_weights=break_even,
        shape=shape,
    )
    _show(run_job(job) if out is None else benchmark(job, out, overwrite), as_json)


def _planned(
    target: str | None, recipe: Path | None, draft_vocab: int | None, plans: bool
) -> tuple[Path, Shape | None]:
    """The target's folder, and the shape of the drafter that is planned, None where one is there already."""
    from eyas.core.contract import read_facts
    from eyas.core.errors import EyasError
    from eyas.pipeline import target_folder
    from eyas.recipe import read_recipe

    from .shape import Shape

    for name, value in (("--draft-vocab", draft_vocab), ("--recipe", recipe)):
        if value is not None and not plans:
            raise EyasError(
                f"{name} has no effect here",
                mend="it shapes the planned drafter of --break-even without --drafter",
            )
    if recipe is None:
        folder = target_folder(target or "", Path())
        return folder, Shape.usual(read_facts(folder), draft_vocab) if plans else None
    if draft_vocab is not None:
        raise EyasError("--draft-vocab has no effect with --recipe", mend="leave one of them out")
    read = read_recipe(recipe)
    folder = target_folder(target, Path()) if target else target_folder(read.target, recipe.parent)
    return folder, Shape.of_recipe(read, read_facts(folder))


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    from eyas.report.bench import parts

    print_parts(*parts(result))


def _show_log(path: Path, as_json: bool) -> None:
    from .from_log import from_log

    found = from_log(path)
    if as_json:
        print_json(found)
        return
    print(f"accept length {found['accept_length']:.4f}, pooled over {found['requests']} requests")
    print(f"mean of each request's own {found['accept_length_mean']:.4f}")
    print(found["meaning"])


def _numbers(text: str) -> tuple[int, ...]:
    """Distinct numbers in the order given."""
    from eyas.core.errors import EyasError

    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise EyasError(
            "not a list of numbers", expected="numbers and commas, as 1,2,3", found=text
        ) from error
