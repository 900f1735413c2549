"""vLLM's Prometheus counters of speculative decoding, as differences around what we did."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from itertools import zip_longest

from .client import Server

_LINE = re.compile(r"^vllm:(\w+?)_total(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')
_SETTLE_S, _SETTLED_S = 5.0, 0.2


@dataclass(frozen=True)
class Counters:
    """Sums over the server's engines. drafts: rounds with drafts; accepted_by_position: drafts accepted at each
    position, those past an answer's end included. generated: tokens of all requests."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_by_position: tuple[int, ...]
    generated: int

    def plus(self, other: Counters) -> Counters:
        """Both differences together."""
        ours, theirs = self.accepted_by_position, other.accepted_by_position
        return Counters(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip_longest(ours, theirs, fillvalue=0)),
            self.generated + other.generated,
        )

    def since(self, before: Counters) -> Counters:
        earlier = (*before.accepted_by_position, *[0] * len(self.accepted_by_position))
        return Counters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted - before.accepted,
            tuple(now - then for now, then in zip(self.accepted_by_position, earlier, strict=False)),
            self.generated - before.generated,
        )


def parse(text: str) -> Counters:
    """The counters in the text of /metrics."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _LINE.findall(text):
        place = _POSITION.search(labels or "")
        if name == "spec_decode_num_accepted_tokens_per_pos" and place:
            positions[int(place[1])] = positions.get(int(place[1]), 0.0) + float(value)
        else:
            sums[name] = sums.get(name, 0.0) + float(value)
    return Counters(
        int(sums.get("spec_decode_num_drafts", 0)),
        int(sums.get("spec_decode_num_draft_tokens", 0)),
        int(sums.get("spec_decode_num_accepted_tokens", 0)),
        tuple(int(positions[i]) for i in sorted(positions)),
        int(sums.get("generation_tokens", 0)),
    )


def read(server: Server) -> Counters:
    """The counters when they stand still, or after 5 s if they never do: the engine updates them behind its replies."""
    deadline = time.monotonic() + _SETTLE_S
    found = parse(server.text("/metrics"))
    while time.monotonic() < deadline:
        time.sleep(_SETTLED_S)
        again = parse(server.text("/metrics"))
        if again == found:
            break
        found = again
    return found
