"""Progress on standard error: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

_PLAIN_EVERY_S = 10.0


class Progress:
    """The progress of one stage. `advance` counts work; keyword notes are shown beside it."""

    def __init__(self, stage: str, total: float, unit: str, done: float = 0) -> None:
        self.stage, self.total, self.unit = stage, total, unit
        self.done = done
        self._begun = time.monotonic()
        self._from = done
        self._last = self._begun
        self._bar: Any = _live_bar(stage, total, done) if sys.stderr.isatty() else None

    def advance(self, amount: float, **notes: object) -> None:
        self.done += amount
        text = self._text(notes)
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=self.done, text=text)
        elif time.monotonic() - self._last >= _PLAIN_EVERY_S:
            self._last = time.monotonic()
            print(f"{self.stage}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _text(self, notes: dict[str, object]) -> str:
        elapsed = time.monotonic() - self._begun
        rate = (self.done - self._from) / elapsed if elapsed else 0.0
        parts = [f"{self.done:,.0f} of {self.total:,.0f} {self.unit}"]
        if rate > 0:
            left = max(self.total - self.done, 0) / rate
            parts.append(f"{rate:,.1f}/s")
            parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        parts += [f"{name} {value}" for name, value in notes.items()]
        return ", ".join(parts)


def _live_bar(stage: str, total: float, done: float) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,
    )
    bars.start()
    return bars, bars.add_task(stage, total=total, completed=int(done), text="")
