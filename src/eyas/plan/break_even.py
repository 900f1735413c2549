"""The break-even of a recipe's drafter: what `eyas bench --break-even` measured, if it measured that drafter.

Nothing here is estimated. A measurement of another target or of another draft shape says nothing about this
one, so its figures are not shown.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from eyas.bench import surroundings
from eyas.bench.command import RESULTS
from eyas.bench.shape import Shape
from eyas.core.contract import read_facts
from eyas.core.errors import EyasError
from eyas.core.manifest import Source
from eyas.recipe import Recipe
from eyas.report.bench import break_even_table
from eyas.report.table import Line, Part

FOLDER = "break-even"
"""In a workspace, where it is looked for."""


def break_even(
    recipe: Recipe, recipe_file: Path, target: Source, workspace: Path, given: Path | None
) -> dict[str, Any]:
    """folder, measured, why (None if measured), command (that measures it), rows and by (None unless measured).

    given: the folder that the user names; EyasError if it does not hold this drafter's break-even. By default the
    workspace's is taken, and `why` says what is wrong with it.
    """
    folder = given or workspace / FOLDER
    command = _command(recipe, recipe_file, folder)
    found: dict[str, Any] = {"folder": str(folder), "measured": False, "why": "not measured"}
    if given is not None or (folder / RESULTS).is_file():
        result = _read(folder / RESULTS, command)
        difference = _difference(result, target, Shape.of_recipe(recipe, read_facts(target.path)))
        if difference is None:
            by = {name: result[name] for name in ("clock", "flags", "versions", "hardware")}
            return {
                **found,
                "measured": True,
                "why": None,
                "command": command,
                "rows": result["break_even"],
                "by": by,
            }
        what, expected, measured = difference
        if given is not None:
            raise EyasError(
                what, file=folder / RESULTS, expected=expected, found=measured, mend=f"measure it: {command}"
            )
        found["why"] = f"{what}: {measured}, where the recipe has {expected}"
    return {**found, "command": command, "rows": None, "by": None}


def parts(found: dict[str, Any]) -> list[Part]:
    """The table and what it was measured with, or how to measure it."""
    if not found["measured"]:
        if found["why"] == "not measured":
            text = "The break-even is not measured: nobody knows yet what accept length this drafter must exceed."
        else:
            text = f"{found['folder']} is not this drafter's break-even, so it is not shown: {found['why']}."
        return [
            Line(
                f"{text} It can be measured before anything is trained, in process or (--engine vllm) in the server:"
            ),
            Line(f"  {found['command']}", whole=True),
        ]
    return [break_even_table(found["rows"]), Line(_circumstances(found["folder"], found["by"]))]


def _circumstances(folder: str, by: dict[str, Any]) -> str:
    hardware = by["hardware"]
    machine = ", ".join([hardware["cpu"], f"{hardware['cores']} cores", *hardware["gpus"]])
    elsewhere = "" if hardware == surroundings.hardware() else " (which is not this machine as it is now)"
    how = ", ".join([by["versions"]["engine"], *([by["flags"]["dtype"]] if by["flags"]["dtype"] else [])])
    return (
        "This drafter's accept length has to exceed what breaks even. Measured with random weights of its shape by "
        f"{how}, {by['clock']} time, on {machine}{elsewhere}; see {folder}."
    )


def _command(recipe: Recipe, recipe_file: Path, out: Path) -> str:
    """The exact command: the recipe's drafter over its first held-out prompts, as its bench decodes them."""
    prompts = next(entry.path for entry in recipe.datasets if entry.role == "heldout")
    words = [
        *("eyas", "bench", "--break-even", "--recipe", str(recipe_file)),
        *("--prompts", str(recipe_file.parent / prompts), "--limit", str(recipe.bench.prompts)),
        *("--draft-tokens", ",".join(map(str, recipe.bench.draft_tokens))),
        *("--max-tokens", str(recipe.bench.max_new_tokens), "--out", str(out)),
    ]
    return shlex.join(words)


def _read(file: Path, command: str) -> dict[str, Any]:
    """A result that holds a break-even and says of what it is; EyasError for anything else."""
    import orjson

    wrong, found = "no break-even was measured there", ""
    try:
        result = orjson.loads(file.read_bytes())
        keys = ("break_even", "target", "planned_drafter", "clock", "flags", "versions", "hardware")
        missing = [key for key in keys if key not in result]
        if not missing and result["break_even"]:
            return dict(result)
        found = f"a result without {', '.join(missing) or 'measured rows'}"
    except FileNotFoundError:
        found = "no such file"
    except (orjson.JSONDecodeError, TypeError) as error:
        wrong, found = "the result of a benchmark cannot be read", str(error)
    raise EyasError(
        wrong,
        file=file,
        expected="what `eyas bench --break-even` wrote",
        found=found,
        mend=f"measure it: {command}",
    )


def _difference(result: dict[str, Any], target: Source, shape: Shape) -> tuple[str, str, str] | None:
    """(what differs, the recipe's, the measured one's); None if the measurement is of this target and shape."""
    measured = result["target"]
    if measured["fingerprint"] != target.fingerprint:
        facts = read_facts(target.path)
        return (
            "the break-even is of another target",
            f"{facts.model_type} with {facts.num_layers} layers of {facts.hidden_size}, {target.fingerprint[:12]}",
            f"{measured['model_type']} with {measured['num_layers']} layers of {measured['hidden_size']}, "
            f"{measured['fingerprint'][:12]}",
        )
    planned = shape.plain()
    differing = [name for name, value in planned.items() if result["planned_drafter"].get(name) != value]
    if not differing:
        return None
    return (
        "the break-even is of another draft shape",
        ", ".join(f"{name} {planned[name]}" for name in differing),
        ", ".join(f"{name} {result['planned_drafter'].get(name)}" for name in differing),
    )
