"""Options of a stage: a frozen dataclass beside the code that owns it.

`@options` makes one that the recipe can validate strictly (an unknown key is an error). A field
marked `no_content(default)` changes how the work is done, never what comes out, so it is left out of
the fingerprint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

_NO_CONTENT = "eyas_no_content"


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def options(cls: type[T]) -> type[T]:
    """A frozen keyword-only dataclass whose unknown keys pydantic refuses."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def no_content(default: Any) -> Any:
    """A field for workers, paths of caches and the like: not part of the fingerprint."""
    return dataclasses.field(default=default, metadata={_NO_CONTENT: True})


def content(value: Any) -> Any:
    """The part of `value` that determines what comes out, as plain JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: content(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if not f.metadata.get(_NO_CONTENT)
        }
    if isinstance(value, dict):
        return {str(key): content(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [content(item) for item in value]
    assert value is None or isinstance(value, (str, int, float, bool)), f"{value!r} has no JSON form"
    return value


def overridden(base: T, **changes: Any) -> T:
    """`base` with the changes that are not None: command line values over defaults."""
    kept: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    replace: Callable[..., T] = dataclasses.replace
    return replace(base, **kept)
