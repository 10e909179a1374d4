"""Replace all files of a folder at once.

A new folder is filled with the files, and exchanges its place with the target. That is not possible
if the target has files from elsewhere, if it is the working folder, or if the operating system
cannot exchange folders. Then the files are renamed one by one. Meanwhile the manifest says that the
folder is unfinished, which the next run reports if this one was killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic_files import (
    AnyPath,
    output_error,
    prepare_folder,
    temporary_name,
    uninterrupted,
    written_beside,
)
from tracelens_ext.report.manifest import MANIFEST, manifest_files, write_manifest

# Constants of the system call `renameat2` on Linux: paths are relative to the working folder, and
# the two files exchange their names.
_AT_WORKING_FOLDER = -100
_RENAME_EXCHANGE = 2


def write_folder(
    folder: AnyPath,
    writers: Mapping[str, Callable[[Path], object]],
    *,
    keep: bool = False,
) -> list[Path]:
    """Write files and a manifest into a folder, all of them or none.

    Files of an earlier report are removed: those that the manifest named before and that have the
    suffix of one of the new files. Other files do not change.

    Args:
        folder: the folder, which is created if it does not exist.
        writers: name of each new file → the function that writes it to a path.
        keep: True to keep all files that the manifest named before.

    Returns:
        The paths of the new files.

    Raises:
        OutputError: the folder or a file cannot be written to.
    """
    place = Path(folder)
    try:
        target = place.resolve()
        prepare_folder(target)
        if target.exists() and not target.is_dir():
            raise OutputError(
                f"{place}: cannot be written to: it is a file; give a folder"
            )
        suffixes = {Path(name).suffix for name in writers}
        new = list(writers)
        old = [name for name in manifest_files(target) if name not in writers]
        kept = [name for name in old if keep or Path(name).suffix not in suffixes]
        # If the folder is a link, all files go where it leads now, even if it changes meanwhile.
        named_folder = place if place.absolute() == target else target
        with _staged(target) as staged:
            for name, write in writers.items():
                try:
                    write(staged / name)
                except OSError as error:
                    raise output_error(str(named_folder / name), error) from error
            was_exchanged = _exchange_folder(
                staged=staged, target=target, names=new + kept, kept=kept
            )
            if not was_exchanged:
                _rename_one_by_one(
                    staged=staged, place=named_folder, new=new, old=old, kept=kept
                )
    except OSError as error:
        raise output_error(str(place), error) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, or a loop of links
        raise OutputError(
            f"{str(place)!r:.80}: is not a valid folder name; choose another"
        ) from error
    return [place / name for name in writers]


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Yield a new folder beside the target, or in the target if only that is writable."""
    staged = target.with_name(temporary_name(target))
    try:
        try:
            staged.mkdir()
        except OSError:
            if not target.exists():
                raise
            staged = target / temporary_name(target / MANIFEST)
            staged.mkdir()
        yield staged
    finally:
        with uninterrupted():
            shutil.rmtree(staged, ignore_errors=True)


def _exchange_folder(
    staged: Path, target: Path, names: Sequence[str], kept: Sequence[str]
) -> bool:
    """Let a new folder take the place of the target; return False if that is not possible.

    It is not possible if the target has files from elsewhere, or is the working folder.

    Args:
        staged: the new folder, with the new files.
        target: the folder to replace, which need not exist.
        names: the names of all files that the folder will have.
        kept: the names of the files that stay from the target.
    """

    def is_own_file(path: Path) -> bool:
        return path.name in own_names and stat.S_ISREG(path.lstat().st_mode)

    try:
        own_names = {MANIFEST} | set(names) | set(manifest_files(target))
        target_exists = target.exists()
        if target_exists:
            has_only_own_files = all(map(is_own_file, target.iterdir()))
            if target.samefile(".") or not has_only_own_files:
                return False
        for name in kept:
            with suppress(FileNotFoundError):
                (staged / name).hardlink_to(target / name)
        write_manifest(staged, names)
    except OSError:
        return False
    with uninterrupted():
        try:
            if not target_exists:
                staged.rename(target)
                return True
            _copy_permissions(target, staged)
            _exchange_names(staged, target)
        except OSError:
            return False
        # The staged folder has the old files now. A file that somebody else has just written there
        # moves to the target.
        for path in list(staged.iterdir()):
            if path.name not in own_names:
                path.rename(target / path.name)
    return True


def _copy_permissions(target: Path, staged: Path) -> None:
    """Give a new folder and its files the permissions of the target and its files.

    Raises:
        PermissionError: the folders have different owners, or a file is write-protected.
    """
    old = target.stat()
    new = staged.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        raise PermissionError
    copies = {path: staged / path.name for path in target.iterdir()}
    copies[target] = staged
    for path, copy in copies.items():
        with suppress(FileNotFoundError):
            if not os.access(path, os.W_OK):
                raise PermissionError
            mode = stat.S_IMODE(path.stat().st_mode)
            copy.chmod(mode)


def _exchange_names(one: Path, other: Path) -> None:
    """Exchange the names of two folders at once.

    Raises:
        OSError: the operating system cannot exchange names.
    """
    if not sys.platform.startswith("linux"):
        raise OSError
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        raise OSError
    failed = rename(
        _AT_WORKING_FOLDER,
        os.fsencode(one),
        _AT_WORKING_FOLDER,
        os.fsencode(other),
        ctypes.c_uint(_RENAME_EXCHANGE),
    )
    if failed:
        raise OSError


def _rename_one_by_one(
    staged: Path,
    place: Path,
    new: Sequence[str],
    old: Sequence[str],
    kept: Sequence[str],
) -> None:
    """Move new files beside their targets, then rename each of them to its target.

    The manifest says that the folder is unfinished until all are renamed.

    Args:
        staged: the folder with the new files.
        place: the target folder.
        new: the names of the new files.
        old: the names of the files from the earlier manifest that are not new.
        kept: the names of those that stay.
    """
    place.mkdir(exist_ok=True)
    with ExitStack() as renames:
        for name in new:
            temporary_path = renames.enter_context(written_beside(place / name))
            (staged / name).replace(temporary_path)
        with uninterrupted():
            write_manifest(place, list(new) + list(old), unfinished=True)
            renames.close()  # renames all files
            for name in set(old) - set(kept):
                (place / name).unlink(missing_ok=True)
            write_manifest(place, list(new) + list(kept))
