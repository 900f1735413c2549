"""The extract stage: the target's states for every row of the corpus, as ragged shards."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from typing import Any

from eyas.core.artefact import Out, Workbench, open_workbench
from eyas.core.contract import read_facts
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.executor import each
from eyas.core.manifest import Manifest, Output, Source
from eyas.core.progress import Progress

from .options import STAGE, VERSION, ExtractOptions


def run(options: ExtractOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Extract states. inputs: `merge` (train.jsonl, dev.jsonl, eval.jsonl) and `target`."""
    with open_workbench(STAGE, VERSION, options, inputs, out) as work:
        if isinstance(work, Manifest):
            return work
        from .codecs import bytes_per_token, check_codec
        from .shards import extract_shard, load_target, plan_shards, preflight_prompts

        check_codec(options.codec)
        check_codec(options.dtype)
        target = inputs["target"].path
        facts = read_facts(target)
        boundaries = _boundaries(options, facts.num_layers, facts.default_boundaries)
        corpus = {split: inputs["merge"].path / f"{split}.jsonl" for split in ("train", "dev", "eval")}
        prompts = preflight_prompts(corpus["train"])
        shards = [
            shard
            for split, file in corpus.items()
            for shard in plan_shards(file, split, options, boundaries, prompts)
        ]
        expected = sum(
            shard.tokens * bytes_per_token(shard.codec, len(boundaries), facts.hidden_size)
            for shard in shards
        )
        work.predict(
            {
                "rows": sum(shard.lines for shard in shards),
                "tokens": sum(shard.tokens for shard in shards),
                "bytes": expected,
            }
        )
        todo = [shard for shard in shards if work.units.done(shard.unit) is None]
        left = sum(s.tokens * bytes_per_token(s.codec, len(boundaries), facts.hidden_size) for s in todo)
        _require_room(work, left)
        total = sum(shard.tokens for shard in shards)
        done = total - sum(shard.tokens for shard in todo)
        tasks = [(shard, str(work.folder)) for shard in todo]
        setup = (str(target), options.dtype, options.threads)
        with Progress(STAGE, total, "tokens", done) as progress:
            for (shard, _), _none in each(extract_shard, tasks, options.workers, load_target, setup):
                work.units.finish(shard.unit, shard.file, rows=shard.lines, tokens=shard.tokens)
                progress.advance(shard.tokens)
        return _publish(work, [shard.unit for shard in shards], list(boundaries), options)


def _boundaries(options: ExtractOptions, num_layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
    chosen = options.boundaries if options.boundaries is not None else default
    rising = all(a < b for a, b in itertools.pairwise(chosen))
    if not chosen or not rising or chosen[0] < 0 or chosen[-1] > num_layers:
        raise EyasError(
            "the aux boundaries do not fit the target",
            expected=f"rising numbers between 0 (embeddings) and {num_layers} (after the last layer)",
            found=list(chosen),
            mend="correct states.boundaries, or leave it out for [2, L//2, L-3]",
        )
    return chosen


def _require_room(work: Workbench, needed: int) -> None:
    free = shutil.disk_usage(work.folder).free
    if needed > free:
        raise EyasError(
            "the states will not fit on the disk",
            file=work.folder,
            expected=f"{needed:,} bytes",
            found=f"{free:,} bytes free",
            mend="choose another --workspace, exclude datasets, or a smaller codec",
        )


def _publish(work: Workbench, units: list[str], boundaries: list[int], options: ExtractOptions) -> Manifest:
    counts, outputs = Counts(), []
    for name in units:
        unit = work.units.done(name)
        assert unit is not None, f"unit {name} vanished"
        outputs.append(Output(unit.file, unit.bytes, unit.digest, unit.rows, unit.tokens))
        counts.add(Counts(unit.rows, unit.rows, Counter()))
    actual: dict[str, Any] = {
        "rows": counts.rows_out,
        "tokens": sum(output.tokens or 0 for output in outputs),
        "bytes": sum(output.bytes for output in outputs),
        "boundaries": boundaries,
        "boundary_convention": "residual stream after that many decoder layers; 0 = embeddings",
        "last": "after the final norm",
        "codec": options.codec,
        "dtype": options.dtype,
    }
    return work.publish(outputs, counts, actual)
