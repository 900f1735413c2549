"""The break-even in a recipe's plan: measured figures of this target and this draft shape, or none."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

import tinytarget as tiny
from eyas import pipeline
from eyas.bench import surroundings
from eyas.bench.shape import Shape
from eyas.core.contract import read_facts, target_source
from eyas.core.errors import EyasError
from eyas.plan.break_even import break_even, parts
from eyas.recipe import Recipe, read_recipe

ROWS = [
    {
        "concurrency": streams,
        "draft_tokens": 3,
        "break_even": cost,
        "reachable": True,
        "speedup_at": {"2": 2 / cost, "2.5": 2.5 / cost, "3": 3 / cost},
    }
    for streams, cost in ((1, 1.25), (8, 2.5))
]


def result(target: Path, recipe: Recipe, **changes: Any) -> dict[str, Any]:
    """What `eyas bench --break-even` writes for a recipe."""
    facts = read_facts(target)
    return {
        "target": {
            "fingerprint": target_source(target).fingerprint,
            "model_type": facts.model_type,
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
        },
        "planned_drafter": Shape.of_recipe(recipe, facts).plain(),
        "break_even": ROWS,
        "clock": "cpu",
        "flags": {"dtype": None},
        "versions": {"engine": "hf"},
        "hardware": surroundings.hardware(),
        **changes,
    }


def write(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(orjson.dumps(fields))
    return folder


@pytest.fixture
def recipe_file(tmp_path: Path, tiny_target: Path) -> Path:
    return tiny.write_recipe(tmp_path, tiny_target)


@pytest.fixture
def recipe(recipe_file: Path) -> Recipe:
    return read_recipe(recipe_file)


def planned(recipe_file: Path, workspace: Path, given: Path | None = None) -> dict[str, Any]:
    recipe = read_recipe(recipe_file)
    target = target_source(pipeline.target_folder(recipe.target, recipe_file.parent))
    return break_even(recipe, recipe_file, target, workspace, given)


def shown(found: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=120)
    for part in parts(found):
        console.print(part, soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_was_measured_is_shown_as_it_was_measured(
    recipe_file: Path, recipe: Recipe, tiny_target: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path / "w" / "break-even", result(tiny_target, recipe))
    found = planned(recipe_file, tmp_path / "w")
    assert (found["measured"], found["why"], found["rows"]) == (True, None, ROWS)
    assert found == planned(recipe_file, tmp_path / "elsewhere", folder) | {"command": found["command"]}
    text = shown(found)
    for figure in ("1.25", "2.50", "1.60", "2.40", "0.80", "1.20"):
        assert figure in text, f"{figure} was measured and is not shown"
    assert found["by"]["hardware"]["cpu"] in text
    assert "not this machine" not in text


def test_a_measurement_on_another_machine_is_said_to_be_one(
    recipe_file: Path, recipe: Recipe, tiny_target: Path, tmp_path: Path
) -> None:
    other = {**surroundings.hardware(), "cpu": "another processor", "cores": 999}
    write(tmp_path / "w" / "break-even", result(tiny_target, recipe, hardware=other))
    assert "not this machine" in shown(planned(recipe_file, tmp_path / "w"))


def test_where_none_was_measured_the_plan_shows_no_figure_and_the_command(
    recipe_file: Path, tmp_path: Path
) -> None:
    found = planned(recipe_file, tmp_path / "w")
    assert (found["measured"], found["rows"], found["by"], found["why"]) == (
        False,
        None,
        None,
        "not measured",
    )
    assert found["command"] in shown(found).splitlines()[-1], "the command is broken into lines"
    words = shlex.split(found["command"])
    assert words[:3] == ["eyas", "bench", "--break-even"]
    assert words[words.index("--out") + 1] == str(tmp_path / "w" / "break-even")


def test_a_given_folder_without_a_measurement_is_a_mistake(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(EyasError, match="no break-even was measured there") as caught:
        planned(recipe_file, tmp_path / "w", tmp_path / "none")
    assert "eyas bench --break-even" in str(caught.value.mend)


def changed(tiny_target: Path, recipe: Recipe, what: str) -> tuple[dict[str, Any], str]:
    fields = result(tiny_target, recipe)
    if what == "target":
        fields["target"]["fingerprint"] = "0" * 32
        return fields, "another target"
    fields["planned_drafter"][what] += 1
    return fields, "another draft shape"


@pytest.mark.parametrize(
    "what", ["target", "draft_vocab_size", "hidden_size", "num_aux", "intermediate_size"]
)
def test_the_break_even_of_another_drafter_is_never_shown(
    recipe_file: Path, recipe: Recipe, tiny_target: Path, tmp_path: Path, what: str
) -> None:
    fields, why = changed(tiny_target, recipe, what)
    folder = write(tmp_path / "w" / "break-even", fields)
    with pytest.raises(EyasError, match=why):
        planned(recipe_file, tmp_path / "w", folder)
    found = planned(recipe_file, tmp_path / "w")
    assert (found["measured"], found["rows"]) == (False, None)
    text = shown(found)
    assert why in text
    assert "1.25" not in text, "a figure of another drafter is shown"


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"not json",
        b'{"cells": []}',
        orjson.dumps(
            {
                "break_even": [],
                **{
                    key: {} for key in ("target", "planned_drafter", "flags", "versions", "hardware", "clock")
                },
            }
        ),
    ],
)
def test_a_file_that_holds_no_break_even_shows_none(
    recipe_file: Path, tmp_path: Path, content: bytes
) -> None:
    folder = tmp_path / "w" / "break-even"
    folder.mkdir(parents=True)
    (folder / "results.json").write_bytes(content)
    with pytest.raises(EyasError, match=r"results\.json"):
        planned(recipe_file, tmp_path / "w", folder)
    found = planned(recipe_file, tmp_path / "w")
    assert (found["measured"], found["rows"]) == (False, None)
    assert "no break-even was measured there" in shown(found)


def test_the_shape_is_that_of_the_recipes_training(tiny_target: Path, tmp_path: Path) -> None:
    network = {"hidden_size": 64, "num_heads": 8}
    file = tiny.write_recipe(
        tmp_path, tiny_target, training={"network": network, "train_head": True}, vocabulary={"size": 0}
    )
    facts = read_facts(tiny_target)
    plain = Shape.of_recipe(read_recipe(file), facts).plain()
    assert (plain["hidden_size"], plain["num_heads"]) == (64, 8)
    assert plain["draft_vocab_size"] == facts.tokenizer_length
    assert plain["num_aux"] == 3
