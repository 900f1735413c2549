"""A corpus appears whole or not at all: kills, full disks, inputs that change."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eyas.core.errors import EyasError
from eyas.merge import scan, stage
from eyas.merge import write as second_pass
from token_sets import content, merge, row, rows, write_sets

RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {helpers!r})
from token_sets import merge
from eyas.merge import write
write.BATCH_BYTES = 1 << 16  # so that a kill meets many batches
merge(Path({out!r}), Path({sets!r}), dev_fraction=0.1, workers={workers})
"""


def start(out: Path, sets: Path, workers: int = 1) -> subprocess.Popen[bytes]:
    code = RUN.format(helpers=str(Path(__file__).parent), out=str(out), sets=str(sets), workers=workers)
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = random.Random(0)
    many = [row(generator, 2000) for _ in range(700)]
    return write_sets(tmp_path_factory.mktemp("crash") / "in", A=many[:400], B=many[400:])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_merge_killed_at_any_moment_gives_the_same_bytes_when_run_again(
    tmp_path: Path, sets: Path, workers: int
) -> None:
    timed = start(tmp_path / "whole", sets, workers)
    begun = begin(tmp_path / "whole")
    assert timed.wait() == 0
    span = time.monotonic() - begun
    expected = content(tmp_path / "whole")
    generator = random.Random(workers)
    killed = 0
    for _ in range(6):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        running = start(tmp_path / "out", sets, workers)
        begin(tmp_path / "out")
        time.sleep(generator.uniform(0, 0.7 * span))
        running.send_signal(signal.SIGKILL)
        if running.wait() != -signal.SIGKILL:
            continue
        killed += 1
        assert start(tmp_path / "out", sets, workers).wait() == 0
        assert content(tmp_path / "out") == expected
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(expected), (
            "strays are left behind"
        )
    assert killed >= 2, "the merge was over before it was killed: the test shows nothing"


def begin(out: Path) -> float:
    """Wait until a merge has taken its folder; when that was."""
    deadline = time.monotonic() + 30
    while not (out / "work.json").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    return time.monotonic()


def test_a_disk_without_room_is_seen_before_anything_is_written(
    tmp_path: Path, sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(second_pass.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(EyasError, match="no room"):
        merge(tmp_path / "out", sets)
    assert not (tmp_path / "out").exists()


def test_a_disk_that_becomes_full_leaves_no_half_output(tmp_path: Path, sets: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "eyas-test", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                stage, "require_space", lambda *_: None
            )  # as if another process took the room meanwhile
            with pytest.raises(OSError, match="No space left"):
                merge(small / "out", sets)
        assert list(small.iterdir()) == []
        with pytest.raises(EyasError, match="no room"):
            merge(small / "out", sets)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_failed_write_leaves_no_half_output(
    tmp_path: Path, sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_at = second_pass.write_at
    calls = 0

    def fail_later(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, os.strerror(28))
        write_at(*arguments)

    monkeypatch.setattr(second_pass, "BATCH_BYTES", 1 << 18)
    monkeypatch.setattr(second_pass, "write_at", fail_later)
    with pytest.raises(OSError, match="No space left"):
        merge(tmp_path / "out", sets)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["other ids", "other keys", "longer", "touched"])
def test_an_input_that_changes_between_the_passes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    sets = write_sets(tmp_path / "in", A=rows(1, 30))
    source = sets / "A" / "tokenized_data.jsonl"
    text = source.read_bytes()
    choose = stage.choose
    if change == "other keys":
        monkeypatch.setattr(stage, "_stamp", lambda _: ())  # as if nobody had looked at the file's times

    def change_then_choose(*arguments: Any) -> Any:
        if change == "touched":
            os.utime(source, ns=(0, 0))
        else:
            changed = {"longer": text + b"\n", "other ids": text.replace(b"1", b"2")}
            source.write_bytes(changed.get(change, text.replace(b"input_ids", b"inputs_id")))
        return choose(*arguments)

    monkeypatch.setattr(stage, "choose", change_then_choose)
    with pytest.raises(EyasError, match="changed while it was merged"):
        merge(tmp_path / "out", sets)
    assert not (tmp_path / "out").exists()


def test_an_input_that_changes_before_the_first_pass_is_noticed(tmp_path: Path) -> None:
    from eyas.core.artefact import Out
    from eyas.merge.inputs import plain_inputs
    from eyas.merge.options import MergeOptions

    sets = write_sets(tmp_path / "in", A=rows(1, 30))
    inputs = plain_inputs([sets])
    write_sets(tmp_path / "in", A=rows(2, 30))
    with pytest.raises(EyasError, match="changed while it was merged"):
        stage.run(MergeOptions(), inputs, Out(tmp_path / "out"))


def test_lines_of_more_than_a_block_survive_any_segment_border(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = write_sets(tmp_path / "in", A=rows(1, 40, longest=300))
    expected = merge(tmp_path / "plain", sets).output("train.jsonl").digest
    for segment in (7, 100, 1000):
        monkeypatch.setattr(scan, "SEGMENT", segment)
        assert merge(tmp_path / str(segment), sets).output("train.jsonl").digest == expected
