"""Benchmarks of servers: those of vLLM that Eyas starts and ends, and those that are up."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from eyas.core.errors import EyasError
from eyas.engines.vllm import VllmServer, has_gpu, vllm_version

from . import surroundings
from .cells import NOT_MEASURED
from .client import Server
from .counters import read as read_counters
from .planned import planned_drafter, shape_of, write_planned
from .prompt_sets import Request
from .systems import LateServer, ServerSystem
from .verdict import PLAIN
from .work import Work

SERVER_OVERHEAD_BYTES = 1.5e9
"""Of a vLLM server beside weights and cache: two processes with torch, measured 1.4 GB."""


def own_servers(work: Work) -> None:
    """Servers of vLLM, started and ended here: with memory for two the plain one stays up, else it comes first and
    last."""
    job, turns = work.job, work.turns
    work.engine_version = vllm_version()
    with contextlib.ExitStack() as stack:
        logs = job.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eyas-bench-")))
        folder = _served_folder(work, logs)
        if _two_fit(work):
            plain = stack.enter_context(_up(work, None, PLAIN, logs / "plain.log"))
            for count in job.draft_tokens:
                with _up(work, folder, count, logs / f"drafts-{count}.log") as drafted:
                    turns.together(plain, drafted)
            return
        work.notes.append("two servers do not fit at once: measured in blocks, plain, drafted, plain")
        with _up(work, None, PLAIN, logs / "plain-1.log") as plain:
            before = turns.blocks(plain)
        made = []
        for count in job.draft_tokens:
            with _up(work, folder, count, logs / f"drafts-{count}.log") as drafted:
                made.append((drafted, turns.blocks(drafted)))
        with _up(work, None, PLAIN, logs / "plain-2.log") as plain:
            after = turns.blocks(plain)
        for drafted, blocks in made:
            for place, measured in blocks.items():
                turns.add(*place, drafted, measured, [before[place], after[place]])


@contextlib.contextmanager
def _up(work: Work, folder: Path | None, count: int, log: Path) -> Iterator[LateServer]:
    """A server that is started when something is asked of it: a run that goes on may need it no more."""
    job = work.job
    server = VllmServer(
        target=job.target,
        drafter=folder,
        draft_tokens=count,
        dtype=job.dtype or ("auto" if has_gpu() else "float32"),
        max_length=_max_length(work),
        max_streams=max(job.concurrency),
    )
    with contextlib.ExitStack() as running:

        def start() -> ServerSystem:
            system = ServerSystem(Server(running.enter_context(server.started(log)).url), count)
            system.warm_up(work.turns.workload.any_request())
            return system

        yield LateServer(start, count)


def _max_length(work: Work) -> int:
    """Room for the longest prompt with its answer; a later turn's prompt holds the answers before it."""
    job, workload = work.job, work.turns.workload
    longest = 0
    for questions in workload.sets.values():
        for question in questions:
            texts = sum(len(workload.template.encode(text)) for text in question.turns)
            given = len(question.ids or []) + sum(
                len(workload.template.encode(str(m.get("content") or ""))) + 16 for m in question.messages
            )
            longest = max(longest, given + texts + len(question.turns) * (job.max_tokens + 16))
    room = longest + job.max_tokens + max(job.draft_tokens) + 128
    return min(-(-room // 128) * 128, work.facts.max_position_embeddings)


def _served_folder(work: Work, scratch: Path) -> Path:
    """The drafter's folder in vLLM's form, or one of random weights."""
    job, facts = work.job, work.facts
    if not job.random_weights:
        assert work.folder is not None
        if work.folder_engine not in ("vllm", "speculators"):
            raise EyasError(
                f"the folder was exported for {work.folder_engine}, not for vllm",
                file=work.folder,
                mend="export the checkpoint with --engine vllm",
            )
        return work.folder
    shape = shape_of(work)
    folder = scratch / "planned"
    write_planned(
        folder, planned_drafter(facts, shape.config), shape.boundaries, facts, job.dtype or "float32"
    )
    return folder


def _two_fit(work: Work) -> bool:
    """Two servers at once: on a CPU if their weights, caches and processes fit into 0.8 of what is free. On GPUs each
    server takes its share of all memory, so they never do."""
    if has_gpu():
        return False
    weights = work.facts.weight_bytes * (2 if (work.job.dtype or "float32") == "float32" else 1)
    one = weights + 2**30 + SERVER_OVERHEAD_BYTES
    return 2 * one < 0.8 * surroundings.free_memory()


def given_servers(work: Work) -> None:
    job = work.job
    server = Server(job.engine)
    work.engine_version = server.version()
    drafted = ServerSystem(server, job.draft_tokens[0])
    request = work.turns.workload.any_request()
    drafted.warm_up(request)
    if server.kind == "vllm":
        drafted.draft_tokens = _told_drafts(server, request, job.draft_tokens[0])
    plain = None
    if job.baseline_url is not None:
        plain = ServerSystem(Server(job.baseline_url), PLAIN)
        plain.warm_up(request)
    else:
        work.notes.append(f"no baseline: speed-up {NOT_MEASURED}")
    work.turns.together(plain, drafted)


def _told_drafts(server: Server, request: Request, asked: int) -> int:
    """Drafts a round by the server's own counters, over one short answer."""
    before = read_counters(server)
    server.answer([request], 1, 16, 0.0)
    moved = read_counters(server).since(before)
    if not moved.drafts:
        raise EyasError(
            "the server drafts nothing: its counters of speculative decoding stand still",
            file=server.url,
            mend="start it with the drafter, or give it as --baseline-url",
        )
    told = round(moved.draft_tokens / moved.drafts)
    if told != asked:
        raise EyasError(
            "the server drafts another number of tokens a round",
            file=server.url,
            expected=f"--draft-tokens {told}",
            found=asked,
            mend=f"give --draft-tokens {told}: drafted tokens alone are counted, the target's own is not",
        )
    return told
