"""Write files whole, and over what this program made only; everything else is the user's.

A file is written beside its target and put in place with one rename. A reader of the target sees
the old file or the whole new one, never a part of it: not while the report is being written, not
when the disk fills up, and not when the user presses Ctrl-C. A run that is killed outright leaves
its hidden temporary file, which a later run removes.

Each kind of output carries a mark of its own: a workbook its creator, a page its generator, JSON
its first member, Markdown its first line. A folder of CSV or Parquet files has a manifest, a
hidden file (so that programs that read all files of the folder skip it) that names the others.

The files of a folder take their places as one: a new folder exchanges its place with the target. In
one that holds files of others too, or is the working folder, or where the system exchanges none,
they are renamed one by one; meanwhile the manifest says that the folder is unfinished, and the next
run says so if this one was killed.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import re
import shutil
import signal
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tracelens_ext.errors import OutputError
from tracelens_ext.settings import VERSION

AnyPath = str | os.PathLike[str]
# Names longer than 255 bytes are refused by nearly every file system, and a character takes up to
# four; a human who finds a temporary file after a power cut still sees what it was to be.
_KEPT_NAME_CHARACTERS = 50
#: A temporary file that was not written to for so long belongs to no run that is alive.
_ABANDONED_S = 3600

_REMEDIES = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "permission denied; choose a location that you can write to",
    ),
    errno.ENOSPC: "no space left on the device; free some space or choose another location",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another location",
    errno.EFBIG: "the file is too large for this file system; choose another location",
    errno.EROFS: "the file system is read-only; choose another location",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST),
        "a part of the path is a file, not a folder; choose another location",
    ),
    errno.ELOOP: "the symbolic links form a loop; choose another location",
    **dict.fromkeys(
        (errno.EBUSY, errno.ETXTBSY),
        "the file is in use; close the program that has it open",
    ),
}


@contextmanager
def written_beside(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new empty file in the target's folder, and rename it to the target at the end.

    Missing parent folders are created. Of a target that is a symbolic link the link is replaced:
    what it leads to stays. An existing file keeps its permission bits. When the body raises
    anything, the new file is removed and the target stays as it was.
    """
    path_text = os.fspath(target)
    try:
        final = _checked_target(path_text)
        prepare_folder(final)
    except OSError as error:
        raise output_error(path_text, error) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, a circle of links
        raise OutputError(
            f"{path_text!r}: cannot be written: {error}; choose another name"
        ) from error
    beside = final.with_name(temporary_name(final))
    try:
        # Within the `try`: an interrupt between making the file and coming here would leave it.
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield beside
        if final.is_file() and not final.is_symlink():
            beside.chmod(stat.S_IMODE(final.stat().st_mode))
        beside.replace(final)
    except OSError as error:
        raise output_error(path_text, error) from error
    finally:
        with suppress(OSError):  # after the rename there is nothing left to remove
            beside.unlink()


def output_error(path_text: str, error: OSError) -> OutputError:
    """Turn an operating system's refusal into one line: which file, what is wrong, what to do."""
    otherwise = f"{error.strerror or error}; choose another location"
    return OutputError(
        f"{path_text}: cannot be written: {_REMEDIES.get(error.errno or 0, otherwise)}"
    )


def _checked_target(path_text: str) -> Path:
    if not path_text:
        raise OutputError(
            "the output file has no name; give a path such as report.xlsx"
        )
    # a link itself, not where it leads
    final = Path(path_text).parent.resolve() / Path(path_text).name
    problem = ""
    if final.is_dir() or path_text.endswith(("/", os.sep)):
        problem = "it is a folder; give the name of a file in it"
    elif (
        final.exists() and not final.is_file()
    ):  # replacing /dev/null would be worse than failing
        problem = "it is not a regular file; choose another name"
    elif final.exists() and not (final.is_symlink() or os.access(final, os.W_OK)):
        # A rename would ignore the write protection.
        problem = "it is write-protected; choose another name or make it writable"
    if problem:
        raise OutputError(f"{path_text}: cannot be written: {problem}")
    return final


def prepare_folder(final: Path) -> None:
    """Make the target's folder, and clear away what a run that was killed left half written."""
    final.parent.mkdir(parents=True, exist_ok=True)
    # A target's name that is itself too long must fail now, not at the rename after minutes.
    with suppress(FileNotFoundError):
        final.lstat()
    leftover_pattern = glob.escape(_temporary_stem(final)) + "[0-9a-f]" * 12 + ".tmp"
    for path in final.parent.glob(leftover_pattern):
        with suppress(OSError):
            status = path.lstat()
            if time.time() - status.st_mtime > _ABANDONED_S:
                if stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(path, ignore_errors=True)
                elif stat.S_ISREG(status.st_mode):
                    path.unlink()


