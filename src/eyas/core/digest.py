"""Digests: xxh3-128 of bytes, files and plain JSON values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import xxhash

from . import env

_BLOCK = 1 << 20


def bytes_digest(data: bytes) -> str:
    """xxh3-128 of `data`, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def value_digest(value: Any) -> str:
    """Digest of a plain JSON value; the order of keys does not matter."""
    return bytes_digest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def read_digest(path: Path) -> str:
    """Digest of a file's bytes, read now."""
    state = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """Digest of a file's bytes, remembered in the cache by path, size, mtime and inode.

    Good for finding what is up to date. A proof (`eyas verify`) uses read_digest.
    """
    status = os.stat(path)
    name = os.fspath(path.absolute())
    key = [name, status.st_size, status.st_mtime_ns, status.st_ino]
    entry = env.cache_dir() / "digests" / f"{bytes_digest(name.encode())}.json"
    try:
        known = orjson.loads(entry.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        known = None
    if isinstance(known, dict) and known.get("key") == key:
        return known["digest"]
    digest = read_digest(path)
    entry.parent.mkdir(parents=True, exist_ok=True)
    temporary = entry.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(orjson.dumps({"key": key, "digest": digest}))
    os.replace(temporary, entry)
    return digest
