"""Every environment variable that Eyas reads or sets, in one place."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$EYAS_CACHE`, by default `eyas` under the user's cache folder: converted targets, file digests."""
    given = os.environ.get("EYAS_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "eyas"


def vllm_python() -> Path:
    """`$EYAS_VLLM_PYTHON`, by default `.venv-engine/bin/python`: the interpreter that vLLM is installed for."""
    return Path(os.environ.get("EYAS_VLLM_PYTHON") or ".venv-engine/bin/python").absolute()


def is_leader() -> bool:
    """Whether this process writes and says what a job under torchrun does once: rank 0, or a process alone."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


def quiet_threads() -> None:
    """Make OpenMP threads wait passively; must run before torch is imported.

    Spinning threads on shared cores cost up to ten times the wall time of a greedy decode. numpy's own
    threads, which nothing here has a use for, cost 0.1 s of CPU time at its import alone.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def small_arrow_pool() -> None:
    """Let Arrow take memory from malloc; must run before pyarrow is imported.

    Its own allocator maps a GiB of address space at once, which a limit on that does not forgive.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