def _temporary_stem(final: Path) -> str:
    return f".{final.name[:_KEPT_NAME_CHARACTERS]}."


def temporary_name(final: Path) -> str:
    """A hidden name that nobody has; what it is to be can be read from it."""
    return f"{_temporary_stem(final)}{os.urandom(6).hex()}.tmp"


MANIFEST = ".tracelens-ext-manifest.json"
GENERATOR = "tracelens-ext"
#: The version of the tables, which a manifest and a workbook say under this name. It grows when a
#: column that is read back (`compare.finished_reports`) gets another meaning.
TABLES_VERSION = 1
TABLES_VERSION_KEY = "tables_version"
#: How JSON of ours begins.
ABOUT_US = {
    "generator": GENERATOR,
    "version": VERSION,
    TABLES_VERSION_KEY: TABLES_VERSION,
}
#: How a text file of ours begins.
_MARK = re.compile(
    rb'\{\s*"generator": "tracelens-ext",'
    rb'|<!doctype html>.*<meta name="generator" content="tracelens-ext">'
    rb"|<!-- written by tracelens-ext -->",
    re.DOTALL,
)
_LOOK_BYTES = 4096
_CREATOR_PART_BYTES = 65_536
_MANIFEST_BYTES = 1_000_000
_CREATOR_PART = "docProps/core.xml"
_CREATOR = b"<dc:creator>tracelens-ext</dc:creator>"
_ZIP = b"PK\x03\x04"
#: What zipfile raises for an archive that is damaged, encrypted, or packed in a way it cannot read.
_UNREADABLE_ZIP = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def check_output(
    path: AnyPath, inputs: Iterable[AnyPath] = (), *, force: bool = False
) -> None:
    """Refuse to write over a file that this program did not make, and `inputs` in any case."""
    refuse_input(path, inputs)
    if force or not _holds_something(Path(path)):
        return
    if not made_here(path):
        raise _strangers(path, "name")


def _strangers(path: AnyPath, other: str) -> OutputError:
    remedy = f"choose another {other}, or --force to overwrite it"
    return OutputError(f"{path}: exists and was not written by tracelens-ext; {remedy}")


def check_folder(
    folder: AnyPath,
    names: Iterable[str],
    inputs: Sequence[AnyPath] = (),
    *,
    force: bool = False,
) -> None:
    """Refuse to write over files of a folder that its manifest does not name."""
    ours = set(manifest_files(folder))
    for name in names:
        path = Path(folder) / name
        refuse_input(path, inputs)
        if not force and name not in ours and _holds_something(path):
            raise _strangers(path, "folder")


def write_manifest(
    folder: Path, names: Sequence[str], *, unfinished: bool = False
) -> None:
    """Write the manifest of a folder; an unfinished one holds files of more than one report."""
    manifest = ABOUT_US | {"files": list(names)}
    if unfinished:
        manifest["unfinished"] = True
    text = json.dumps(manifest, indent=1)
    with written_beside(folder / MANIFEST) as beside:
        beside.write_text(f"{text}\n", encoding="utf-8")


def manifest_files(folder: AnyPath) -> list[str]:
    """The files of a folder that this program made, by its manifest; none without one."""
    files = read_manifest(folder).get("files")
    return [
        name  # of a file in the folder itself; a manifest may come from anywhere
        for name in (files if isinstance(files, list) else ())
        if isinstance(name, str)
        and name not in ("", ".", "..")
        and not set(name) & set("/\\\0")
    ]


def unfinished_note(folder: AnyPath) -> list[str]:
    """A line about a folder to which a run wrote that was killed; nothing of any other."""
    note = (
        "a run was killed while it was moving its files here, so they may belong to "
        "two reports"
    )
    return [f"{folder}: {note}"] if read_manifest(folder).get("unfinished") else []


def read_manifest(folder: AnyPath) -> dict[str, object]:
    """The manifest of a folder; empty if it has none that this program wrote."""
    with suppress(ValueError, RecursionError):
        manifest = json.loads(_beginning(Path(folder) / MANIFEST, _MANIFEST_BYTES))
        if isinstance(manifest, dict) and manifest.get("generator") == GENERATOR:
            return manifest
    return {}


def _beginning(path: Path, size: int) -> bytes:
    """The first bytes of a file; none of what is none or cannot be read."""
    with suppress(OSError, ValueError):
        if path.is_file():  # a pipe would never answer
            with path.open("rb") as stream:
                return stream.read(size)
    return b""


def made_here(path: AnyPath) -> bool:
    """Return True if a file carries the mark of this program's outputs; a demo trace does not."""
    head = _beginning(Path(path), _LOOK_BYTES)
    if not head.startswith(_ZIP):
        return _MARK.match(head) is not None
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_CREATOR_PART) as stream:
            return _CREATOR in stream.read(_CREATOR_PART_BYTES)
    except _UNREADABLE_ZIP:
        return False


