"""A target file is whole or untouched, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic_files import written_beside


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.endswith(".tmp")]


def message_of(error: pytest.ExceptionInfo[OutputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert ";" in text, "a remedy follows the problem"
    return text


def test_the_target_changes_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    with written_beside(target) as beside:
        assert beside.parent == tmp_path
        beside.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "problem", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)]
)
def test_a_failure_leaves_the_old_file(tmp_path: Path, problem: BaseException) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    with pytest.raises(type(problem)), written_beside(target) as beside:
        beside.write_text("half")
        raise problem
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_a_failure_leaves_no_file_where_none_was(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="no"),
        written_beside(tmp_path / "a") as beside,
    ):
        beside.write_text("half")
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on the device; free some space"),
        (errno.EACCES, "permission denied; choose a location"),
        (errno.EROFS, "read-only; choose another location"),
        (errno.EIO, "Input/output error; choose another location"),
    ],
)
def test_an_operating_system_error_says_what_to_do(
    tmp_path: Path, number: int, words: str
) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    with pytest.raises(OutputError) as error, written_beside(target):
        raise OSError(number, os.strerror(number))
    assert message_of(error).startswith(f"{target}: cannot be written: ")
    assert words in str(error.value)
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


@pytest.mark.process
def test_a_file_that_may_not_grow_leaves_the_old_report(tmp_path: Path) -> None:
    """A real refusal by the kernel, in the middle of a real write."""
    target = tmp_path / "report.csv"
    target.write_text("old")
    script = """
import resource, signal, sys
import pandas as pd
from tracelens_ext.errors import OutputError
from tracelens_ext.report.formats import write_tables
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_tables(sys.argv[1], {"report": pd.DataFrame({"a": range(100_000)})})
except OutputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "too large" in done.stdout
    assert done.stdout.count("\n") == 1
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_missing_folders_are_created(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "report.txt"
    with written_beside(target) as beside:
        beside.write_text("new")
    assert target.read_text() == "new"


def test_a_symbolic_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real = tmp_path / "elsewhere" / "real.txt"
    real.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    with written_beside(link) as beside:
        beside.write_text("new")
    assert not link.is_symlink()
    assert (link.read_text(), real.read_text()) == ("new", "old")


def test_permission_bits(tmp_path: Path) -> None:
    old = tmp_path / "old"
    new = tmp_path / "new"
    old.write_text("old")
    old.chmod(0o604)
    mask = os.umask(0o027)
    try:
        for target in (old, new):
            with written_beside(target) as beside:
                beside.write_text("new")
    finally:
        os.umask(mask)
    assert old.stat().st_mode & 0o777 == 0o604
    assert new.stat().st_mode & 0o777 == 0o640  # 666 less the mask


@pytest.mark.parametrize("target", ["/dev/null", "/dev/full"])
def test_a_device_is_never_replaced(target: str) -> None:
    before = Path(target).stat()
    with pytest.raises(OutputError, match="not a regular file"), written_beside(target):
        pytest.fail("the body must not run")
    assert Path(target).stat().st_rdev == before.st_rdev


def test_names_that_cannot_be_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name, words in {
        str(tmp_path / "folder"): "is a folder",
        str(tmp_path / "new") + "/": "is a folder",
        str(tmp_path / "file" / "report"): "a part of the path is a file",
        str(tmp_path / "file" / "deeper" / "report"): "a part of the path is a file",
        str(tmp_path / ("n" * 300)): "the name is too long",
        str(tmp_path / "a\0b"): "null",
        "": "has no name",
    }.items():
        with pytest.raises(OutputError) as error, written_beside(name):
            pytest.fail("the body must not run")
        assert words in message_of(error)
    assert leftovers(tmp_path) == []


def test_the_longest_name_works(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 127)  # 254 bytes
    with written_beside(target) as beside:
        beside.write_text("new")
    assert target.read_text() == "new"


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user other than root")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    protected = tmp_path / "protected"
    protected.write_text("old")
    protected.chmod(0o400)
    folder.chmod(0o500)
    try:
        with (
            pytest.raises(OutputError, match="permission denied"),
            written_beside(folder / "a"),
        ):
            pytest.fail("the body must not run")
        with (
            pytest.raises(OutputError, match="write-protected"),
            written_beside(protected),
        ):
            pytest.fail("the body must not run")
    finally:
        folder.chmod(0o700)
    assert protected.read_text() == "old"
