"""How states are stored. A codec is a number type; its bytes a token follow from the target."""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.core.errors import EyasError

_TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BYTES = {"bfloat16": 2, "float32": 4}


def check_codec(name: str) -> None:
    if name not in _TYPES:
        raise EyasError(
            f"codec {name!r} is not known", expected=", ".join(_TYPES), mend="set states.codec to one of them"
        )


def encode(states: Tensor, codec: str) -> Tensor:
    """The tensor in the codec's type. float16 is not offered: activations of small targets reach 2.5e4,
    too near its end at 65504."""
    return states.to(_TYPES[codec])


def bytes_per_token(codec: str, num_boundaries: int, hidden_size: int) -> int:
    """Bytes of aux and last of one token, and of its id, mask and teacher (4 + 1 + 4)."""
    return (num_boundaries + 1) * hidden_size * BYTES[codec] + 9
