"""The bench stage: the truth about an exported drafter, from the walk and from real decoding.

inputs: `export`, `extract` (its held-out rows), `merge` (training answers, for the bigram floor), `train`
(its walk), `target`. The unit is (set, setting, prompt): a set is a dataset, a setting `plain` or
`drafts=N`. Results are one line a unit in results.jsonl. They hold times, so two runs differ: this is the
one stage whose outputs are not byte-deterministic; tokens and rounds are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import torch

from eyas.core.artefact import PARTS, Out, Workbench, open_workbench
from eyas.core.contract import read_facts
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.executor import each
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, Source, measured, require_manifest
from eyas.core.progress import Progress
from eyas.core.rows import read_rows
from eyas.drafter.network import Drafter
from eyas.drafter.target_weights import TargetWeights
from eyas.drafter.walk import Walk, walk_store
from eyas.export.load import engine_of, load_exported
from eyas.states.store import StateRow, StateStore

from . import worker
from .checks import Findings, check_decoded, check_walk, raise_faults
from .choose import choose
from .floors import bigram_guess, bigrams, floor, lookup_guess
from .options import BenchOptions
from .verdict import PLAIN, Comparison, Setting, sentence, setting
from .worker import Load, Task, first_turn

STAGE = "bench"
VERSION = 1

RESULTS = "results.jsonl"
WALK = "walk.json"


def run(options: BenchOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Walk all held-out rows with the exported drafter, decode some of them, and compare.

    FaultFound if the exported drafter walks otherwise than the trained one, if drafting changes an output,
    or if decoding and the walk disagree (float32).
    """
    _require(options)
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            return bench
        folders = {role: source.path for role, source in inputs.items()}
        what, drafter = _drafter(options, folders)
        rows = _held_out(folders["extract"])
        walk = _walk(drafter, rows, folders["train"])
        chosen = _chosen(rows, options)
        tasks = _tasks(chosen, options)
        walks = _walks(drafter, chosen, options.draft_tokens)
        floors = _floors(rows, folders["merge"], walk.drafts)
        bench.predict(_predicted(walk, tasks))
        lines = _decode(bench, tasks, what, options.workers)
        found = check_decoded(
            tasks, lines, walks, _own_greedy(chosen), options.dtype == "float32", lambda *of: _gap(what, *of)
        )
        raise_faults(found, bench.folder / PARTS)
        write_whole(bench.folder / RESULTS, [orjson.dumps(line) + b"\n" for line in lines])
        actual = _actual(walk, floors, tasks, lines, walks, found)
        tokens = sum(len(line["tokens"]) for line in lines)
        counts = Counts(rows_in=len(lines), rows_out=len(lines))
        return bench.publish([measured(bench.folder, RESULTS, len(lines), tokens)], counts, actual)


def _require(options: BenchOptions) -> None:
    if not options.draft_tokens or min(options.draft_tokens) < 1 or options.prompts < 1:
        raise EyasError(
            "there is nothing to benchmark",
            expected="draft_tokens of at least 1 each, and at least one prompt",
            found=f"draft_tokens {list(options.draft_tokens)}, prompts {options.prompts}",
            mend="set bench.draft_tokens and bench.prompts",
        )
    if options.max_new_tokens < 2:
        raise EyasError(
            "a benchmark needs answers of two tokens: the first comes without a draft",
            expected="at least 2",
            found=options.max_new_tokens,
            mend="set bench.max_new_tokens",
        )


def _drafter(options: BenchOptions, folders: dict[str, Path]) -> tuple[Load, Drafter]:
    """What the workers load, and the exported drafter for the walks here, in the same number type."""
    engine = engine_of(folders["export"])
    what = Load(folders["target"], folders["export"] / engine, engine, options.dtype, options.threads)
    facts = read_facts(folders["target"])
    drafter, boundaries = load_exported(what.drafter, engine, facts, TargetWeights(facts.folder).embedding())
    extracted = require_manifest(folders["extract"], "extract").actual["boundaries"]
    if boundaries != extracted:
        raise EyasError(
            "the drafter reads other aux boundaries than were extracted",
            file=what.drafter,
            expected=extracted,
            found=boundaries,
            mend="give the export and extract artefacts of one run",
        )
    return what, drafter


def _held_out(folder: Path) -> list[StateRow]:
    store = StateStore(folder, "eval")
    rows = [store[i] for i in range(len(store))]
    if not rows:
        raise EyasError(
            "there are no held-out rows to benchmark on",
            file=folder,
            expected="states of the eval split",
            mend="add a dataset with `role: heldout` to the recipe",
        )
    return rows


def _chosen(rows: list[StateRow], options: BenchOptions) -> list[StateRow]:
    """The rows to decode, each cut to what decoding from its prompt can give."""
    chosen = choose(rows, options.prompts, options.seed)
    if not chosen:
        raise EyasError(
            "no held-out row can be decoded",
            expected="a row with a prompt and an answer of at least two tokens",
            found=f"{len(rows)} rows, none such",
            mend="add held-out prompts with longer answers",
        )
    return [first_turn(row, options.max_new_tokens) for row in chosen]


def _walk(drafter: Drafter, rows: list[StateRow], train: Path) -> Walk:
    """The walk of the exported drafter, done as training did it (threads, drafts) and held against that."""
    stored = orjson.loads((train / WALK).read_bytes())
    before = torch.get_num_threads()
    torch.set_num_threads(require_manifest(train, "train").options["threads"])
    walk = walk_store(drafter, rows, stored["drafts"])
    torch.set_num_threads(before)
    check_walk(walk, stored, train / WALK)
    return walk


