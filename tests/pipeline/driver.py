"""Runs the command line in a process that kills itself at a given point of a given stage.

python driver.py STAGE POINT -- ARGUMENTS...; points: claim (its folder is taken), unit (after its first
unit), checkpoint (after the first one of training), publish (before the manifest), manifest (after it).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def die_at(stage: str, point: str) -> None:
    from eyas.core import artefact, manifest, units

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str, stage_of: Any, *, after: bool) -> None:
        real = getattr(owner, name)

        def replaced(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if stage_of(self) == stage and not after:
                die()
            result = real(self, *arguments, **keywords)
            if stage_of(self) == stage:
                die()
            return result

        setattr(owner, name, replaced)

    if point == "claim":
        around(
            artefact.Workbench,
            "__init__",
            lambda self: self.head["stage"] if hasattr(self, "head") else None,
            after=True,
        )
    elif point == "unit":
        around(units.UnitLog, "finish", lambda self: self.folder.parent.name.replace(".", ""), after=True)
    elif point == "publish":
        around(artefact.Workbench, "publish", lambda self: self.head["stage"], after=False)
    elif point == "checkpoint":
        from eyas.drafter import trainer

        real = trainer.save_checkpoint
        trainer.save_checkpoint = lambda *a, **k: (real(*a, **k), die())  # type: ignore[assignment]
    else:
        around(manifest.Manifest, "write", lambda self: self.stage, after=True)


if __name__ == "__main__":
    where, at, _, *arguments = sys.argv[1:]
    from eyas.core import env

    env.quiet_threads()
    die_at(where, at)
    sys.argv = ["eyas", *arguments]
    from eyas.cli import main

    main()
