"""The files of a folder take their places as one, whenever the run is stopped."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tracelens_ext.errors import OutputError
from tracelens_ext.report import atomic_folders as folder_module
from tracelens_ext.report.atomic_folders import write_folder
from tracelens_ext.report.manifest import MANIFEST, manifest_files, unfinished_note

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ["a.csv", "b.csv", "c.csv"]
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]
#: Renames of a run: of an exchanged folder the manifest's; else three files', twice, and it twice.
ONE_BY_ONE = pytest.mark.parametrize("renames", range(9))


def files(text: str, names: list[str] = NAMES) -> dict[str, Callable[[Path], object]]:
    return dict.fromkeys(names, lambda path: path.write_text(text))


def found(folder: Path) -> set[str]:
    """The texts of the tables that a reader finds."""
    return {path.read_text() for path in folder.glob("*.csv") if path.name in NAMES}


def stopped(folder: Path, number: int, renames: int) -> int:
    """Write in a process that a signal hits after some renames or exchanges; how it ended."""

    def hit(*_: Any) -> None:  # of any audit event
        nonlocal renames
        renames -= 1
        if renames == -1:
            os.kill(os.getpid(), number)

    child = os.fork()
    if child == 0:
        sys.addaudithook(lambda event, _: hit() if event == "os.rename" else None)
        exchange = folder_module._exchange_names

        def exchanged(one: Path, other: Path) -> None:
            hit()
            exchange(one, other)
            hit()

        folder_module._exchange_names = exchanged
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            write_folder(folder, files("new"))
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs renameat2")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("renames", range(4))
def test_a_folder_is_exchanged_as_one(
    tmp_path: Path, number: int, renames: int
) -> None:
    folder = tmp_path / "out"
    write_folder(folder, files("old"))
    code = stopped(folder, number, renames)
    assert code in {0, 130, -9}
    assert len(found(folder)) == 1
    assert manifest_files(folder) == NAMES
    assert unfinished_note(folder) == []
    if number != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@ONE_BY_ONE
def test_a_folder_of_others_too_says_that_it_is_unfinished(
    tmp_path: Path, number: int, renames: int
) -> None:
    write_folder(tmp_path, files("old"))
    (tmp_path / "notes.txt").write_text("mine")
    stopped(tmp_path, number, renames)
    if number == signal.SIGKILL:
        assert len(found(tmp_path)) == 1 or unfinished_note(tmp_path)
    else:
        assert len(found(tmp_path)) == 1
        assert unfinished_note(tmp_path) == []
    write_folder(tmp_path, files("newer"))
    assert found(tmp_path) == {"newer"}
    assert unfinished_note(tmp_path) == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_one: Path, _other: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    folder = tmp_path / "out"
    write_folder(folder, files("old", [*NAMES, "outdated.csv"]))
    monkeypatch.setattr(folder_module, "_exchange_names", refuse)
    write_folder(folder, files("new"))
    assert found(folder) == {"new"}
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, *NAMES]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_working_folder_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    write_folder(tmp_path, files("old"))
    write_folder(".", files("new"))
    assert tmp_path.stat().st_ino == before
    assert found(tmp_path) == {"new"}


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o750)
    link = tmp_path / "link"
    link.symlink_to("real")
    write_folder(link, files("old"))
    (link / "a.csv").chmod(0o604)
    write_folder(link, files("new"))
    assert link.is_symlink()
    assert found(link) == {"new"}
    assert link.stat().st_mode & 0o777 == 0o750
    assert (link / "a.csv").stat().st_mode & 0o777 == 0o604


def test_a_link_that_changes_meanwhile_parts_no_report(tmp_path: Path) -> None:
    one = tmp_path / "one"
    other = tmp_path / "other"
    link = tmp_path / "link"
    for folder in (one, other):
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")  # so that files are renamed one by one
    link.symlink_to(one)

    def turned(path: Path) -> None:
        link.unlink()
        link.symlink_to(other)
        path.write_text("new")

    write_folder(
        link, files("new", NAMES[:1]) | {NAMES[1]: turned} | files("new", NAMES[2:])
    )
    assert manifest_files(one) == NAMES
    assert sorted(path.name for path in one.glob("*.csv")) == NAMES
    assert [path.name for path in other.iterdir()] == ["mine.txt"]


def test_a_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "out"
    write_folder(folder, files("old"))
    with pytest.raises(OutputError, match=r"c\.csv: cannot be written: no space left"):
        write_folder(folder, files("new") | {"c.csv": full})
    assert found(folder) == {"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
