"""`eyas bench --out`: a benchmark as an artefact of its own, begun, gone on with, complete, or refused.

Its files hold times, so two runs of one benchmark differ; a complete one is shown again, not measured again.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import orjson

from eyas.core.artefact import Out, Workbench, open_workbench
from eyas.core.contract import target_source
from eyas.core.counts import Counts
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, Output, Source, file_source, measured
from eyas.drafter.start import drafter_source
from eyas.export.reading import any_engine_folder
from eyas.report.bench import charts, page
from eyas.report.draw import MISSING, draw
from eyas.report.page import html

from .blocks import Blocks
from .command import REPORT, RESULTS
from .job import run_job
from .outcome import flags
from .work import BenchJob

STAGE, VERSION = "benchmark", 1


def benchmark(job: BenchJob, out: Path, overwrite: bool) -> dict[str, Any]:
    """The result of `job`, from `out` if it is complete there, else measured into it; blocks that a stopped run of
    the same job measured there are used."""
    with open_workbench(
        STAGE, VERSION, _options(job), _inputs(job), Out(out, anew=overwrite, overwrite=overwrite)
    ) as bench:
        if isinstance(bench, Manifest):
            print(f"reused: {out} holds this very benchmark; --overwrite measures it anew", file=sys.stderr)
            found: dict[str, Any] = orjson.loads((out / RESULTS).read_bytes())
            return found
        blocks = Blocks(bench.units)
        result = run_job(dataclasses.replace(job, blocks=blocks, logs=bench.folder / "logs"))
        if blocks.reused:
            print(f"bench: {blocks.reused} blocks were measured by an earlier run", file=sys.stderr)
        outputs, drawn = _write(bench, result)
        cells = len(result["cells"])
        bench.publish(outputs, Counts(cells, cells), {"rows": cells, "blocks_reused": blocks.reused})
    print(f"results and report in {out}{'' if drawn else f'; {MISSING}'}", file=sys.stderr)
    return result


def _write(bench: Workbench, result: dict[str, Any]) -> tuple[list[Output], bool]:
    """What was measured first, then the page, then the plots: a missing library costs nobody a measurement."""
    write_whole(bench.folder / RESULTS, orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    drawn = draw(charts(result))
    files = {REPORT: html(page(result), drawn)}
    for name, plot in (drawn or {}).items():
        files |= {f"{name}.svg": plot.svg, f"{name}.png": plot.png}
    for name, data in files.items():
        write_whole(bench.folder / name, data)
    return [measured(bench.folder, name) for name in (RESULTS, *files)], drawn is not None


def _options(job: BenchJob) -> dict[str, Any]:
    shape = job.shape and {**job.shape.plain(), "boundaries": list(job.shape.boundaries)}
    return {**flags(job), "baseline_url": job.baseline_url, "shape": shape}


def _inputs(job: BenchJob) -> dict[str, Source]:
    inputs = {f"prompts:{path.stem}": file_source(path) for path in job.prompts}
    inputs["target"] = target_source(job.target)
    if job.drafter is not None:
        inputs["drafter"] = drafter_source(any_engine_folder(job.drafter)[0])
    return inputs
