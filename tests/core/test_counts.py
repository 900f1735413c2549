from __future__ import annotations

import pytest

from eyas.core.counts import Counts
from eyas.core.errors import EyasError


def test_rows_that_do_not_add_up_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        Counts(rows_in=3, rows_out=1).plain()


def test_a_stage_that_keeps_nothing_fails_and_says_why() -> None:
    counts = Counts()
    counts.drop("no label")
    with pytest.raises(EyasError) as error:
        counts.require(0.0, "all gone", "mend it")
    assert "no label: 1" in str(error.value)


def test_a_stage_that_keeps_less_than_its_share_fails() -> None:
    counts = Counts()
    counts.keep()
    counts.drop("x")
    counts.drop("x")
    counts.require(0.3, "what", "mend")
    with pytest.raises(EyasError, match="1 of 3"):
        counts.require(0.5, "what", "mend")
