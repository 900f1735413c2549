"""What the user decides about the draft vocabulary."""

from __future__ import annotations

from eyas.core.options import options

STAGE = "vocab"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class VocabOptions:
    """size: ids that the drafter can emit; 0 for the whole tokenizer."""

    size: int = 32000
