from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import toy
import toy_run
from eyas.core.rows import TokenRow
from eyas.drafter.network import Drafter
from eyas.engines.hf import HfTarget
from eyas.states.store import StateRow


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_target(tmp_path_factory.mktemp("toy") / "target")


@pytest.fixture(scope="session")
def target(target_folder: Path) -> HfTarget:
    return HfTarget(target_folder)


@pytest.fixture(scope="session")
def rows(target: HfTarget) -> list[TokenRow]:
    return [toy.greedy_row(target, prompt, 32, f"row-{i}") for i, prompt in enumerate(toy.prompts(6))]


@pytest.fixture(scope="session")
def state_rows(target: HfTarget, rows: list[TokenRow]) -> list[StateRow]:
    return [toy.without_gradients(toy.with_states(target, row)) for row in rows]


@pytest.fixture(scope="session")
def good(target_folder: Path, state_rows: list[StateRow]) -> Drafter:
    return toy.good_drafter(target_folder, state_rows)


@pytest.fixture
def chance(target_folder: Path) -> Drafter:
    return toy.chance_drafter(target_folder)


@pytest.fixture(scope="session")
def chat_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy target with a template, so that questions can be asked."""
    folder = toy.write_target(tmp_path_factory.mktemp("chat") / "target")
    template = (
        "{% for m in messages %}{{ m['role'] == 'user' and 'w7 ' or 'w8 ' }}{{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}w9{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.fixture
def drafter_folder(tmp_path: Path, chat_target: Path, good: Drafter) -> Path:
    train = toy_run.train_artefact(tmp_path / "train", good)
    return toy_run.export(tmp_path / "export", train, chat_target).path


@pytest.fixture
def row_set(tmp_path: Path, rows: list[TokenRow]) -> Path:
    file = tmp_path / "held-out.jsonl"
    file.write_bytes(b"".join(row.line() for row in rows))
    return file
