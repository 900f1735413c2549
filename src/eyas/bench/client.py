"""A streaming client that times decoding alone: the first token's arrival to the last one's.

vLLM (and servers that speak its completions API with token ids) and SGLang's native `/generate`. Prompts are sent as
ids, so no server renders or tokenises anything.
"""

from __future__ import annotations

import http.client
import time
import urllib.parse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson

from eyas.core.errors import EyasError

from .prompt_sets import Request

TIMEOUT_S = 600


@dataclass(frozen=True)
class Reply:
    """first, last: seconds on one clock when the first and the last token came. rounds: verification rounds where the
    server tells them for each request (SGLang). chunks: pieces that the tokens came in."""

    request: Request
    tokens: list[int]
    first: float
    last: float
    chunks: int
    rounds: int | None = None


class Server:
    """A server by its URL. kind: vllm or sglang; model: the name that it serves the target under."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EyasError("this is no server's URL", found=url, expected="http://HOST:PORT")
        self._parts = parts
        listed = self._json("/v1/models")
        first = listed["data"][0]
        self.model = str(first["id"])
        self.kind = "sglang" if first.get("owned_by") == "sglang" else "vllm"

    def version(self) -> str:
        """The engine's own, where it says."""
        path = "/get_server_info" if self.kind == "sglang" else "/version"
        try:
            return f"{self.kind} {self._json(path).get('version', 'unknown')}"
        except EyasError:
            return f"{self.kind} unknown"

    def text(self, path: str) -> str:
        connection = self._connect()
        try:
            connection.request("GET", self._parts.path + path)
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
            if answer.status != 200:
                raise self._refused(path, f"status {answer.status}: {body[:200]}")
            return body
        except (OSError, http.client.HTTPException) as error:
            raise self._refused(path, f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def answer(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> list[Reply]:
        """The replies in the order of the requests, at most `concurrency` in flight."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda request: self._one(request, max_tokens, temperature), requests))

    def _one(self, request: Request, max_tokens: int, temperature: float) -> Reply:
        if self.kind == "sglang":
            path, body = "/generate", _sglang_body(request, max_tokens, temperature)
        else:
            path, body = "/v1/completions", _vllm_body(self.model, request, max_tokens, temperature)
        tokens: list[int] = []
        first = last = 0.0
        chunks, rounds = 0, None
        for event in self._events(path, body):
            fresh, told = _sglang_tokens(event, len(tokens)) if self.kind == "sglang" else _vllm_tokens(event)
            rounds = told if told is not None else rounds
            if not fresh:
                continue
            last = time.perf_counter()
            first = first or last
            chunks += 1
            tokens += fresh
        if not tokens:
            raise self._refused(path, "no token ids in its answer")
        return Reply(request, tokens, first, last, chunks, rounds)

    def _events(self, path: str, body: dict[str, Any]) -> Any:
        """The objects of a stream of server-sent events."""
        connection = self._connect()
        try:
            connection.request(
                "POST", self._parts.path + path, orjson.dumps(body), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            if answer.status != 200:
                raise self._refused(
                    path, f"status {answer.status}: {answer.read(400).decode(errors='replace')}"
                )
            for line in answer:
                data = line.strip().removeprefix(b"data:").strip()
                if data and data != b"[DONE]":
                    yield orjson.loads(data)
        except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
            raise self._refused(path, f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=TIMEOUT_S)

    def _json(self, path: str) -> dict[str, Any]:
        try:
            return orjson.loads(self.text(path))
        except orjson.JSONDecodeError as error:
            raise self._refused(path, "no JSON") from error

    def _refused(self, path: str, found: str) -> EyasError:
        return EyasError(
            "the server does not answer as expected",
            file=self.url + path,
            found=found,
            mend="give the URL of a vLLM or SGLang server that is up",
        )


def _vllm_body(model: str, request: Request, max_tokens: int, temperature: float) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": request.ids,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "return_token_ids": True,
    }


def _sglang_body(request: Request, max_tokens: int, temperature: float) -> dict[str, Any]:
    sampling = {"temperature": temperature, "max_new_tokens": max_tokens}
    return {"input_ids": request.ids, "sampling_params": sampling, "stream": True}


def _vllm_tokens(event: dict[str, Any]) -> tuple[list[int], int | None]:
    choices = event.get("choices") or []
    return (choices[0].get("token_ids") or [] if choices else []), None


def _sglang_tokens(event: dict[str, Any], known: int) -> tuple[list[int], int | None]:
    """SGLang repeats all tokens so far in each event, with the request's figures beside them."""
    told = event.get("meta_info", {}).get("spec_verify_ct")
    return list(event.get("output_ids") or [])[known:], None if told is None else int(told)
