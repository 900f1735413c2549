"""eyas verify: what lies on the disk against what was promised."""

from __future__ import annotations

from pathlib import Path

from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, read_manifest, spoiled
from eyas.pipeline import Step


def artefact(folder: Path, inputs: list[Path] | None = None) -> list[str]:
    """Faults of one artefact: its files against its manifest, and what its stage can prove beyond that.

    inputs: where the sources of a merged corpus lie, if not where they lay.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise EyasError(
            "the artefact is unfinished: it has no manifest", file=folder, mend="run its stage to the end"
        )
    return spoiled(folder, manifest) + _proofs(folder, manifest, inputs)


def recipe(steps: list[Step]) -> dict[str, list[str]]:
    """Faults of every artefact of a recipe, by stage; a stage that is not complete is a fault."""
    return {step.name: artefact(step.folder) if step.manifest else ["not complete"] for step in steps}


def _proofs(folder: Path, manifest: Manifest, inputs: list[Path] | None) -> list[str]:
    if manifest.stage == "merge":
        from eyas.merge.verify import verify

        return verify(folder, inputs)
    return []
