"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_TEMPORARY = ".tmp-eyas"


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; what was written there is synced and renamed to `path` at the end.

    On any failure, a full disk included, the temporary file is removed and `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    sync(path.parent)


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write `data` to `path`: temporary name, flush, fsync, rename."""
    with appearing(path) as temporary, open(temporary, "wb") as file:
        if isinstance(data, bytes):
            file.write(data)
        else:
            file.writelines(data)


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_strays(folder: Path) -> int:
    """Remove temporary names that a killed process left under `folder`; how many there were."""
    strays = [path for path in folder.rglob(f".*{_TEMPORARY}") if path.is_file() and not path.is_symlink()]
    for path in strays:
        path.unlink()
    return len(strays)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line without its end) of each line that is not blank, split on LF alone.

    str.splitlines would cut records at U+2028, which occurs inside real chats.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            stripped = line.strip()
            if stripped:
                yield number, stripped
