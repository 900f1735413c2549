"""The generate stage: each drawn conversation, answered by the target.

A unit is a fixed batch: prompts of all datasets sorted by length, cut into batches of `batch_rows`.
Answers keep the ids that the engine read and made, the end token included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eyas.core.artefact import PARTS, Out, Workbench, open_workbench
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.executor import each
from eyas.core.files import read_lines, write_whole
from eyas.core.manifest import Manifest, Output, Source, measured
from eyas.core.progress import Progress

from .options import STAGE, VERSION, GenerateOptions
from .prompts import DatasetPrompts, Prompt, dataset_prompts

_target: Any = None  # the loaded target of this process; set once by _load


@dataclass(frozen=True)
class Batch:
    """One unit: the positions of its prompts in the run, and their ids."""

    unit: str
    positions: list[int]
    prompts: list[list[int]]
    max_new_tokens: int


def run(options: GenerateOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Answer the prompts. inputs: `target`, and `dataset:<name>` for each dataset of the options."""
    _check(options)
    with open_workbench(STAGE, VERSION, options, inputs, out) as work:
        if isinstance(work, Manifest):
            return work
        from eyas.engines.template import chat_template

        template = chat_template(inputs["target"].path)
        datasets = [
            dataset_prompts(choice, inputs[f"dataset:{choice.name}"], template, options)
            for choice in options.datasets
        ]
        everything = [prompt for dataset in datasets for prompt in dataset.prompts]
        batches = _batches(everything, options)
        work.predict(_predicted(everything, options))
        _answer(work, batches, inputs["target"], options)
        return _publish(work, datasets, batches, options, inputs["target"])


def _check(options: GenerateOptions) -> None:
    if options.engine != "hf":
        raise EyasError(
            f"engine {options.engine!r} is not known", expected="hf", mend="set generation.engine to hf"
        )
    if not options.datasets:
        raise EyasError("no dataset is given", mend="name at least one dataset")


def _batches(prompts: list[Prompt], options: GenerateOptions) -> list[Batch]:
    """Longest prompts first, so that the last batches to run are the short ones."""
    order = [i for i, prompt in enumerate(prompts) if prompt.ids is not None]
    order.sort(key=lambda i: (-len(prompts[i].ids or ()), i))
    size = options.batch_rows
    return [
        Batch(f"{n // size:05d}", order[n : n + size], [prompts[i].ids or [] for i in order[n : n + size]],
              options.max_new_tokens)
        for n in range(0, len(order), size)
    ]  # fmt: skip


def _predicted(prompts: list[Prompt], options: GenerateOptions) -> dict[str, Any]:
    """Rows are known; tokens are bounded by the prompts and the longest answer allowed."""
    asked = [len(prompt.ids) for prompt in prompts if prompt.ids is not None]
    return {"rows": len(prompts), "tokens_at_most": sum(asked) + len(asked) * options.max_new_tokens}


def _answer(work: Workbench, batches: list[Batch], target: Source, options: GenerateOptions) -> None:
    todo = [batch for batch in batches if work.units.done(batch.unit) is None]
    total = sum(len(batch.prompts) for batch in batches)
    done = total - sum(len(batch.prompts) for batch in todo)
    setup = (str(target.path), options.dtype, options.threads)
    with Progress(STAGE, total, "answers", done) as progress:
        for batch, answers in each(answer_batch, todo, options.workers, _load, setup):
            lines = [
                orjson.dumps({"position": position, **answer}) + b"\n"
                for position, answer in zip(batch.positions, answers, strict=True)
            ]
            tokens = sum(len(answer["token_ids"]) for answer in answers)
            work.units.finish(
                batch.unit,
                f"{PARTS}/{batch.unit}.jsonl",
                rows=len(lines),
                tokens=tokens,
                data=b"".join(lines),
            )
            progress.advance(len(lines))


def _load(folder: str, dtype: str, threads: int) -> None:
    global _target
    from eyas.engines.hf import HfTarget

    _target = HfTarget(Path(folder), dtype, threads)


def answer_batch(batch: Batch) -> list[dict[str, Any]]:
    """The unit's function: token_ids and finish_reason of each prompt, by this process's target."""
    from eyas.engines.greedy import answer_greedily

    answers = answer_greedily(_target, batch.prompts, batch.max_new_tokens)
    return [{"token_ids": answer.token_ids, "finish_reason": answer.finish_reason} for answer in answers]


def _publish(
    work: Workbench,
    datasets: list[DatasetPrompts],
    batches: list[Batch],
    options: GenerateOptions,
    target: Source,
) -> Manifest:
    """Join the units into `<dataset>/answers.jsonl`, rows in file order."""
    answers: dict[int, dict[str, Any]] = {}
    for batch in batches:
        for _, line in read_lines(work.folder / PARTS / f"{batch.unit}.jsonl"):
            answer = orjson.loads(line)
            answers[answer.pop("position")] = answer
    counts, outputs, finish, first = Counts(), [], Counter[str](), 0
    table = []
    for dataset in datasets:
        rows = [
            _row(prompt, answers.get(first + i), options, target) for i, prompt in enumerate(dataset.prompts)
        ]
        first += len(dataset.prompts)
        outputs.append(_write(work.folder, dataset.name, rows))
        counts.add(dataset.counts)
        reasons = Counter(row["finish_reason"] or "given" for row in rows)
        finish.update(reasons)
        table.append(
            {
                "name": dataset.name,
                **dataset.counts.plain(),
                "repeated_ids": dataset.repeated_ids,
                "finish_reasons": dict(sorted(reasons.items())),
                "answer_tokens": sum(len(row["token_ids"] or ()) for row in rows),
            }
        )
    actual = {
        "rows": counts.rows_out,
        "tokens": sum(output.tokens or 0 for output in outputs),
        "answer_tokens": sum(entry["answer_tokens"] for entry in table),
        "finish_reasons": dict(sorted(finish.items())),
        "datasets": table,
    }
    return work.publish(outputs, counts, actual)


def _row(
    prompt: Prompt, answer: dict[str, Any] | None, options: GenerateOptions, target: Source
) -> dict[str, Any]:
    generated = answer is not None
    return {
        "id": prompt.conversation.id,
        "dataset": prompt.conversation.dataset,
        "messages": prompt.messages,
        "tools": prompt.conversation.tools,
        "prompt_token_ids": prompt.ids,
        "token_ids": answer["token_ids"] if answer else None,
        "finish_reason": answer["finish_reason"] if answer else None,
        "model": target.fingerprint if generated else None,
        "sampling": {"temperature": 0.0, "max_new_tokens": options.max_new_tokens} if generated else None,
        "greedy": generated,
    }


def _write(folder: Path, dataset: str, rows: list[dict[str, Any]]) -> Output:
    file = f"{dataset}/answers.jsonl"
    write_whole(folder / file, (orjson.dumps(row) + b"\n" for row in rows))
    tokens = sum(len(row["prompt_token_ids"] or ()) + len(row["token_ids"] or ()) for row in rows)
    return measured(folder, file, rows=len(rows), tokens=tokens)
