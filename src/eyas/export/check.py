"""`eyas export --check`: an engine's loading, replayed on a folder, with every tensor's fate.

Nothing is run: a folder that passes is read as meant, which says nothing about how well it drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.core.contract import TargetFacts
from eyas.drafter.config import DrafterConfig
from eyas.drafter.network import Drafter
from eyas.drafter.target_weights import TargetWeights

from .chance import looks_drawn
from .coverage import LEAST_OF_BEST, Coverage, measure_for
from .layer_ids import require_engine
from .reading import DraftFolder, read_folder
from .rules import EMBEDDING, HEAD, IGNORED, MISSING, REFUSED, Shape, absent, place
from .understanding import method_fault, understand


@dataclass(frozen=True)
class TensorLine:
    """What an engine does with one tensor."""

    tensor: str
    fate: str
    shape: list[int] | None
    why: str

    def plain(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "fate": self.fate, "shape": self.shape, "why": self.why}


@dataclass
class CheckReport:
    """faults make the check fail, warnings only with --strict; unchecked: what needs the target or the counts.

    config, boundaries, state: the network that the engine would build, and its tensors by the network's names.
    """

    folder: Path
    engine: str
    tensors: list[TensorLine] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    config: DrafterConfig | None = None
    boundaries: list[int] | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    def passed(self, strict: bool) -> bool:
        return not self.faults and not (strict and self.warnings)

    def plain(self, strict: bool) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "engine": self.engine,
            "passed": self.passed(strict),
            "boundaries": self.boundaries,
            "tensors": [line.plain() for line in self.tensors],
            "faults": self.faults,
            "warnings": self.warnings,
            "unchecked": self.unchecked,
        }


def check(
    folder: Path,
    engine: str,
    facts: TargetFacts | None = None,
    counts_V: Tensor | None = None,
    method: str | None = None,
) -> CheckReport:
    """Replay how `engine` loads the drafter in `folder`. facts: the target's; counts_V: how often each target id is
    a training label; method: the method or algorithm that the server is to be started with."""
    require_engine(engine)
    found = read_folder(folder)
    report = CheckReport(folder, engine)
    if method is not None and (fault := method_fault(engine, method)) is not None:
        report.faults.append(fault)
    try:
        read = understand(found.fields, engine, facts)
    except (KeyError, TypeError, AssertionError) as error:
        report.faults.append(f"config.json cannot be understood: {type(error).__name__} {error}")
        return report
    report.config, report.boundaries = read.config, read.boundaries
    report.faults += read.faults
    report.warnings += read.warnings
    if facts is None:
        report.unchecked.append("sizes, positions, layer ids and the embedding: give --target")
    _check_tensors(found, engine, read.config, report)
    _check_types(found, report)
    _check_values(report, facts)
    _check_map(report, found, counts_V, facts)
    _check_record(report, found, read.config)
    return report


def _check_tensors(found: DraftFolder, engine: str, config: DrafterConfig, report: CheckReport) -> None:
    """The fate of each stored tensor, then of each that the network has and the file has not."""
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in Drafter(config).state_dict().items()}
    shape = Shape(frozenset(shapes), config.draft_vocab_size < config.vocab_size, config.has_own_embedding)
    for stored, tensor in sorted(found.state.items()):
        to = place(engine, stored, shape)
        fate, why = to.fate, to.why
        if to.name is not None and list(tensor.shape) != shapes[to.name]:
            fate, why = REFUSED, f"the config asks for {shapes[to.name]}"
        elif to.name in report.state:
            fate, why = REFUSED, "a second tensor of this name"
        elif to.name is not None:
            report.state[to.name] = tensor
        report.tensors.append(TensorLine(stored, fate, list(tensor.shape), why))
        if fate in (REFUSED, IGNORED) and not (to.harmless and fate == to.fate):
            report.faults.append(f"{stored} is {fate}: {why}")
    reached = set(report.state)
    for name in sorted(shapes.keys() - reached):
        to = absent(engine, name, shape)
        report.tensors.append(TensorLine(name, to.fate, None, to.why))
        if to.fate == MISSING:
            report.faults.append(f"{name} is missing: {to.why}")
        elif not to.harmless:
            report.warnings.append(f"{name}: {to.why}")


def _check_types(found: DraftFolder, report: CheckReport) -> None:
    """The number type declared must be the one stored."""
    layer = found.fields.get("transformer_layer_config") or {}
    declared = found.fields.get("torch_dtype") or found.fields.get("dtype") or layer.get("torch_dtype")
    kinds = {str(t.dtype).removeprefix("torch.") for t in found.state.values() if t.is_floating_point()}
    if declared is None:
        report.warnings.append("no number type is declared")
    elif kinds != {declared}:
        report.faults.append(f"the config declares {declared}, stored is {', '.join(sorted(kinds))}")
    d2t = report.state.get("d2t")
    if report.engine == "trtllm" and d2t is not None and d2t.dtype != torch.int32:
        report.warnings.append(
            f"d2t is {str(d2t.dtype).removeprefix('torch.')}, TensorRT-LLM's parameter is int32"
        )


def _check_values(report: CheckReport, facts: TargetFacts | None) -> None:
    for name, tensor in report.state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            report.faults.append(f"{name} holds numbers that are not finite")
    compared = facts is not None or report.engine in ("sglang", "trtllm")
    judged = (HEAD,) if compared and not _own_embedding(report) else (HEAD, EMBEDDING)
    for name in judged:
        if name in report.state and looks_drawn(report.state[name]):
            report.faults.append(f"{name} is random: its rows are all as long as an initialiser draws them")
    layer = [name for name, t in report.state.items() if name.startswith("midlayer.") and t.dim() == 2]
    drawn = [name for name in layer if looks_drawn(report.state[name])]
    if layer and len(drawn) == len(layer):
        report.warnings.append("every matrix of the layer looks as an initialiser draws it: was it trained?")
    stored = report.state.get(EMBEDDING)
    if facts is None or stored is None or _own_embedding(report):
        return
    target = TargetWeights(facts.folder).embedding()
    if target.shape != stored.shape or not torch.equal(target.to(stored.dtype), stored):
        if report.engine in ("vllm", "speculators"):
            report.faults.append(f"{EMBEDDING} is not the target's, and {report.engine} uses it as it is")
        else:
            report.warnings.append(
                f"{EMBEDDING} is not the target's; {report.engine} replaces it, vLLM would use it"
            )


def _check_map(
    report: CheckReport, found: DraftFolder, counts_V: Tensor | None, facts: TargetFacts | None
) -> None:
    """The map from draft to target ids: one to one, in range, as marked, and of good coverage."""
    config = report.config
    assert config is not None
    if config.draft_vocab_size == config.vocab_size or "d2t" not in report.state:
        return
    ids = report.state["d2t"].to(torch.int64) + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        report.faults.append(
            f"d2t leads to ids {int(ids.min())} to {int(ids.max())} of {config.vocab_size}: absolute ids stored as"
            " offsets look so"
        )
        return
    if len(ids.unique()) < len(ids):
        report.faults.append(
            "d2t leads two draft ids to one target id: it is shuffled, or it holds absolute ids"
        )
    elif not bool((ids.diff() > 0).all()):
        text = (
            "d2t does not rise: the rows of the head no longer fit it, if they were trained in rising order"
        )
        (report.faults if found.record else report.warnings).append(text)
    marks = report.state.get("t2d")
    if marks is not None and not torch.equal(marks.nonzero().flatten(), ids.unique()):
        report.faults.append(
            "t2d does not mark the ids that d2t leads to: the maps are of different vocabularies"
        )
    _check_coverage(report, found, ids, None if counts_V is None else measure_for(facts, ids, counts_V))


def _check_coverage(
    report: CheckReport, found: DraftFolder, ids_R: Tensor, coverage: Coverage | None
) -> None:
    record = found.record
    if coverage is not None:
        if not coverage.is_enough:
            report.faults.append(f"the draft vocabulary is badly chosen: {coverage}")
        return
    if record is not None and record.coverage is not None and record.best_coverage is not None:
        if record.coverage < LEAST_OF_BEST * record.best_coverage:
            report.faults.append(
                f"the draft vocabulary is badly chosen: coverage {record.coverage:.3f} of {record.best_coverage:.3f}"
            )
    elif not bool((ids_R != torch.arange(len(ids_R))).any()):
        report.warnings.append(
            f"the draft vocabulary is just the first {len(ids_R)} target ids, which is what a lost map looks like:"
            " every token of another id will be missed"
        )
    else:
        report.unchecked.append("the coverage of the draft vocabulary: give --vocab")


def _check_record(report: CheckReport, found: DraftFolder, config: DrafterConfig) -> None:
    """What the folder says against what Eyas wrote when it exported it."""
    record = found.record
    if record is None:
        return
    if record.engine != report.engine:
        report.warnings.append(f"the folder was exported for {record.engine}, not for {report.engine}")
    if report.boundaries is not None and report.boundaries != record.boundaries:
        report.faults.append(
            f"{report.engine} feeds the aux boundaries {report.boundaries},"
            f" the drafter was trained on {record.boundaries}"
        )
    for name, trained in record.flags.items():
        if getattr(config, name) != trained:
            report.faults.append(
                f"{report.engine} takes {name} as {str(getattr(config, name)).lower()}, the drafter was trained with"
                f" {str(trained).lower()}"
            )
        elif name not in found.fields and not (
            report.engine == "trtllm" and name in (found.fields.get("eagle_config") or {})
        ):
            report.faults.append(
                f"{name} was dropped from config.json: formats differ in what its absence means"
            )


def _own_embedding(report: CheckReport) -> bool:
    return report.config is not None and report.config.has_own_embedding
