"""A drafter's folder as it lies there, whoever made it: its config and its tensors, nothing judged yet."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.core.errors import EyasError

from .start import weight_files


def read_config(file: Path) -> dict[str, Any]:
    """The object in config.json; EyasError if it is none."""
    try:
        fields = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise EyasError("not valid JSON", file=file, found=str(error), mend="repair the file") from error
    if not isinstance(fields, dict):
        raise EyasError("this is no configuration of a drafter", file=file, mend="repair the file")
    return fields


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors under their stored names, of one file or several; EyasError if there are none. Pickled ones are
    read by torch's own safe reader, and anything but tensors is refused."""
    state: dict[str, Tensor] = {}
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            state |= load_file(file)
            continue
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise EyasError(
                "the pickled weights are more than tensors, so they are not loaded",
                file=file,
                found=str(error).splitlines()[0],
                mend="convert the drafter to safetensors",
            ) from error
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise EyasError(
                "the pickled file is no table of tensors",
                file=file,
                expected="names and tensors",
                mend="save the drafter's state_dict alone",
            )
        state |= loaded
    return state
