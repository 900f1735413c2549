"""The break-even of a recipe's drafter: what `eyas bench --break-even` measured, if it measured that drafter.

Nothing here is estimated. A measurement of another target or of another draft shape says nothing about this
one, so its figures are not shown.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

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
NOT_MEASURED = "not measured"
_CIRCUMSTANCES = ("clock", "flags", "versions", "hardware")
_WRITTEN = "what `eyas bench --break-even` wrote"


class NotThis(NamedTuple):
    """Why a folder does not hold the break-even of this drafter."""

    what: str
    expected: str
    found: str


def break_even(
    recipe: Recipe, recipe_file: Path, target: Source, workspace: Path, given: Path | None
) -> dict[str, Any]:
    """folder, measured, why (None if measured), command (that measures it), rows and by (None unless measured).

    given: the folder that the user names; EyasError if it does not hold this drafter's break-even. By default the
    workspace's is taken, and `why` says what is wrong with it.
    """
    folder = given or workspace / FOLDER
    command = _command(recipe, recipe_file, folder)
    plan = {
        "folder": str(folder),
        "measured": False,
        "why": None,
        "command": command,
        "rows": None,
        "by": None,
    }
    if given is None and not (folder / RESULTS).is_file():
        return {**plan, "why": NOT_MEASURED}
    found = _measured(folder / RESULTS, target, Shape.of_recipe(recipe, read_facts(target.path)))
    if not isinstance(found, NotThis):
        by = {name: found[name] for name in _CIRCUMSTANCES}
        return {**plan, "measured": True, "rows": found["break_even"], "by": by}
    if given is not None:
        mend = f"measure it: {command}"
        raise EyasError(
            found.what, file=folder / RESULTS, expected=found.expected, found=found.found, mend=mend
        )
    return {**plan, "why": f"{found.what}: {found.found}, where the recipe needs {found.expected}"}


def parts(found: dict[str, Any]) -> list[Part]:
    """The table and what it was measured with, or how to measure it."""
    if not found["measured"]:
        if found["why"] == NOT_MEASURED:
            text = "The break-even is not measured: nobody knows yet what accept length this drafter must exceed."
        else:
            text = f"{found['folder']} is not this drafter's break-even, so it is not shown: {found['why']}."
        how = "It can be measured before any training, in process or (--engine vllm --concurrency 1,8,32) in a server:"
        return [Line(f"{text} {how}"), Line(f"  {found['command']}", whole=True)]
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


def _measured(file: Path, target: Source, shape: Shape) -> dict[str, Any] | NotThis:
    """The result that stands there, if it is of this target and shape."""
    import orjson

    try:
        result = orjson.loads(file.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError) as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else f"no JSON: {error}"
        return NotThis("no break-even was measured there", _WRITTEN, found)
    keys = ("break_even", "target", "planned_drafter", *_CIRCUMSTANCES)
    missing = [key for key in keys if key not in result]
    if missing or not result["break_even"]:
        found = f"a result without {', '.join(missing) or 'a measured row'}"
        return NotThis("no break-even was measured there", _WRITTEN, found)
    return _of_another(result, target, shape) or result


def _of_another(result: dict[str, Any], target: Source, shape: Shape) -> NotThis | None:
    """What the measurement is of, if that is another target or another shape."""
    measured = result["target"]
    if measured["fingerprint"] != target.fingerprint:
        facts = read_facts(target.path)
        return NotThis(
            "the break-even is of another target",
            f"{facts.model_type} with {facts.num_layers} layers of {facts.hidden_size}, {target.fingerprint[:12]}",
            f"{measured['model_type']} with {measured['num_layers']} layers of {measured['hidden_size']}, "
            f"{measured['fingerprint'][:12]}",
        )
    planned, other = shape.plain(), result["planned_drafter"]
    differing = [name for name, value in planned.items() if other.get(name) != value]
    if not differing:
        return None
    return NotThis(
        "the break-even is of another draft shape",
        ", ".join(f"{name} {planned[name]}" for name in differing),
        ", ".join(f"{name} {other.get(name)}" for name in differing),
    )
