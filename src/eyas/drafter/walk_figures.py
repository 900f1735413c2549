"""What a walk over many rows gives: figures pooled, by dataset, by kind of text, and the form of walk.json."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.core.rows import EXACT
from eyas.states.store import StateRow

from .accuracy import Accuracy
from .coverage import Coverage
from .expectation import Expectation

GREEDY_ANSWER, SAMPLED_ANSWER, TEACHER_FORCED = "greedy", "sampled", "teacher-forced"


@dataclass(frozen=True)
class RowWalk:
    """The rounds of one row, and what its text is: only of the target's own answers with the engine's own ids does
    the walk speak of serving. sampled: the expectation for drafts sampled at the answers' temperature."""

    dataset: str
    id: str
    kind: str
    rounds: list[int]
    sampled: Expectation | None = None

    @property
    def own_greedy(self) -> bool:
        """Decoding gives the same rounds."""
        return self.kind == GREEDY_ANSWER


def kind_of(row: StateRow) -> str:
    """What the labels of a row are."""
    if EXACT not in row.flags:
        return TEACHER_FORCED
    return GREEDY_ANSWER if row.is_own_greedy_text else SAMPLED_ANSWER


@dataclass
class Walk:
    """Walks of many rows, with the accuracy of each step by dataset.

    ceilings: the walks of a drafter that is right wherever the draft vocabulary lets it be. coverages: by dataset,
    empty where the target's full head was not given. temperature: of the sampled answers.
    """

    drafts: int
    limit: int | None
    rows: list[RowWalk] = field(default_factory=list)
    ceilings: list[RowWalk] = field(default_factory=list)
    accuracies: dict[str, Accuracy] = field(default_factory=dict)
    outside: dict[str, list[int]] = field(default_factory=dict)
    coverages: dict[str, Coverage] = field(default_factory=dict)
    temperature: float = 1.0

    @property
    def accept_length(self) -> float | None:
        """Tokens / rounds over all rows together."""
        return pooled(self.rows)

    @property
    def by_dataset(self) -> dict[str, float | None]:
        return {name: pooled(rows) for name, rows in _grouped(self.rows).items()}

    @property
    def accuracy(self) -> Accuracy:
        """Of all rows together."""
        together = Accuracy(self.drafts)
        for accuracy in self.accuracies.values():
            together.merge(accuracy)
        return together

    @property
    def coverage(self) -> Coverage:
        """Of all rows together."""
        together = Coverage()
        for coverage in self.coverages.values():
            together.merge(coverage)
        return together

    @property
    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Rows and accept length for each kind of text; for samples that of sampled drafts beside it."""
        kinds: dict[str, dict[str, Any]] = {}
        for kind in (GREEDY_ANSWER, SAMPLED_ANSWER, TEACHER_FORCED):
            rows = [row for row in self.rows if row.kind == kind]
            if rows:
                kinds[kind] = {"rows": len(rows), "accept_length": pooled(rows)}
        if SAMPLED_ANSWER in kinds:
            kinds[SAMPLED_ANSWER] |= {
                "temperature": self.temperature,
                "accept_length_sampled_drafts": expected(self.rows),
            }
        return kinds

    def plain(self) -> dict[str, Any]:
        """The form of walk.json."""
        return {
            "drafts": self.drafts,
            "limit": self.limit,
            "serving_claim": all(row.own_greedy for row in self.rows),
            "by_kind": self.by_kind,
            "accept_length": self.accept_length,
            "accept_length_mean_of_rows": mean_of_rows(self.rows),
            "accept_length_by_dataset": self.by_dataset,
            "sampled_drafts_by_dataset": {
                name: expected(rows)
                for name, rows in _grouped(self.rows).items()
                if any(row.sampled for row in rows)
            },
            "ceiling": pooled(self.ceilings),
            "ceiling_by_dataset": {name: pooled(rows) for name, rows in _grouped(self.ceilings).items()},
            "accuracy_by_dataset": {name: self.accuracies[name].plain() for name in sorted(self.accuracies)},
            "coverage": self.coverage.plain() if self.coverages else None,
            "coverage_by_dataset": {name: self.coverages[name].plain() for name in sorted(self.coverages)},
            "labels_outside_vocabulary": {name: self.outside[name] for name in sorted(self.outside)},
            "rows": [
                {"dataset": r.dataset, "id": r.id, "kind": r.kind, "rounds": r.rounds} for r in self.rows
            ],
        }


def pooled(rows: Sequence[RowWalk]) -> float | None:
    """Tokens per round over all rows together; None where there is no round."""
    rounds = [emitted for row in rows for emitted in row.rounds]
    return sum(rounds) / len(rounds) if rounds else None


def mean_of_rows(rows: Sequence[RowWalk]) -> float | None:
    """The mean of each row's own tokens per round."""
    means = [sum(row.rounds) / len(row.rounds) for row in rows if row.rounds]
    return sum(means) / len(means) if means else None


def expected(rows: Sequence[RowWalk]) -> float | None:
    """Tokens per expected round of sampled drafts, over all sampled rows together."""
    return sum((row.sampled for row in rows if row.sampled), Expectation()).accept_length


def _grouped(rows: Sequence[RowWalk]) -> dict[str, list[RowWalk]]:
    groups: dict[str, list[RowWalk]] = defaultdict(list)
    for row in rows:
        groups[row.dataset].append(row)
    return dict(sorted(groups.items()))
