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
from eyas.core.rows import TokenRow, read_rows
from eyas.drafter.network import Drafter
from eyas.drafter.target_weights import TargetWeights
from eyas.drafter.walk import Walk, walk_store
from eyas.export.load import engine_of, load_exported
from eyas.states.store import StateRow, StateStore

from . import worker
from .checks import check_decoded, check_walk, raise_faults
from .choose import choose
from .figures import Walks, figures
from .floors import bigram_guess, bigrams, floor, lookup_guess
from .options import STAGE, VERSION, BenchOptions
from .verdict import PLAIN
from .worker import Load, Task, first_turn

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
        store = StateStore(folders["extract"], "eval")
        rows = _held_out(store)
        walk = _walk(drafter, store, folders["train"])
        chosen = _chosen(store, rows, options)
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
        actual = figures(walk, floors, tasks, lines, walks, found)
        counts = Counts(rows_in=len(lines), rows_out=len(lines))
        return bench.publish(
            [measured(bench.folder, RESULTS, actual["rows"], actual["tokens"])], counts, actual
        )


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


def _held_out(store: StateStore) -> list[TokenRow]:
    """The rows without their states, which may be too many to hold."""
    rows = []
    for shard in store.shards:
        for index, head in enumerate(shard.header):
            ids, mask, _ = shard.tokens(index)
            rows.append(
                TokenRow(head["id"], head["dataset"], ids.tolist(), mask.int().tolist(), head["flags"])
            )
    if not rows:
        raise EyasError(
            "there are no held-out rows to benchmark on",
            expected="states of the eval split",
            mend="add a dataset with `role: heldout` to the recipe",
        )
    return rows


def _chosen(store: StateStore, rows: list[TokenRow], options: BenchOptions) -> list[StateRow]:
    """The rows to decode, each cut to what decoding from its prompt can give."""
    chosen = choose(rows, options.prompts, options.seed)
    if not chosen:
        raise EyasError(
            "no held-out row can be decoded",
            expected="a row with a prompt and an answer of at least two tokens",
            found=f"{len(rows)} rows, none such",
            mend="add held-out prompts with longer answers",
        )
    return [first_turn(store[index], options.max_new_tokens) for index in chosen]


def _walk(drafter: Drafter, store: StateStore, train: Path) -> Walk:
    """The walk of the exported drafter, done as training did it (threads, drafts) and held against that."""
    stored = orjson.loads((train / WALK).read_bytes())
    before = torch.get_num_threads()
    torch.set_num_threads(require_manifest(train, "train").options["threads"])
    walk = walk_store(drafter, store, stored["drafts"])
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


def _walks(drafter: Drafter, chosen: list[StateRow], counts: tuple[int, ...]) -> Walks:
    return {
        (row.dataset, row.id, drafts): walk_store(drafter, [row], drafts).rows[0].rounds
        for drafts in counts
        for row in chosen
    }


def _own_greedy(chosen: list[StateRow]) -> set[tuple[str, str]]:
    return {(row.dataset, row.id) for row in chosen if row.is_own_greedy_text}


def _floors(rows: list[TokenRow], merge: Path, drafts: int) -> dict[str, float]:
    table = bigram_guess(bigrams(read_rows(merge / "train.jsonl")))
    return {"bigram": floor(table, rows, drafts), "prompt_lookup": floor(lookup_guess, rows, drafts)}


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
