"""Faults of a corpus, in words."""

from __future__ import annotations

from collections import Counter

_SHOWN = 5


class Faults:
    """Faults in words, by what they are about: the first few of each, and how many more there are."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, about: str, text: str) -> None:
        self._counts[about] += 1
        if self._counts[about] <= _SHOWN:
            self._found.setdefault(about, []).append(text)

    def plain(self) -> list[str]:
        faults = []
        for about, found in self._found.items():
            faults += [f"{about}: {text}" for text in found]
            if self._counts[about] > _SHOWN:
                faults.append(f"{about}: and {self._counts[about] - _SHOWN:,} more faults")
        return faults
