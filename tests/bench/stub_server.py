"""Stand-ins for vLLM's and SGLang's servers: they answer with known tokens in known rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

PORT = 0
"""0: any that is free."""


class Stub:
    """rounds: tokens of each round after the first token of every answer, () for a plain server. overshoot: accepted
    drafts past the end that the engine counts. step_s: seconds a round. drift: tokens that other clients get
    meanwhile."""

    def __init__(self, kind: str, rounds: tuple[int, ...], drafts: int, **more: Any) -> None:
        self.kind, self.rounds, self.drafts = kind, rounds, drafts
        self.length: int = more.get("length", 1 + sum(rounds))
        self.step_s: float = more.get("step_s", 0.0)
        self.overshoot: int = more.get("overshoot", 0)
        self.drift: int = more.get("drift", 0)
        self.bodies: list[dict[str, Any]] = []
        self.counts = {"drafts": 0, "draft_tokens": 0, "accepted": 0, "generated": 0}
        self.positions = [0] * drafts
        self.lock = threading.Lock()

    def pieces(self) -> list[list[int]]:
        tokens = list(range(100, 100 + self.length))
        sizes = self.rounds or (1,) * (self.length - 1)
        made, at = [tokens[:1]], 1
        for size in sizes:
            made.append(tokens[at : at + size])
            at += size
        return made

    def count(self) -> None:
        with self.lock:
            self.counts["generated"] += self.length + self.drift
            for number, size in enumerate(self.rounds):
                extra = self.overshoot if number == len(self.rounds) - 1 else 0
                accepted = min(size - 1 + extra, self.drafts)
                self.counts["drafts"] += 1
                self.counts["draft_tokens"] += self.drafts
                self.counts["accepted"] += accepted
                for place in range(accepted):
                    self.positions[place] += 1

    def metrics(self) -> str:
        names = {"drafts": "spec_decode_num_drafts", "draft_tokens": "spec_decode_num_draft_tokens"}
        names |= {"accepted": "spec_decode_num_accepted_tokens", "generated": "generation_tokens"}
        lines = ["# HELP vllm:spec_decode_num_drafts_total rounds"]
        lines += [
            f'vllm:{names[k]}_total{{engine="0",model_name="m"}} {float(v)}' for k, v in self.counts.items()
        ]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {float(n)}'
            for i, n in enumerate(self.positions)
        ]
        return "\n".join(lines) + "\n"


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """The URL of the stub, up as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.reply(stub.metrics().encode())
            elif self.path == "/v1/models":
                self.reply(orjson.dumps({"data": [{"id": "m", "owned_by": stub.kind}]}))
            else:
                self.reply(orjson.dumps({"version": "0.0.1"}))

        def do_POST(self) -> None:
            body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.bodies.append(body)
            self.send_response(200)
            self.end_headers()
            known: list[int] = []
            for number, piece in enumerate(stub.pieces()):
                time.sleep(stub.step_s if number else 0.0)
                known += piece
                event: dict[str, Any] = {"choices": [{"token_ids": piece}]}
                if stub.kind == "sglang":
                    event = {"output_ids": known, "meta_info": {"spec_verify_ct": number}}
                self.wfile.write(b"data: " + orjson.dumps(event) + b"\n\n")
                self.wfile.flush()
            stub.count()
            self.wfile.write(b"data: [DONE]\n\n")

        def reply(self, data: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
