"""The tokenize stage: answers -> token rows.

Ids that the engine made are joined and never re-encoded (mask 0 for the prompt, 1 for the answer);
conversations without ids are rendered and encoded by the target's template. A unit is 1,024
conversations of one dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from eyas.core.artefact import PARTS, Out, Workbench, open_workbench
from eyas.core.counts import Counts
from eyas.core.files import read_lines, write_whole
from eyas.core.manifest import Manifest, Output, Source, measured, require_manifest
from eyas.core.progress import Progress
from eyas.core.rows import CUT, EXACT, GREEDY, TokenRow

from .options import STAGE, VERSION, TokenizeOptions

UNIT_ROWS = 1024
ALL_ZERO = "no label"


@dataclass
class Tokenized:
    """The token rows of a unit, and what is to be counted about them."""

    rows: list[TokenRow] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


def run(options: TokenizeOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Tokenise a generate artefact. inputs: `generate`, `target`."""
    with open_workbench(STAGE, VERSION, options, inputs, out) as work:
        if isinstance(work, Manifest):
            return work
        source = inputs["generate"].path
        upstream = require_manifest(source, "generate")
        work.predict({"rows": upstream.actual["rows"], "tokens": upstream.actual["tokens"]})
        target = inputs["target"].path
        units: dict[str, list[str]] = {}
        with Progress(STAGE, upstream.actual["rows"], "rows") as progress:
            for entry in upstream.actual["datasets"]:
                name = entry["name"]
                units[name] = list(_tokenize_dataset(work, source, name, target, progress))
        return _publish(work, units, options)


def _tokenize_dataset(
    work: Workbench, source: Path, dataset: str, target: Path, progress: Progress
) -> Iterator[str]:
    lines = read_lines(source / dataset / "answers.jsonl")
    for n, chunk in enumerate(_chunks(lines)):
        unit = f"{dataset}/{n:05d}"
        if work.units.done(unit) is None:
            made = tokenize_rows([orjson.loads(line) for _, line in chunk], target)
            work.units.finish(
                unit,
                f"{PARTS}/{unit}.json",
                rows=len(made.rows),
                tokens=sum(len(row.input_ids) for row in made.rows),
                drops=dict(made.drops),
                data=orjson.dumps({"notes": made.notes}) + b"\n" + b"".join(row.line() for row in made.rows),
            )
        progress.advance(len(chunk))
        yield unit


def _chunks(lines: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    chunk = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == UNIT_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def tokenize_rows(answers: list[dict[str, Any]], target: Path) -> Tokenized:
    """The unit's function: answers -> token rows, by ids where there are any, else by the template."""
    made = Tokenized()
    for answer in answers:
        row = _joined(answer) if answer["token_ids"] is not None else _rendered(answer, target, made)
        if row is None:
            continue
        if row.num_labels == 0:
            made.drops[ALL_ZERO] += 1
        else:
            made.rows.append(row)
    return made


def _joined(answer: dict[str, Any]) -> TokenRow:
    """The engine's own ids: prompt, then answer."""
    prompt, ids = answer["prompt_token_ids"], answer["token_ids"]
    flags = [
        EXACT,
        *([GREEDY] if answer["greedy"] else []),
        *([CUT] if answer["finish_reason"] == "length" else []),
    ]
    return TokenRow(
        answer["id"], answer["dataset"], prompt + ids, [0] * len(prompt) + [1] * len(ids), sorted(flags)
    )


def _rendered(answer: dict[str, Any], target: Path, made: Tokenized) -> TokenRow | None:
    from eyas.engines.template import UnrenderableConversation, chat_template

    from .masks import mask_conversation

    try:
        masked = mask_conversation(answer["messages"], answer["tools"], chat_template(target))
    except UnrenderableConversation as reason:
        made.drops[str(reason)] += 1
        return None
    made.notes["rows with a token across a border"] += masked.straddling > 0
    return TokenRow(answer["id"], answer["dataset"], masked.input_ids, masked.loss_mask, [])


def _publish(work: Workbench, units: dict[str, list[str]], options: TokenizeOptions) -> Manifest:
    counts, notes, outputs, table = Counts(), Counter[str](), [], []
    for dataset, names in units.items():
        output, kept, noted, labels = _join(work, dataset, names)
        kept.require(
            options.min_kept, f"dataset {dataset} lost its rows", "see the reasons, or lower min_kept"
        )
        outputs.append(output)
        counts.add(kept)
        notes.update(noted)
        table.append({"name": dataset, **kept.plain(), "tokens": output.tokens, "labels": labels})
    actual = {
        "rows": counts.rows_out,
        "tokens": sum(output.tokens or 0 for output in outputs),
        "labels": sum(entry["labels"] for entry in table),
        "notes": dict(sorted((+notes).items())),
        "datasets": table,
    }
    return work.publish(outputs, counts, actual)


def _join(work: Workbench, dataset: str, names: list[str]) -> tuple[Output, Counts, Counter[str], int]:
    """Join a dataset's units into the file that merge reads."""
    counts, notes, labels = Counts(), Counter[str](), 0
    lines: list[bytes] = []
    tokens = 0
    for name in names:
        unit = work.units.done(name)
        assert unit is not None, f"unit {name} vanished"
        head, *rows = (work.folder / unit.file).read_bytes().splitlines(keepends=True)
        notes.update(orjson.loads(head)["notes"])
        labels += sum(orjson.loads(row)["loss_mask"].count(1) for row in rows)
        lines += rows
        tokens += unit.tokens
        counts.add(Counts(unit.rows + sum(unit.drops.values()), unit.rows, Counter(unit.drops)))
    file = f"{dataset}/tokenized_data.jsonl"
    write_whole(work.folder / file, lines)
    return measured(work.folder, file, counts.rows_out, tokens), counts, notes, labels
