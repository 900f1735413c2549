"""Cells: the figures of one set in one setting, and what stands beside them.

accept_length = (tokens - requests) / rounds, pooled over requests: the first token of an answer comes from the
prefill and is in no round, the target's own token of each round is counted, tokens past an answer's end are not.
speedup = tok_s / baseline_tok_s; round_cost = accept_length / speedup, which is also the accept length that breaks
even. Times are of decoding alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .measured import Measured, Sample

NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One set, drafts a round, concurrency and temperature. tokens: of all answers, first tokens included. tok_s: all
    streams together, per second of decoding. accept_length_mean: the mean of each request's own, where they are
    known. engine_reported: 1 + accepted / drafts by the engine's own counters, which count past an answer's end.
    None: not measured."""

    set: str
    engine: str
    draft_tokens: int
    concurrency: int
    temperature: float
    requests: int
    tokens: int
    rounds: int | None
    accept_length: float | None
    accept_length_mean: float | None
    acceptance_by_position: list[float] | None
    tok_s: float
    baseline_tok_s: float | None
    speedup: float | None
    round_cost: float | None
    identical_outputs: bool | None
    engine_reported: float | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What a cell has no field for. tok_s_stream: of one stream. by_context: accept length by tokens of prompt and
    answer. differing: requests whose answers differ, with the place. foreign: the server did other work as well."""

    tok_s_stream: float
    baseline_tok_s_stream: float | None
    longest: int
    by_context: dict[str, float] = field(default_factory=dict)
    differing: list[dict[str, Any]] = field(default_factory=list)
    foreign: bool = False


def make_cell(
    set_name: str,
    engine: str,
    draft_tokens: int,
    concurrency: int,
    temperature: float,
    drafted: Measured,
    baseline: Sequence[Measured],
) -> tuple[Cell, Detail]:
    """baseline: the plain system's blocks around the drafted one; () if there is none."""
    rounds = drafted.rounds
    accept_length = None if rounds is None else drafted.decoded / rounds
    tok_s, plain_tok_s = _rate(drafted.decoded, drafted.seconds), _baseline_rate(baseline)
    speedup = None if plain_tok_s is None else tok_s / plain_tok_s
    differing = _differing(drafted, baseline) if temperature == 0.0 else []
    cell = Cell(
        set=set_name,
        engine=engine,
        draft_tokens=draft_tokens,
        concurrency=concurrency,
        temperature=temperature,
        requests=len(drafted.samples),
        tokens=drafted.tokens,
        rounds=rounds,
        accept_length=accept_length,
        accept_length_mean=_mean_of_requests(drafted.samples),
        acceptance_by_position=_by_position(drafted, draft_tokens),
        tok_s=tok_s,
        baseline_tok_s=plain_tok_s,
        speedup=speedup,
        round_cost=accept_length / speedup if accept_length is not None and speedup else None,
        identical_outputs=None if not baseline or temperature > 0.0 else not differing,
        engine_reported=_engine_reported(drafted),
    )
    detail = Detail(
        tok_s_stream=_rate(drafted.decoded, drafted.stream_seconds),
        baseline_tok_s_stream=_rate(sum(m.decoded for m in baseline), sum(m.stream_seconds for m in baseline))
        if baseline
        else None,
        longest=max((s.prompt_tokens + len(s.tokens) for s in drafted.samples), default=0),
        by_context=by_context(drafted.samples),
        differing=differing,
        foreign=drafted.foreign or any(block.foreign for block in baseline),
    )
    return cell, detail


def by_context(samples: Sequence[Sample]) -> dict[str, float]:
    """Accept length of the requests of up to so many tokens, in powers of two from 256."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for sample in samples:
        if sample.rounds:
            limit = 256
            while limit < sample.prompt_tokens + len(sample.tokens):
                limit *= 2
            sums[limit][0] += len(sample.tokens) - 1
            sums[limit][1] += sample.rounds
    return {f"up to {limit}": tokens / rounds for limit, (tokens, rounds) in sorted(sums.items())}


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _baseline_rate(baseline: Sequence[Measured]) -> float | None:
    rate = _rate(sum(block.decoded for block in baseline), sum(block.seconds for block in baseline))
    return rate or None


def _mean_of_requests(samples: Sequence[Sample]) -> float | None:
    if any(sample.rounds is None for sample in samples):
        return None
    own = [(len(sample.tokens) - 1) / sample.rounds for sample in samples if sample.rounds]
    return sum(own) / len(own) if own else None


def _by_position(drafted: Measured, draft_tokens: int) -> list[float] | None:
    """Share of rounds whose draft at each position was accepted, all before it being accepted, too."""
    if drafted.counters is not None:
        drafts = drafted.counters.drafts
        return [count / drafts for count in drafted.counters.accepted_by_position] if drafts else None
    if any(sample.accepted is None for sample in drafted.samples):
        return None
    accepted = [count for sample in drafted.samples for count in sample.accepted or []]
    return (
        [sum(count > k for count in accepted) / len(accepted) for k in range(draft_tokens)]
        if accepted
        else None
    )


def _engine_reported(drafted: Measured) -> float | None:
    counted = drafted.counters
    return 1 + counted.accepted / counted.drafts if counted is not None and counted.drafts else None


def _differing(drafted: Measured, baseline: Sequence[Measured]) -> list[dict[str, Any]]:
    """The requests whose greedy answers differ from the first block's."""
    if not baseline:
        return []
    plain = {sample.id: sample.tokens for sample in baseline[0].samples}
    found = []
    for sample in drafted.samples:
        theirs = plain[sample.id]
        if sample.tokens != theirs:
            shared = min(len(theirs), len(sample.tokens))
            at = next((i for i in range(shared) if theirs[i] != sample.tokens[i]), shared)
            found.append({"id": sample.id, "at": at})
    return found
