from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from eyas.core.artefact import PARTS, Out, Workbench, open_workbench
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.files import write_whole
from eyas.core.manifest import FORMAT, Manifest, Source, fingerprint, measured, read_manifest, spoiled
from eyas.core.options import no_content, options


@options
class Settings:
    size: int = 1
    workers: int = no_content(1)


def make(out: Out, settings: Settings = Settings(), text: bytes = b"hello\n") -> Manifest:  # noqa: B008
    with open_workbench("stage", 1, settings, {"in": Source(Path("x"), "f")}, out) as work:
        if isinstance(work, Manifest):
            return work
        work.predict({"rows": 1})
        write_whole(work.folder / "out.txt", text)
        return work.publish([measured(work.folder, "out.txt", 1, 1)], Counts(1, 1), {"rows": 1})


def without_run(folder: Path) -> dict[str, object]:
    fields = orjson.loads((folder / "manifest.json").read_bytes())
    del fields["run"]
    return fields


def test_a_complete_artefact_is_reused(tmp_path: Path) -> None:
    first = make(Out(tmp_path / "a"))
    assert make(Out(tmp_path / "a"), text=b"other") == first, "finished work was done again"


def test_two_runs_give_the_same_manifest_but_for_run(tmp_path: Path) -> None:
    make(Out(tmp_path / "a"))
    make(Out(tmp_path / "b"))
    assert without_run(tmp_path / "a") == without_run(tmp_path / "b")


def test_workers_do_not_change_the_fingerprint_and_options_do() -> None:
    base = fingerprint("s", 1, Settings(), {})
    assert fingerprint("s", 1, Settings(workers=9), {}) == base, "a worker count would remake the artefact"
    assert fingerprint("s", 1, Settings(size=2), {}) != base
    assert fingerprint("s", 2, Settings(), {}) != base
    assert fingerprint("s", 1, Settings(), {"in": "f"}) != base


def test_a_folder_with_other_things_is_refused_and_replaced_only_on_demand(tmp_path: Path) -> None:
    make(Out(tmp_path / "a"), Settings(size=2))
    with pytest.raises(EyasError, match="not empty"):
        make(Out(tmp_path / "a"))
    replaced = make(Out(tmp_path / "a", overwrite=True))
    assert read_manifest(tmp_path / "a") == replaced
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"], "something was left beside the artefact"


def test_files_of_the_user_are_never_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("mine")
    with pytest.raises(EyasError, match="--overwrite"):
        make(Out(tmp_path / "a"))
    assert (tmp_path / "a" / "mine.txt").read_text() == "mine"


def test_the_old_artefact_stands_until_the_new_one_is_complete(tmp_path: Path) -> None:
    make(Out(tmp_path / "a"), text=b"old\n")
    with open_workbench(
        "stage", 1, Settings(), {"in": Source(Path("x"), "f")}, Out(tmp_path / "a", anew=True)
    ) as work:
        assert isinstance(work, Workbench)
        assert (tmp_path / "a" / "out.txt").read_bytes() == b"old\n"
        write_whole(work.folder / "out.txt", b"new\n")
        work.publish([measured(work.folder, "out.txt")], Counts(1, 1), {})
    assert (tmp_path / "a" / "out.txt").read_bytes() == b"new\n"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with open_workbench("stage", 1, Settings(), {}, Out(tmp_path / "a")) as work:
        assert isinstance(work, Workbench)
        with (
            pytest.raises(EyasError, match="another process"),
            open_workbench("stage", 1, Settings(), {}, Out(tmp_path / "a")),
        ):
            pass


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    script = (
        "import os, signal\nfrom pathlib import Path\n"
        "from eyas.core.artefact import Out, open_workbench\n"
        f"with open_workbench('stage', 1, None, {{}}, Out(Path({str(tmp_path / 'a')!r}))):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    with open_workbench("stage", 1, None, {}, Out(tmp_path / "a")) as work:
        assert isinstance(work, Workbench), "a killed run must not block the next one"


def test_a_prediction_is_not_made_again_after_work_began(tmp_path: Path) -> None:
    with open_workbench("stage", 1, None, {}, Out(tmp_path / "a")) as work:
        assert isinstance(work, Workbench)
        work.predict({"rows": 5})
    with open_workbench("stage", 1, None, {}, Out(tmp_path / "a")) as work:
        assert isinstance(work, Workbench)
        work.predict({"rows": 7})
        assert work.publish([], Counts(), {}).predicted == {"rows": 5}, (
            "a prediction made afterwards proves nothing"
        )


def test_strays_and_scaffolding_are_gone_in_the_end(tmp_path: Path) -> None:
    with open_workbench("stage", 1, None, {}, Out(tmp_path / "a")) as work:
        assert isinstance(work, Workbench)
        write_whole(work.folder / PARTS / "one", b"x")
    (tmp_path / "a" / ".stray.tmp-eyas").write_bytes(b"half")
    with open_workbench("stage", 1, None, {}, Out(tmp_path / "a")) as work:
        assert isinstance(work, Workbench)
        work.publish([], Counts(), {})
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["manifest.json"]


def test_an_artefact_of_a_newer_format_is_refused_with_one_sentence(tmp_path: Path) -> None:
    make(Out(tmp_path / "a"))
    path = tmp_path / "a" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": %d' % FORMAT, b'"format": %d' % (FORMAT + 1)))
    with pytest.raises(EyasError, match="newer version"):
        make(Out(tmp_path / "a"))


@pytest.mark.parametrize("fault", ["missing", "short", "flipped"])
def test_a_spoiled_file_is_found(tmp_path: Path, fault: str) -> None:
    manifest = make(Out(tmp_path / "a"))
    path = tmp_path / "a" / "out.txt"
    if fault == "missing":
        path.unlink()
    elif fault == "short":
        os.truncate(path, 3)
    else:
        path.write_bytes(b"hellp\n")
    assert len(spoiled(tmp_path / "a", manifest)) == 1, f"{fault} file passed as good"
