"""`eyas bench` called as a command line."""

from __future__ import annotations

from typing import Any

import orjson
import typer
from typer.testing import CliRunner

from eyas.bench.command import bench_command


def command(*arguments: object) -> dict[str, Any]:
    return command_and_stderr(*arguments)[0]


def command_and_stderr(*arguments: object) -> tuple[dict[str, Any], str]:
    app = typer.Typer()
    app.command()(bench_command)
    done = CliRunner().invoke(app, [*(str(a) for a in arguments), "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return orjson.loads(done.stdout), done.stderr
