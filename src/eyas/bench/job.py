"""`eyas bench`: the work of it for each kind of engine.

hf: target and drafter in this process. vllm: servers that Eyas starts, the plain one beside the drafted ones where
memory allows, else in blocks. A URL: servers that are up.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from eyas.core.contract import read_facts
from eyas.core.errors import EyasError
from eyas.drafter.network import Drafter
from eyas.engines.hf import DTYPES, HfTarget
from eyas.engines.template import chat_template
from eyas.export.load_as import load_as_engine
from eyas.export.reading import any_engine_folder

from .compare import InTurns, Workload
from .hints import Trial
from .outcome import outcome
from .planned import planned_drafter, shape_of
from .prompt_sets import read_questions
from .servers import given_servers, own_servers
from .systems import HfSystem
from .tree import TreeShape
from .work import BenchJob, Work

TRIAL_PROMPTS, TRIAL_TOKENS = 3, 32


def run_job(job: BenchJob) -> dict[str, Any]:
    """Measure, and say what it means: the object that `--json` prints and results.json holds."""
    facts = read_facts(job.target)
    _require(job)
    sets = {}
    for path in job.prompts:
        if path.stem in sets:
            raise EyasError("two prompt sets have one name", file=path, mend="rename one of the files")
        sets[path.stem] = read_questions(path, job.limit)
    workload = Workload(sets, chat_template(job.target), job.max_tokens, job.temperature, job.blocks)
    folder, engine = any_engine_folder(job.drafter) if job.drafter else (None, "vllm")
    work = Work(job, facts, InTurns(workload, job.concurrency), folder, engine, shape=job.shape)
    if job.engine == "hf":
        _in_process(work)
    elif job.engine == "vllm":
        own_servers(work)
    else:
        given_servers(work)
    return outcome(work)


def _require(job: BenchJob) -> None:
    is_url = job.engine not in ("hf", "vllm")
    for wrong, what, mend in (
        (min(job.draft_tokens, default=0) < 1, "drafts a round must be at least 1", "correct --draft-tokens"),
        (min(job.concurrency, default=0) < 1, "concurrency must be at least 1", "correct --concurrency"),
        (job.max_tokens < 2, "a benchmark needs answers of two tokens", "raise --max-tokens"),
        (job.temperature < 0, "a temperature is not negative", "correct --temperature"),
        (
            job.engine == "hf" and tuple(job.concurrency) != (1,),
            "engine hf decodes one stream",
            "give --concurrency 1, or another engine",
        ),
        (job.tree is not None and job.engine != "hf", "only engine hf drafts trees", "leave --tree out"),
        (job.tree is not None and job.tree < 1, "a tree has a branch at least", "correct --tree"),
        (job.threads < 1, "threads must be at least 1", "correct --threads"),
        (job.threads != 1 and job.engine != "hf", "--threads has no effect on a server", "leave it out"),
        (job.dtype is not None and is_url, "--dtype has no effect on a server that is up", "leave it out"),
        (job.dtype is not None and job.dtype not in DTYPES, f"no number type {job.dtype}", "correct --dtype"),
        (
            job.baseline_url is not None and not is_url,
            "--baseline-url has no effect: this engine brings its own baseline",
            "leave it out, or give --engine URL",
        ),
        (
            is_url and len(job.draft_tokens) > 1,
            "a server that is up has one number of drafts",
            "give one --draft-tokens, or --engine vllm",
        ),
        (
            is_url and job.random_weights,
            "a break-even needs an engine that Eyas starts",
            "give --engine hf or vllm",
        ),
    ):
        if wrong:
            raise EyasError(what, mend=mend)


def _in_process(work: Work) -> None:
    """The reference decoder: plain and drafted in turns, prompt after prompt."""
    job = work.job
    target = HfTarget(job.target, job.dtype or "float32", job.threads)
    drafter, boundaries = _drafter(work, target)
    drafter = drafter.to(DTYPES[job.dtype or "float32"])
    plain = HfSystem(target, job.threads)
    for count in job.draft_tokens:
        tree = TreeShape(count, job.tree, count * job.tree) if job.tree else None
        work.turns.together(plain, HfSystem(target, job.threads, drafter, boundaries, count, tree))
    if work.folder is not None:
        work.trial = _trial(work, target, drafter, boundaries)


def _drafter(work: Work, target: HfTarget) -> tuple[Drafter, list[int]]:
    job, facts = work.job, work.facts
    if job.random_weights:
        shape = shape_of(work)
        return planned_drafter(facts, shape.config), list(shape.boundaries)
    assert work.folder is not None
    return load_as_engine(
        work.folder, work.folder_engine, facts, target.model.get_input_embeddings().weight.detach()
    )


def _trial(work: Work, target: HfTarget, drafter: Drafter, boundaries: list[int]) -> Trial:
    """Accept length on a few prompts with something changed, by the reference decoder."""

    def tried(change: dict[str, Any]) -> float | None:
        at = [b + change.get("shift", 0) for b in boundaries]
        if at[0] < 0 or at[-1] > work.facts.num_layers:
            return None
        changed = drafter
        if "flag" in change:
            changed = _turned(drafter, change["flag"])
        count = work.job.draft_tokens[0]
        system = HfSystem(target, work.job.threads, changed, at, count)
        name, questions = next(iter(work.turns.workload.sets.items()))
        requests = work.turns.workload.requests(name, system, 1)[: min(TRIAL_PROMPTS, len(questions))]
        measured = system.measure(requests, 1, TRIAL_TOKENS, 0.0)
        return measured.decoded / measured.rounds if measured.rounds else None

    return tried


def _turned(drafter: Drafter, flag: str) -> Drafter:
    """The same weights under the opposite of a flag that has no tensors of its own."""
    turned = copy.copy(drafter)
    turned._modules = dict(drafter._modules)  # a shallow copy shares the table of parts
    changes: dict[str, Any] = {flag: not getattr(drafter.config, flag)}
    turned.config = dataclasses.replace(drafter.config, **changes)
    turned.midlayer = copy.copy(drafter.midlayer)
    turned.midlayer.config = turned.config
    return turned
