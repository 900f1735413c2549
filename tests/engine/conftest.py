"""The demo target, the pipeline's drafter, and vLLM's servers, each started once.

Servers: plain; 3 drafts with the trained drafter; 3 drafts with one of random weights. All in float32 on loopback.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine_setup import DRAFTS, PROMPTS, STREAMS, TOKENS, Served, Trained
from eyas import pipeline
from eyas.bench.client import Server
from eyas.bench.compare import InTurns, Workload
from eyas.bench.measured import Measured
from eyas.bench.planned import planned_drafter, write_planned
from eyas.bench.prompt_sets import Request, read_questions
from eyas.bench.systems import HfSystem, ServerSystem
from eyas.core.contract import TargetFacts, read_facts
from eyas.drafter.network import Drafter
from eyas.engines.demo import prepare_demo
from eyas.engines.hf import HfTarget
from eyas.engines.serving import Running
from eyas.engines.template import chat_template
from eyas.engines.vllm import VllmServer
from eyas.export.load_as import load_as_engine
from eyas.recipe import read_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def target_folder() -> Path:
    return prepare_demo()


@pytest.fixture(scope="session")
def trained(target_folder: Path) -> Trained:
    """Of the whole demo if that is complete in runs/demo, else of a small run in runs/engine."""
    for recipe, workspace in (
        (ROOT / "recipes" / "demo.yaml", ROOT / "runs" / "demo"),
        (Path(__file__).parent / "small.yaml", ROOT / "runs" / "engine"),
    ):
        read = read_recipe(recipe)
        steps = {step.name: step for step in pipeline.chain(read, recipe, workspace)}
        if recipe.stem == "demo" and steps["export"].manifest is None:
            continue
        for step, _, _ in pipeline.run(list(steps.values()), read.name, "export", None):
            print(f"{step.name}: {step.folder.name}")
        return Trained(steps["export"].folder / "vllm", steps["merge"].folder / "eval.jsonl")
    raise AssertionError("the small recipe always runs")


@pytest.fixture(scope="session")
def facts(target_folder: Path) -> TargetFacts:
    return read_facts(target_folder)


@pytest.fixture(scope="session")
def workload(trained: Trained, target_folder: Path) -> Workload:
    questions = read_questions(trained.held_out, None)
    spread = questions[:: max(1, len(questions) // PROMPTS)][:PROMPTS]
    named = [dataclasses.replace(question, set="held-out") for question in spread]
    return Workload({"held-out": named}, chat_template(target_folder), TOKENS, 0.0)


@pytest.fixture(scope="session")
def requests(workload: Workload) -> list[Request]:
    return [Request(q.set, q.id, list(q.ids or [])) for q in workload.sets["held-out"]]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def server(target: Path, drafter: Path | None) -> VllmServer:
    return VllmServer(
        target=target,
        drafter=drafter,
        draft_tokens=DRAFTS if drafter else 0,
        dtype="float32",
        max_length=512,
        max_streams=STREAMS,
    )


class Metered(ServerSystem):
    """A server whose CPU time stands beside what it answered to one stream."""

    def __init__(self, ready: Running, draft_tokens: int) -> None:
        super().__init__(Server(ready.url), draft_tokens)
        self.ready = ready
        self.alone: list[tuple[Measured, float]] = []

    def measure(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> Measured:
        before = self.ready.cpu_seconds()
        measured = super().measure(requests, concurrency, max_tokens, temperature)
        if concurrency == 1:
            self.alone.append((measured, self.ready.cpu_seconds() - before))
        return measured


@pytest.fixture(scope="session")
def plain_server(target_folder: Path, logs: Path, requests: list[Request]) -> Iterator[Metered]:
    with server(target_folder, None).started(logs / "plain.log") as ready:
        print(f"the plain server took {ready.seconds:.0f} s to start")
        system = Metered(ready, 0)
        system.warm_up(requests[0])
        yield system


def served(
    target: Path, drafter: Path, plain: Metered, workload: Workload, log: Path, streams: list[int]
) -> Served:
    """Cells of a drafter beside the plain server; one stream comes first."""
    with server(target, drafter).started(log) as ready:
        print(f"{log.stem}: {ready.seconds:.0f} s to start")
        system = Metered(ready, DRAFTS)
        system.warm_up(workload.any_request())
        plain.alone.clear()
        turns = InTurns(workload, streams)
        turns.together(plain, system)
    alone, plain_alone = Measured(), Measured()
    for measured, _ in system.alone:
        alone.add(measured)
    for measured, _ in plain.alone:
        plain_alone.add(measured)
    round_s = sum(cpu for _, cpu in system.alone) / (alone.rounds or 1)
    step_s = sum(cpu for _, cpu in plain.alone) / plain_alone.decoded
    return Served(turns.cells, turns.details, alone, round_s / step_s)


@pytest.fixture(scope="session")
def with_trained(
    target_folder: Path, trained: Trained, plain_server: Metered, workload: Workload, logs: Path
) -> Served:
    return served(target_folder, trained.folder, plain_server, workload, logs / "trained.log", [1, STREAMS])


@pytest.fixture(scope="session")
def random_folder(trained: Trained, facts: TargetFacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of the trained one's shape with random weights."""
    drafter, boundaries = load_as_engine(trained.folder, "vllm", facts)
    folder = tmp_path_factory.mktemp("random")
    write_planned(folder, planned_drafter(facts, drafter.config), boundaries, facts, "float32")
    return folder


@pytest.fixture(scope="session")
def with_random(
    target_folder: Path, random_folder: Path, plain_server: Metered, workload: Workload, logs: Path
) -> Served:
    return served(target_folder, random_folder, plain_server, workload, logs / "random.log", [1])


@pytest.fixture(scope="session")
def target(target_folder: Path) -> HfTarget:
    return HfTarget(target_folder)


@pytest.fixture(scope="session")
def drafter(trained: Trained, facts: TargetFacts) -> tuple[Drafter, list[int]]:
    return load_as_engine(trained.folder, "vllm", facts)


@pytest.fixture(scope="session")
def by_transformers(target: HfTarget, requests: list[Request]) -> Measured:
    return HfSystem(target, 1).measure(requests, 1, TOKENS, 0.0)


@pytest.fixture(scope="session")
def by_reference(target: HfTarget, drafter: tuple[Drafter, list[int]], requests: list[Request]) -> Measured:
    return HfSystem(target, 1, *drafter, draft_tokens=DRAFTS).measure(requests, 1, TOKENS, 0.0)
