"""What a user decides about an export."""

from __future__ import annotations

from eyas.core.options import options

STAGE = "export"
VERSION = 3
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class ExportOptions:
    """One folder is written for each engine."""

    engines: tuple[str, ...] = ("sglang", "vllm")
    """Engines to write for: sglang, vllm, speculators, trtllm."""
    draft_tokens: int = 3
    """Drafts a round in the serving command of the model card."""
    licence: str = "other"
    """Licence field of the model card; a drafter is derived from its target, so mind the target's terms."""
    boundaries: tuple[int, ...] | None = None
    """Aux boundaries of a bare checkpoint; a train artefact knows its own."""
