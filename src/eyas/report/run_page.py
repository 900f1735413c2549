"""The page of a run: `report.html` in its workspace. It is no part of any artefact; each run writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyas.core.files import write_whole

from .bench import PLAIN_SPEED
from .chart import Chart, DatasetChart, LineChart
from .draw import draw
from .page import Page, Section, html
from .run import Ran, accept_lengths, floors, tables, verdict
from .table import Line, Part, Table
from .text import counted

REPORT = "report.html"


def write_page(workspace: Path, recipe: str, ran: Ran) -> tuple[Path, bool]:
    """Write the page of what has run so far; (where it is, whether the plots are in it)."""
    drawn = draw(charts(ran), png=False)
    path = workspace / REPORT
    write_whole(path, html(page(recipe, ran), drawn))
    return path, drawn is not None


def page(recipe: str, ran: Ran) -> Page:
    by_name = tables(ran)
    last = ran[-1][0]
    sections: list[tuple[str, list[Part | str]]] = [
        ("The chain", [by_name["chain"]]),
        ("The corpus", [by_name[name] for name in ("merge",) if name in by_name]),
        (
            "How often a draft is right",
            [by_name["accuracy"], Line(_DENOMINATORS)] if "accuracy" in by_name else [],
        ),
    ]
    if "accept_length" in by_name:
        sections = [
            ("Accept length", [by_name["accept_length"], "accept_length_by_dataset"]),
            (
                "Speed",
                [by_name["decoding"], "speedup", "round", "acceptance_by_position", Line(_THREE_FIGURES)],
            ),
            *sections,
        ]
    sections.append(("What it was made with", [_artefacts(ran)]))
    return Page(
        f"Eyas run: {recipe}",
        verdict(ran) or f"The run was ended after {last}: no accept length is measured yet.",
        [Section(heading, found) for heading, found in sections if found],
    )


_DENOMINATORS = (
    "All slots: every place of a held-out row that serving could draft this step from, whatever came before. If all "
    "before were right: those of them that a server would have come to."
)
_THREE_FIGURES = (
    "Accept length: tokens emitted per verification round, the target's own included. Round cost: time of such a "
    "round in plain decode steps. Speed-up is accept length / round cost, so drafting pays where the accept length is "
    "above the round cost."
)


def charts(ran: Ran) -> dict[str, Chart]:
    """What the bench measured; {} if the run did not come so far."""
    by_stage = {name: manifest for name, manifest, _ in ran}
    if "bench" not in by_stage:
        return {}
    bench = by_stage["bench"].actual
    positions = {
        counted(count, "draft"): [(i + 1, share) for i, share in enumerate(shares)]
        for count, shares in bench["acceptance_by_position"].items()
    }
    of_a_round = {
        "accept length": _by_drafts(bench["accept_length_decoded"]),
        "round cost, in plain steps": _by_drafts(bench["round_cost"]),
    }
    return {
        "accept_length_by_dataset": DatasetChart(
            "Accept length by dataset", accept_lengths(by_stage), floors(by_stage)
        ),
        "speedup": LineChart(
            "Speed-up over draft length",
            "drafts a round",
            "speed-up",
            {"decoded prompts": _by_drafts(bench["speedup"])},
            least_top=1.2,
            guide=PLAIN_SPEED,
        ),
        "round": LineChart(
            "What a round gives and what it costs",
            "drafts a round",
            "tokens, plain steps",
            of_a_round,
            least_top=2.0,
        ),
        "acceptance_by_position": LineChart(
            "Acceptance by position", "draft position", "share of rounds", positions, percent=True
        ),
    }


def _by_drafts(values: dict[str, float]) -> list[tuple[float, float]]:
    return [(int(count), value) for count, value in values.items()]


def _artefacts(ran: Ran) -> Table:
    table = Table("Artefacts", ("stage", "artefact", "finished", "made with"), left=(0, 1, 2, 3))
    for name, manifest, _ in ran:
        run: dict[str, Any] = manifest.run
        libraries = {"eyas": run["eyas"], "python": run["python"], **run["libraries"]}
        table.add_row(
            name,
            f"{manifest.name}-{manifest.fingerprint[:12]}",
            run["finished"],
            ", ".join(f"{library} {version}" for library, version in libraries.items()),
        )
    return table
