"""The drafter that a run goes on from, as an input: where it lies and what stands for its content. Without torch."""

from __future__ import annotations

from pathlib import Path

from eyas.core.digest import file_digest, value_digest
from eyas.core.errors import EyasError
from eyas.core.manifest import Source, read_manifest

CONFIG = "config.json"
_ENGINES = ("vllm", "sglang", "speculators", "trtllm")


def drafter_source(folder: Path) -> Source:
    """A drafter's folder as an input, by the content of its config and weights.

    folder: a train or export artefact of Eyas, one of its checkpoints, or what SpecForge, speculators or a
    publisher for SGLang and vLLM wrote: config.json beside *.safetensors, *.bin or *.pt.
    """
    found = drafter_folder(folder)
    files = [found / CONFIG, *weight_files(found)]
    return Source(found, value_digest({path.name: file_digest(path) for path in files}))


def drafter_folder(folder: Path) -> Path:
    """The folder with config.json, in an artefact or `folder` itself."""
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is not None and manifest.stage == "train":
        return folder / str(manifest.actual["checkpoint"])
    places = [folder, *(folder / engine for engine in _ENGINES if manifest and manifest.stage == "export")]
    for place in places:
        if (place / CONFIG).is_file():
            return place
    raise EyasError(
        "there is no drafter to start from",
        file=folder,
        expected=f"{CONFIG} beside *.safetensors, or a train or export artefact",
        mend="set training.start to the folder of a drafter",
    )


def weight_files(folder: Path) -> list[Path]:
    """Its safetensors, else its pickled weights; EyasError if there are none."""
    for pattern in ("*.safetensors", "pytorch_model*.bin", "*.pt"):
        files = [path for path in sorted(folder.glob(pattern)) if not path.name.startswith("optimizer")]
        files = [path for path in files if path.name != "training_state.pt"]
        if files:
            return files
    raise EyasError(
        "the folder holds no weights",
        file=folder,
        expected="*.safetensors, or pytorch_model.bin with tensors alone",
        mend="fetch the drafter again, or name another folder",
    )
