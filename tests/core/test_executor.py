from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyas.core.errors import EyasError
from eyas.core.executor import AHEAD, each, in_order

_setup = 0


def remember(value: int) -> None:
    global _setup
    _setup = value


def add(task: int) -> int:
    return task + _setup


def refuse(task: int) -> int:
    raise EyasError("no", file="f", record=task, mend="m")


def die(task: int) -> int:
    os._exit(9)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_is_done_once_whatever_the_number_of_workers(workers: int) -> None:
    assert sorted(each(add, list(range(7)), workers, remember, (10,))) == [(i, i + 10) for i in range(7)]


def slowest_first(task: int) -> int:
    time.sleep(0.02 if task % 4 == 0 else 0)
    return task


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks_though_later_ones_are_ready_first(workers: int) -> None:
    tasks = range(9)
    assert list(in_order(slowest_first, tasks, workers)) == [(i, i) for i in tasks]


class Asked:
    """Tasks that tell which of them was asked for last."""

    last = -1

    def __len__(self) -> int:
        return 30

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self)):
            self.last = number
            yield number


@pytest.mark.parametrize("workers", [2, 3])
def test_a_task_is_not_made_before_the_result_that_lies_where_its_own_will_was_used(workers: int) -> None:
    tasks = Asked()
    for task, _ in in_order(slowest_first, tasks, workers):
        assert tasks.last < task + AHEAD * workers, "two results would share one piece of lent memory"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_of_the_user_comes_back_whole_from_a_worker(workers: int) -> None:
    with pytest.raises(EyasError) as error:
        list(each(refuse, [3], workers) if workers == 1 else each(refuse, [3, 3], workers))
    assert error.value.fields() == {
        "what": "no", "file": "f", "record": 3, "expected": None, "found": None, "mend": "m",
    }  # fmt: skip


def test_a_worker_that_dies_ends_the_work_with_a_message() -> None:
    with pytest.raises(EyasError, match="a worker process died"):
        list(each(die, [1, 2], 2))


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal, sys, threading, time\n"
        "from eyas.core.executor import each\n"
        "def work(path):\n    open(path, 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    threading.Timer(4, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "    list(each(work, [sys.argv[1] + str(i) for i in range(2)], 2))\n"
    )
    subprocess.run([sys.executable, str(script), str(tmp_path / "pid")], check=False, capture_output=True)
    pids = [int((tmp_path / f"pid{i}").read_text()) for i in range(2)]
    deadline = time.monotonic() + 5
    while any(
        Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()
        for pid in pids
    ):
        assert time.monotonic() < deadline, "orphans go on computing after kill -9"
        time.sleep(0.05)
