from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.core.units import UnitLog


def test_a_finished_unit_is_known_to_the_next_process(tmp_path: Path) -> None:
    UnitLog(tmp_path, "units.jsonl").finish("a", "a.bin", rows=3, tokens=9, data=b"abc")
    line = UnitLog(tmp_path, "units.jsonl").done("a")
    assert line is not None
    assert (line.rows, line.tokens, line.bytes) == (3, 9, 3)


@pytest.mark.parametrize("data", [None, b"ab", b"abd", b"ab\0"])
def test_a_unit_whose_file_is_gone_or_spoiled_is_redone(tmp_path: Path, data: bytes | None) -> None:
    UnitLog(tmp_path, "units.jsonl").finish("a", "a.bin", data=b"abc")
    path = tmp_path / "a.bin"
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    assert UnitLog(tmp_path, "units.jsonl").done("a") is None, "a spoiled unit counts as done"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(cut=st.integers(1, 200))
def test_a_log_torn_anywhere_keeps_its_whole_lines(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "units.jsonl"
    path.unlink(missing_ok=True)
    log = UnitLog(tmp_path, "units.jsonl")
    for name in "abc":
        log.finish(name, name, data=name.encode())
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    complete = whole[:-cut].count(b"\n")
    again = UnitLog(tmp_path, "units.jsonl")
    assert sum(again.done(name) is not None for name in "abc") == complete
    again.finish("d", "d", data=b"d")
    assert UnitLog(tmp_path, "units.jsonl").done("d") is not None, "a torn line swallowed the next one"
