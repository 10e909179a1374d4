"""Put the files of a folder in place as one: whoever reads it finds one report, never two mixed.

The files are written to a new folder beside the target, which then takes its place with one rename.
A folder that holds files of others too, or is the working folder, stays where it is: its files are
renamed one by one, and so they are where the system cannot exchange two folders. Meanwhile the
manifest says that the folder is unfinished, and the next run says so if this one was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import stat
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic import output_error, prepare_folder, temporary_name, written_beside
from tracelens_ext.report.manifest import MANIFEST, manifest_files, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_AT_WORKING_FOLDER, _RENAME_EXCHANGE = -100, 2
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def write_folder(
    folder: str | os.PathLike[str],
    writers: Mapping[str, Callable[[Path], object]],
    *,
    keep: bool = False,
) -> list[Path]:
    """Write files into a folder and its manifest; all of them take their places, or none.

    Files that the manifest named before, and that have the suffix of one of the new files, are
    removed: they are of another report. Other files are left alone.

    `keep`: whether all files that the manifest named before stay.
    """
    place = Path(folder)
    try:
        target = place.resolve()
        prepare_folder(target)
        if target.exists() and not target.is_dir():
            raise OutputError(f"{place}: cannot be written to: it is a file; give a folder")
        suffixes = {Path(name).suffix for name in writers}
        old = [name for name in manifest_files(target) if name not in writers]
        kept = [name for name in old if keep or Path(name).suffix not in suffixes]
        # A link may change before the last file is there: all go where it leads now.
        here = place if place.absolute() == target else target
        if not _exchanged(here, target, writers, kept):
            target.mkdir(exist_ok=True)
            _one_by_one(here, writers, kept, sorted({*old} - {*kept}))
    except OSError as error:
        raise output_error(str(place), error) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, a circle of links
        raise OutputError(f"{str(place)!r:.80}: is no name for a folder; choose another") from error
    return [place / name for name in writers]


def _exchanged(
    place: Path, target: Path, writers: Mapping[str, Callable[[Path], object]], kept: Sequence[str]
) -> bool:
    """Write a new folder and give it the place of the target; False where that cannot be."""
    ours = {MANIFEST, *writers, *manifest_files(target)}
    if target.exists() and not _may_be_exchanged(target, ours):
        return False
    beside = target.with_name(temporary_name(target))
    try:
        try:
            beside.mkdir()
            for name in kept:
                with suppress(FileNotFoundError):
                    (beside / name).hardlink_to(target / name)
        except OSError:  # only the folder itself may be written to
            if target.exists():
                return False
            raise
        for name, write in writers.items():
            _written(write, beside / name, place / name)
        write_manifest(beside, [*writers, *kept])
        with uninterrupted():
            if not target.exists():
                beside.rename(target)
                return True
            try:
                _take_over_rights(target, beside)
                _exchange(beside, target)
            except OSError:
                copies = {name: partial(shutil.copyfile, beside / name) for name in writers}
                _one_by_one(place, copies, kept, sorted(ours - {MANIFEST, *writers, *kept}))
                return True
            for late in list(beside.iterdir()):
                if late.name not in ours:  # somebody wrote it just now
                    late.rename(target / late.name)
        return True
    finally:
        with uninterrupted():
            shutil.rmtree(beside, ignore_errors=True)


def _may_be_exchanged(target: Path, ours: set[str]) -> bool:
    """Whether a folder holds files of this program alone, and nobody's shell stands in it."""
    if target.samefile("."):
        return False
    with os.scandir(target) as entries:
        return all(e.name in ours and e.is_file(follow_symlinks=False) for e in entries)


def _take_over_rights(target: Path, beside: Path) -> None:
    """Give a new folder and its files the permissions of the old one."""
    old, new = target.stat(), beside.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    for path in [*target.iterdir(), target]:
        copy = beside if path is target else beside / path.name
        with suppress(FileNotFoundError):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            copy.chmod(stat.S_IMODE(path.stat().st_mode))


def _exchange(one: Path, other: Path) -> None:
    function = None
    if sys.platform.startswith("linux"):
        function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    here, names = _AT_WORKING_FOLDER, (os.fsencode(one), os.fsencode(other))
    if function(here, names[0], here, names[1], ctypes.c_uint(_RENAME_EXCHANGE)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _one_by_one(
    place: Path,
    writers: Mapping[str, Callable[[Path], object]],
    kept: Sequence[str],
    outdated: Sequence[str],
) -> None:
    """Write all files beside their places, then rename each; unfinished until all are there."""
    with ExitStack() as written:
        for name, write in writers.items():
            beside = written.enter_context(written_beside(place / name))
            _written(write, beside, place / name)
        with uninterrupted():
            write_manifest(place, [*writers, *kept, *outdated], unfinished=True)
            written.close()
            for name in outdated:
                (place / name).unlink(missing_ok=True)
            write_manifest(place, [*writers, *kept])


def _written(write: Callable[[Path], object], beside: Path, shown: Path) -> None:
    try:
        write(beside)
    except OSError as error:
        raise output_error(str(shown), error) from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that end a run wait until a few files are renamed."""
    before, heard = {}, []
    try:
        with suppress(ValueError):  # outside of the main thread no handler is called
            for name in _SIGNALS:
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) not in (None, signal.SIG_IGN):
                    before[number] = signal.signal(number, lambda n, _: heard.append(n))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])
