"""Write complete files: a reader of the target never sees a part of a file.

A file is written beside its target, and renamed to the target at the end. A reader of the target
sees the old file or the complete new one: while the report is written, when the disk is full, and
when the user presses Ctrl-C. A run that is killed leaves its hidden temporary file, which a later
run removes.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracelens_ext.errors import OutputError

AnyPath = str | os.PathLike[str]
#: How much of the target's name is in the name of its temporary file. It tells a person who finds
#: the file what it was for. Most file systems allow 255 bytes, and a character has up to four.
_KEPT_NAME_CHARACTERS = 50
#: A temporary file that was not written to for this long does not belong to a running process.
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
    """Yield the path of a new, empty file in the target's folder, and rename it to the target.

    The rename happens when the block ends. If the block raises an exception, the new file is
    removed and the target does not change. Missing parent folders are created. A target that is a
    symbolic link is replaced, and the file that it leads to is not. The new file gets the
    permissions of an existing target.

    Raises:
        OutputError: the target cannot be written to.
    """
    path_text = os.fspath(target)
    try:
        final = _checked_target(path_text)
        prepare_folder(final)
    except OSError as error:
        raise output_error(path_text, error) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, or a loop of links
        raise OutputError(
            f"{path_text!r}: cannot be written: {error}; choose another name"
        ) from error
    beside = final.with_name(temporary_name(final))
    try:
        # The file is created within the `try`, so that an interrupt at any time removes it.
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield beside
        if final.is_file() and not final.is_symlink():
            beside.chmod(stat.S_IMODE(final.stat().st_mode))
        beside.replace(final)
    except OSError as error:
        raise output_error(path_text, error) from error
    finally:
        with suppress(OSError):  # after the rename, the file does not exist anymore
            beside.unlink()


def output_error(path_text: str, error: OSError) -> OutputError:
    """Return an error with one line for an error of the operating system.

    The line has the file, the problem and the remedy.
    """
    otherwise = f"{error.strerror or error}; choose another location"
    return OutputError(
        f"{path_text}: cannot be written: {_REMEDIES.get(error.errno or 0, otherwise)}"
    )


def _checked_target(path_text: str) -> Path:
    """Return the absolute path of a target, or raise an OutputError if it cannot be replaced."""
    if not path_text:
        raise OutputError(
            "the output file has no name; give a path such as report.xlsx"
        )
    # This resolves the parent only: a target that is a link is replaced itself.
    final = Path(path_text).parent.resolve() / Path(path_text).name
    problem = ""
    if final.is_dir() or path_text.endswith(("/", os.sep)):
        problem = "it is a folder; give the name of a file in it"
    elif final.exists() and not final.is_file():
        # Replacing /dev/null would be worse than an error.
        problem = "it is not a regular file; choose another name"
    elif final.exists() and not (final.is_symlink() or os.access(final, os.W_OK)):
        # The rename would work in spite of the write protection.
        problem = "it is write-protected; choose another name or make it writable"
    if problem:
        raise OutputError(f"{path_text}: cannot be written: {problem}")
    return final


def prepare_folder(final: Path) -> None:
    """Create the folder of a target, and remove temporary files that a killed run left there."""
    final.parent.mkdir(parents=True, exist_ok=True)
    # If the name of the target is too long, this raises the error now instead of at the rename.
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
    """Return a new hidden name for the temporary file of a target, with a part of its name."""
    return f"{_temporary_stem(final)}{os.urandom(6).hex()}.tmp"


#: The signals that wait until files are renamed.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that end a run until the block is done."""
    handlers_before = {}
    received = []
    try:
        # Only the main thread may set handlers; in another thread, `signal` raises a ValueError.
        with suppress(ValueError):
            for name in _SIGNALS:
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) not in (None, signal.SIG_IGN):
                    handlers_before[number] = signal.signal(
                        number,
                        lambda received_number, _: received.append(received_number),
                    )
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
