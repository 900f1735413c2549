"""Puts this folder and tests/drafter on the path, for `reference` and `tiny`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "drafter")]
