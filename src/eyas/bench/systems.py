"""Systems that answer requests: the reference decoder in this process, and servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from eyas.drafter.network import Drafter
from eyas.engines.hf import HfTarget

from . import counters
from .client import Reply, Server
from .decoder import Sampling, decode
from .measured import Measured, Sample
from .plain import decode_plainly
from .prompt_sets import Request
from .tree import TreeShape
from .verdict import PLAIN

WARM_TOKENS = 4


class System(Protocol):
    """engine: hf, vllm or sglang. draft_tokens: drafts a round, 0 for plain decoding."""

    @property
    def engine(self) -> str: ...

    @property
    def draft_tokens(self) -> int: ...

    def measure(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> Measured: ...


@dataclass
class HfSystem:
    """The reference decoder. With one thread its clock is CPU time, which other work on the machine does not move."""

    target: HfTarget
    threads: int
    drafter: Drafter | None = None
    boundaries: Sequence[int] = ()
    draft_tokens: int = PLAIN
    tree: TreeShape | None = None
    engine: str = "hf"
    _clock: float = 0.0

    def measure(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> Measured:
        assert concurrency == 1
        return Measured([self._one(request, max_tokens, temperature) for request in requests])

    def _one(self, request: Request, max_tokens: int, temperature: float) -> Sample:
        sampling = Sampling(temperature)
        if self.drafter is None:
            made = decode_plainly(self.target, request.ids, max_tokens, sampling=sampling)
        else:
            made = decode(
                self.target,
                self.drafter,
                self.boundaries,
                request.ids,
                self.draft_tokens,
                max_tokens,
                sampling=sampling,
                tree=self.tree,
            )
        spent = made.spent.cpu if self.threads == 1 else made.spent.wall
        begun, self._clock = self._clock, self._clock + spent
        rounds = None if self.drafter is None else len(made.rounds)
        return Sample(request.id, len(request.ids), made.tokens, begun, self._clock, rounds, made.accepted)


@dataclass
class ServerSystem:
    """A server that is up. draft_tokens 0: it serves without a drafter."""

    server: Server
    draft_tokens: int

    @property
    def engine(self) -> str:
        return self.server.kind

    def warm_up(self, request: Request) -> None:
        """What the first request of a server pays once is not measured."""
        self.server.answer([request], 1, WARM_TOKENS, 0.0)

    def measure(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> Measured:
        counts = self.server.kind == "vllm"
        before = counters.read(self.server) if counts else None
        replies = self.server.answer(requests, concurrency, max_tokens, temperature)
        measured = Measured([_sample(reply) for reply in replies])
        if before is not None:
            moved = counters.read(self.server).since(before)
            measured.foreign = moved.generated != measured.tokens
            if self.draft_tokens != PLAIN:
                measured.counters = moved
                _tell_rounds(measured, replies)
        return measured


@dataclass
class LateServer:
    """A server of vLLM that `start` starts and warms up with the first block that is asked of it."""

    start: Callable[[], ServerSystem]
    draft_tokens: int
    engine: str = "vllm"
    _system: ServerSystem | None = None

    def measure(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> Measured:
        self._system = self._system or self.start()
        return self._system.measure(requests, concurrency, max_tokens, temperature)


def _sample(reply: Reply) -> Sample:
    request = reply.request
    return Sample(request.id, len(request.ids), reply.tokens, reply.first, reply.last, reply.rounds)


def _tell_rounds(measured: Measured, replies: Sequence[Reply]) -> None:
    """Each request's rounds, where its chunks were its rounds: vLLM sends one chunk a step, unless the client was too
    slow; then the sum is not the counter's and nothing is told."""
    assert measured.counters is not None
    rounds = [reply.chunks - 1 for reply in replies]
    if sum(rounds) == measured.counters.drafts:
        measured.samples = [_sample_with(reply, n) for reply, n in zip(replies, rounds, strict=True)]


def _sample_with(reply: Reply, rounds: int) -> Sample:
    request = reply.request
    return Sample(request.id, len(request.ids), reply.tokens, reply.first, reply.last, rounds)