def _tasks(chosen: list[StateRow], options: BenchOptions) -> list[Task]:
    """Prompt after prompt, so that what is compared is measured at about the same time."""
    tasks = []
    for row in chosen:
        labels = int(row.loss_mask_T.sum())
        ids = row.input_ids_T.tolist()
        prompt, stored = ids[:-labels], ids[-labels:]
        for draft_tokens in (PLAIN, *options.draft_tokens):
            tasks.append(
                Task(row.dataset, row.id, draft_tokens, prompt, stored, labels, tuple(options.draft_tokens))
            )
    return tasks


def _walks(
    drafter: Drafter, chosen: list[StateRow], counts: tuple[int, ...]
) -> dict[tuple[str, str, int], list[int]]:
    """Rounds of each decoded row by dataset, id and number of drafts."""
    return {
        (row.dataset, row.id, drafts): walk_store(drafter, [row], drafts).rows[0].rounds
        for drafts in counts
        for row in chosen
    }


def _own_greedy(chosen: list[StateRow]) -> set[tuple[str, str]]:
    return {(row.dataset, row.id) for row in chosen if row.is_own_greedy_text}


def _floors(rows: list[StateRow], merge: Path, drafts: int) -> dict[str, float]:
    held_out = [(row.input_ids_T.tolist(), row.loss_mask_T.tolist()) for row in rows]
    table = bigram_guess(bigrams(read_rows(merge / "train.jsonl")))
    return {"bigram": floor(table, held_out, drafts), "prompt_lookup": floor(lookup_guess, held_out, drafts)}


def _predicted(walk: Walk, tasks: list[Task]) -> dict[str, Any]:
    return {
        "rows": len(tasks),
        "tokens": sum(task.limit for task in tasks),
        "accept_length": walk.accept_length,
    }


def _decode(bench: Workbench, tasks: list[Task], what: Load, workers: int) -> list[dict[str, Any]]:
    """Every task's line, from this or an earlier run."""
    files = {task.unit: f"{PARTS}/{number:05d}.json" for number, task in enumerate(tasks)}
    open_tasks = [task for task in tasks if bench.units.done(task.unit) is None]
    with Progress(STAGE, len(tasks), "decodings", done=len(tasks) - len(open_tasks)) as progress:
        for task, line in each(worker.do, open_tasks, workers, worker.load, (what,)):
            bench.units.finish(
                task.unit, files[task.unit], rows=1, tokens=len(line["tokens"]), data=orjson.dumps(line)
            )
            progress.advance(1)
    return [orjson.loads((bench.folder / files[task.unit]).read_bytes()) for task in tasks]


def _gap(what: Load, task: Task, tokens: list[int]) -> float:
    worker.load(what)
    return worker.gap_after(task.ids + tokens)


def _actual(
    walk: Walk,
    floors: dict[str, float],
    tasks: list[Task],
    lines: list[dict[str, Any]],
    walks: dict[tuple[str, str, int], list[int]],
    found: Findings,
) -> dict[str, Any]:
    """The figures of the manifest; objects by number of drafts are keyed by it as text."""
    counts = tasks[0].walks
    settings = {n: setting(n, [x for x in lines if x["draft_tokens"] == n]) for n in (PLAIN, *counts)}
    compared = {n: Comparison(settings[n], settings[PLAIN]) for n in counts}
    walked = _walked(tasks, lines, walks)
    assert walk.accept_length is not None
    return {
        "accept_length": walk.accept_length,
        "accept_length_by_dataset": walk.by_dataset,
        "accept_length_drafts": walk.drafts,
        "floors": floors,
        "decoded_prompts": len(lines) // len(settings),
        "decoded_accept_length": _at(settings, walk.drafts),
        "decoded_walk": walked.get(walk.drafts),
        "accept_length_decoded": {str(n): settings[n].accept_length for n in counts},
        "accept_length_walked": {str(n): walked[n] for n in counts},
        "acceptance_by_position": {str(n): settings[n].acceptance_by_position for n in counts},
        "identical_outputs": found.identical,
        "near_ties": found.near_ties,
        "greedy_differences": {"count": len(found.differences), "rows": found.differences},
        "speedup": {str(n): compared[n].speedup for n in counts},
        "wall_speedup": {str(n): compared[n].wall_speedup for n in counts},
        "round_cost": {str(n): compared[n].round_cost for n in counts},
        "draft_cost": {str(n): compared[n].draft_cost for n in counts},
        "plain_cpu_s_per_token": settings[PLAIN].cpu / settings[PLAIN].tokens,
        "verdict": sentence(walk.accept_length, walk.drafts, list(compared.values())),
    }


def _at(settings: dict[int, Setting], drafts: int) -> float | None:
    return settings[drafts].accept_length if drafts in settings else None


def _walked(
    tasks: list[Task], lines: list[dict[str, Any]], walks: dict[tuple[str, str, int], list[int]]
) -> dict[int, float]:
    """Accept length by the walk over the decoded prompts, on the plain text where the stored one differs."""
    rounds: dict[int, list[int]] = {n: [] for n in tasks[0].walks}
    for task, line in zip(tasks, lines, strict=True):
        if task.draft_tokens != PLAIN:
            continue
        difference = line["greedy_difference"]
        for n in task.walks:
            rounds[n] += difference["walks"][str(n)] if difference else walks[task.set, task.prompt, n]
    return {n: sum(of) / len(of) for n, of in rounds.items()}