def _holds_something(path: Path) -> bool:
    """Return True if a path holds a file that is not empty; the writer reports other problems."""
    with suppress(OSError, ValueError):
        return path.is_file() and path.stat().st_size > 0
    return False


def refuse_input(path: AnyPath, inputs: Iterable[AnyPath]) -> None:
    """Refuse to write to a file or folder that is read."""
    for source in inputs:
        with suppress(OSError, ValueError):  # one of them does not exist
            if Path(path).samefile(source):
                raise OutputError(
                    f"{path}: is the trace itself; choose another name for the output"
                )


_AT_WORKING_FOLDER = -100
_RENAME_EXCHANGE = 2
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def write_folder(
    folder: AnyPath,
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
            raise OutputError(
                f"{place}: cannot be written to: it is a file; give a folder"
            )
        suffixes = {Path(name).suffix for name in writers}
        new = list(writers)
        old = [name for name in manifest_files(target) if name not in writers]
        kept = [name for name in old if keep or Path(name).suffix not in suffixes]
        # A link may change before the last file is there: all go where it leads now.
        named_folder = place if place.absolute() == target else target
        with _staged(target) as staged:
            for name, write in writers.items():
                try:
                    write(staged / name)
                except OSError as error:
                    raise output_error(str(named_folder / name), error) from error
            is_done = _exchanged(
                staged=staged, target=target, names=new + kept, kept=kept
            )
            if not is_done:
                _renamed(staged=staged, place=named_folder, new=new, old=old, kept=kept)
    except OSError as error:
        raise output_error(str(place), error) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, a circle of links
        raise OutputError(
            f"{str(place)!r:.80}: is not a valid folder name; choose another"
        ) from error
    return [place / name for name in writers]


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A new folder beside the target, or in it where only that may be written to."""
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


def _exchanged(
    staged: Path, target: Path, names: Sequence[str], kept: Sequence[str]
) -> bool:
    """Give a new folder the place of the target; False where that cannot be.

    Of one that holds files of others, or in which somebody's shell stands, the place stays.
    """

    def is_ours(path: Path) -> bool:
        return path.name in ours and stat.S_ISREG(path.lstat().st_mode)

    try:
        ours = {MANIFEST} | set(names) | set(manifest_files(target))
        there = target.exists()
        if there and (target.samefile(".") or not all(map(is_ours, target.iterdir()))):
            return False
        for name in kept:
            with suppress(FileNotFoundError):
                (staged / name).hardlink_to(target / name)
        write_manifest(staged, names)
    except OSError:
        return False
    with uninterrupted():
        try:
            if not there:
                staged.rename(target)
                return True
            _take_over_rights(target, staged)
            _exchange(staged, target)
        except OSError:
            return False
        for late in list(staged.iterdir()):
            if late.name not in ours:  # somebody wrote it just now
                late.rename(target / late.name)
    return True


def _take_over_rights(target: Path, beside: Path) -> None:
    """Give a new folder and its files the permissions of the old one."""
    old = target.stat()
    new = beside.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        raise PermissionError
    copies = {path: beside / path.name for path in target.iterdir()}
    copies[target] = beside
    for path, copy in copies.items():
        with suppress(FileNotFoundError):
            if not os.access(path, os.W_OK):
                raise PermissionError
            mode = stat.S_IMODE(path.stat().st_mode)
            copy.chmod(mode)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change places at once; OSError where the system does not."""
    linux = sys.platform.startswith("linux")
    function = linux and getattr(ctypes.CDLL(None), "renameat2", None)
    if not function:
        raise OSError
    working_folder = _AT_WORKING_FOLDER
    names = (os.fsencode(one), os.fsencode(other))
    if function(
        working_folder,
        names[0],
        working_folder,
        names[1],
        ctypes.c_uint(_RENAME_EXCHANGE),
    ):
        raise OSError


def _renamed(
    staged: Path,
    place: Path,
    new: Sequence[str],
    old: Sequence[str],
    kept: Sequence[str],
) -> None:
    """Put all files beside their places, then rename each; unfinished until all are there."""
    place.mkdir(exist_ok=True)
    with ExitStack() as written:
        for name in new:
            beside = written.enter_context(written_beside(place / name))
            (staged / name).replace(beside)
        with uninterrupted():
            write_manifest(place, list(new) + list(old), unfinished=True)
            written.close()
            for name in set(old) - set(kept):
                (place / name).unlink(missing_ok=True)
            write_manifest(place, list(new) + list(kept))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that end a run wait until a few files are renamed."""
    before = {}
    heard = []
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
