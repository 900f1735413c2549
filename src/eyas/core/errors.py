"""What a user can get wrong, said once and well; and the exit codes.

Invariants that only a bug can break are asserts, never these exceptions.
"""

from __future__ import annotations

import errno
from pathlib import Path

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_USER = 2
EXIT_STOPPED = 3
EXIT_INTERRUPTED = 130


class EyasError(Exception):
    """A mistake of the user or of the environment.

    what: one sentence. file, record: where. expected, found: the two sides of the mistake.
    mend: the setting or command that mends it.
    """

    exit_code = EXIT_USER

    def __init__(
        self,
        what: str,
        *,
        file: str | Path | None = None,
        record: str | int | None = None,
        expected: object = None,
        found: object = None,
        mend: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.file = None if file is None else str(file)
        self.record = record
        self.expected = expected
        self.found = found
        self.mend = mend

    def fields(self) -> dict[str, object]:
        """The error as the object that `--json` prints under `error`."""
        return {
            "what": self.what,
            "file": self.file,
            "record": self.record,
            "expected": _plain(self.expected),
            "found": _plain(self.found),
            "mend": self.mend,
        }

    def __str__(self) -> str:
        lines = [self.what]
        for name in ("file", "record", "expected", "found", "mend"):
            value = getattr(self, name)
            if value is not None:
                lines.append(f"  {name}: {value}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, tuple[type, dict[str, object]]]:
        return _rebuild, (type(self), self.fields())


class FaultFound(EyasError):
    """A check (verify, preflight, export --check) found a fault in an artefact or a target."""

    exit_code = EXIT_FAULT


class StoppedEarly(EyasError):
    """The work stopped before its end and goes on where it was when the command is given again."""

    exit_code = EXIT_STOPPED


def disk_error(error: OSError) -> EyasError | None:
    """The EyasError that says what a failed write means, or None if it is no failure of the disk."""
    if error.errno == errno.ENOSPC:
        what, mend = (
            "the disk is full",
            "free space, then give the same command again: finished units are kept",
        )
    elif error.errno == errno.EROFS:
        what, mend = "the file system is read-only", "choose another --workspace or --out"
    elif error.errno in (errno.EACCES, errno.EPERM):
        what, mend = "permission denied", "choose a place that you may write to"
    else:
        return None
    return EyasError(what, file=error.filename, mend=mend)


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, int, float, bool, list, dict)):
        return value
    return str(value)


def _rebuild(kind: type[EyasError], fields: dict[str, object]) -> EyasError:
    what = fields.pop("what")
    return kind(what, **fields)  # type: ignore[arg-type]
