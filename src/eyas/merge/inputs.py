"""What is merged: the token files behind the inputs, in input order.

An input is a folder with `<dataset>/tokenized_data.jsonl`, such a file itself (or any other `.jsonl`, `.jsonl.gz`,
`.jsonl.zst` or `.parquet`), or an artefact of `eyas tokenize`. The dataset of a row is the name of the folder of
its `tokenized_data` file, or the stem of any other file's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

from eyas.core.digest import file_digest
from eyas.core.errors import EyasError
from eyas.core.manifest import NAME as MANIFEST
from eyas.core.manifest import Source, file_source, require_manifest

STEM = "tokenized_data"
ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
TOKENIZER = "tokenizer"
"""Role of the input that the vocabulary is read from; every other input holds rows."""

_EXCLUDED = "excluded:"


@dataclass(frozen=True)
class TokenFile:
    """One file of rows. digest: of its content; an excluded file's is never read, its bytes stand for it.

    text: the file of JSON lines that is scanned: the file itself, or what was unpacked from it. rows, tokens: what the
    manifest of its artefact says, None for a file that Eyas did not write.
    """

    dataset: str
    name: str
    path: Path
    text: Path
    digest: str
    bytes: int
    rows: int | None = None
    tokens: int | None = None

    @property
    def order(self) -> tuple[str, str, str]:
        """Input order: dataset, file name; files of equal names by content, wherever they lie."""
        return self.dataset, self.name, self.digest


def plain_inputs(paths: Sequence[Path], exclude: Collection[str] = (), workers: int = 1) -> dict[str, Source]:
    """The inputs of a merge of what the user names: a role for each artefact and each other file.

    Roles follow from names and content alone, not from the order of `paths` or from where they lie. Files of the
    datasets in `exclude` are not read: their size stands for their content.
    """
    found: list[tuple[str, Source]] = []
    plain: list[Path] = []
    for path in paths:
        if path.is_dir() and _is_artefact(path):
            found.append(("tokenize", Source(path, require_manifest(path, "tokenize").fingerprint)))
        else:
            plain += _files_of(path)
    read = [file for file in plain if dataset_of(file) not in exclude]
    with ThreadPoolExecutor(max(1, workers)) as threads:
        digests = dict(zip(read, threads.map(file_digest, read), strict=True))
    for file in plain:
        mark = digests.get(file, f"{_EXCLUDED}{file.stat().st_size}")
        found.append((f"{dataset_of(file)}/{file.name}", Source(file, mark)))
    _refuse_twice(found)
    found.sort(key=lambda entry: (entry[0], entry[1].fingerprint))
    seen: Counter[str] = Counter()
    inputs = {}
    for role, source in found:
        seen[role] += 1
        inputs[role if seen[role] == 1 else f"{role}~{seen[role]}"] = source
    return inputs


def token_files(inputs: dict[str, Source]) -> list[TokenFile]:
    """The files of rows behind the inputs, in input order; EyasError if there are none."""
    files: list[TokenFile] = []
    for role, source in inputs.items():
        if role == TOKENIZER:
            continue
        if source.path.is_dir():
            files.extend(_artefact_files(source.path))
        else:
            files.append(_plain_file(source))
    if not files:
        raise EyasError("there is nothing to merge", mend="give folders or files of token rows")
    return sorted(files, key=lambda file: file.order)


def is_plain(file: TokenFile) -> bool:
    """Whether the file's digest was taken of the file itself, not out of the manifest of an artefact."""
    return file.rows is None


def dataset_of(file: Path) -> str:
    """The dataset whose rows a file holds."""
    stem = _stem(file)
    return file.absolute().parent.name if stem == STEM else stem


def tokenizer_source(path: Path) -> Source:
    """The vocabulary as an input: a tokenizer.json, or the folder that holds one."""
    return file_source(path / "tokenizer.json" if path.is_dir() else path)


def vocabulary(source: Source) -> int:
    """How many ids a tokenizer.json knows: its highest id and one. `source` may be a target's folder."""
    path = source.path / "tokenizer.json" if source.path.is_dir() else source.path
    try:
        fields = orjson.loads(path.read_bytes())
        vocab = fields["model"]["vocab"]
        known = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
        return max([*known, *(token["id"] for token in fields.get("added_tokens", []))]) + 1
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise EyasError(
            "the vocabulary cannot be read",
            file=path,
            expected="a tokenizer.json",
            found=f"{type(error).__name__}: {error}",
            mend="give the folder or the tokenizer.json of the target, or merge without --tokenizer",
        ) from error


def _artefact_files(folder: Path) -> Iterator[TokenFile]:
    for output in require_manifest(folder, "tokenize").outputs:
        path = folder / output.file
        if _stem(path) != STEM:
            continue
        if not path.is_file() or path.stat().st_size != output.bytes:
            raise EyasError(
                "a file of the artefact is missing or has another size",
                file=path,
                expected=f"{output.bytes} bytes",
                mend="run `eyas verify` on the artefact, then `eyas tokenize` again",
            )
        yield TokenFile(
            dataset_of(path), path.name, path, path, output.digest, output.bytes, output.rows, output.tokens
        )


def _plain_file(source: Source) -> TokenFile:
    path = source.path
    return TokenFile(dataset_of(path), path.name, path, path, source.fingerprint, path.stat().st_size)


def _is_artefact(folder: Path) -> bool:
    """Whether the folder is Eyas's; others keep a manifest.json of their own there."""
    try:
        fields = orjson.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        fields = None
    if (folder / "work.json").is_file() and fields is None:
        raise EyasError("the artefact is unfinished", file=folder, mend="run its command again first")
    return isinstance(fields, dict) and {"format", "stage", "fingerprint"} <= fields.keys()


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        if not path.name.endswith(ENDINGS):
            raise EyasError("the file is of no known form", file=path, expected=" or ".join(ENDINGS))
        return [path]
    if not path.is_dir():
        raise EyasError("the input does not exist", file=path, mend="give a path that is there")
    names = [STEM + ending for ending in ENDINGS]
    files = [
        folder / name
        for folder in [path, *sorted(path.iterdir())]
        for name in names
        if (folder / name).is_file()
    ]
    if not files:
        raise EyasError(
            "the folder holds no token rows",
            file=path,
            expected=f"<dataset>/{STEM}.jsonl, or an artefact of `eyas tokenize`",
            mend="give the right folder, or name the files themselves",
        )
    for folder in {file.parent for file in files}:
        here = [file.name for file in files if file.parent == folder]
        if len(here) > 1:
            raise EyasError(
                "a dataset is there in more than one form",
                file=folder,
                found=", ".join(here),
                mend="name the file that counts",
            )
    return files


def _stem(file: Path) -> str:
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if file.name.endswith(ending):
            return file.name[: -len(ending)]
    return file.stem


def _refuse_twice(found: list[tuple[str, Source]]) -> None:
    seen: set[Path] = set()
    for _, source in found:
        real = source.path.resolve()
        if real in seen:
            raise EyasError("an input is given twice", file=source.path, mend="name it once")
        seen.add(real)
