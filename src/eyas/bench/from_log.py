"""Accept length from a log of requests: pooled, and the mean of means beside it (C046)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from eyas.core.errors import EyasError
from eyas.core.files import read_lines


def from_log(path: Path) -> dict[str, Any]:
    """Figures of `{"requests": [{"output_tokens", "verify_steps"}]}`, or of one such request a line.

    output_tokens: after the first, which the prompt pass makes, the target's own token of each step included.
    """
    requests = _read(path)
    tokens = sum(request["output_tokens"] for request in requests)
    rounds = sum(request["verify_steps"] for request in requests)
    own = [request["output_tokens"] / request["verify_steps"] for request in requests]
    return {
        "requests": len(requests),
        "tokens": tokens,
        "rounds": rounds,
        "accept_length": tokens / rounds,
        "accept_length_mean": sum(own) / len(own),
        "meaning": (
            "accept_length: tokens / rounds over all requests together, the target's own token of each round counted,"
            " the first token of an answer not; accept_length_mean: the mean of each request's own"
        ),
    }


def _read(path: Path) -> list[dict[str, int]]:
    if not path.is_file():
        raise EyasError("the log does not exist", file=path, mend="give a file of requests")
    try:
        try:
            whole = orjson.loads(path.read_bytes())
            records = whole["requests"] if isinstance(whole, dict) and "requests" in whole else whole
            records = [records] if isinstance(records, dict) else records
        except orjson.JSONDecodeError:
            records = [orjson.loads(line) for _, line in read_lines(path)]
        found = [
            {name: int(record[name]) for name in ("output_tokens", "verify_steps")} for record in records
        ]
        if not found or min(record["verify_steps"] for record in found) < 1:
            raise ValueError("no request with verification steps")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise EyasError(
            "this is no log of requests",
            file=path,
            expected='{"requests": [{"output_tokens": 9, "verify_steps": 4}]} or one request a line',
            found=f"{type(error).__name__}: {error}",
            mend="write these two numbers for each request",
        ) from error
    return found
