from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.core.errors import EyasError, disk_error
from eyas.core.files import appearing, remove_strays, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")

    def broken() -> object:
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(tmp_path / "a", broken())  # type: ignore[arg-type]
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"], "half a file was left behind"


def test_a_full_disk_is_said_in_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space") as error, appearing(tmp_path / "a") as temporary:
        temporary.write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")
    known = disk_error(error.value)
    assert isinstance(known, EyasError)
    assert known.what == "the disk is full"
    assert known.file == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_write_that_hits_a_limit_of_the_system_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom eyas.core.files import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_whole(Path(sys.argv[1]), b'x' * 5000)\nexcept OSError:\n    sys.exit(7)\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False)
    assert done.returncode == 7
    assert not list(tmp_path.iterdir())


def test_strays_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".b.tmp-eyas").write_text("theirs")
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / ".a.tmp-eyas").write_text("ours")
    (inside / "link").symlink_to(outside)
    assert remove_strays(inside) == 1
    assert (outside / ".b.tmp-eyas").exists(), "a file behind a link was removed"
