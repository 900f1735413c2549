"""What the user decides about tokenisation."""

from __future__ import annotations

from eyas.core.options import options

STAGE = "tokenize"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class TokenizeOptions:
    """min_kept: the stage fails if a smaller share of the rows is kept."""

    min_kept: float = 0.5
