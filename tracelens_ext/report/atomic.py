"""Write a file beside its target and put it in place with one rename.

A reader of the target sees the old file or the whole new one, never a part of it: not while the
report is being written, not when the disk fills up, and not when the user presses Ctrl-C. A run
that is killed outright leaves its hidden temporary file, which a later run removes.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from tracelens_ext.errors import OutputError

# Names longer than 255 bytes are refused by nearly every file system, and a character takes up to
# four; a human who finds a temporary file after a power cut still sees what it was to be.
_KEPT_NAME_CHARACTERS = 50
#: A temporary file that was not written to for so long belongs to no run that is alive.
_ABANDONED_S = 3600

_REMEDIES: dict[int, tuple[str, str]] = {
    errno.EACCES: ("permission denied", "choose a place that you may write to"),
    errno.EPERM: ("permission denied", "choose a place that you may write to"),
    errno.ENOSPC: ("no space left on the device", "free some space or choose another place"),
    errno.EDQUOT: ("your disk quota is used up", "free some space or choose another place"),
    errno.EFBIG: ("the file grows too large for this file system", "choose another place"),
    errno.EROFS: ("the file system is read-only", "choose another place"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "choose another place"),
    errno.EEXIST: ("a part of the path is a file, not a folder", "choose another place"),
    errno.ELOOP: ("the symbolic links lead round in a circle", "choose another place"),
    errno.EBUSY: ("the file is in use", "close the program that has it open"),
    errno.ETXTBSY: ("the file is in use", "close the program that has it open"),
}


@contextlib.contextmanager
def written_beside(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new empty file in the target's folder, and rename it to the target at the end.

    Missing parent folders are created. Of a target that is a symbolic link the link is replaced:
    what it leads to stays. An existing file keeps its permission bits. When the body raises
    anything, the new file is removed and the target stays as it was.
    """
    shown = os.fspath(target)
    try:
        final = _checked_target(shown)
        prepare_folder(final)
    except OSError as error:
        raise output_error(shown, error) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, a circle of links
        raise OutputError(f"{shown!r}: cannot be written: {error}; choose another name") from error
    beside = final.with_name(temporary_name(final))
    try:
        # Within the `try`: an interrupt between making the file and coming here would leave it.
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield beside
        if final.is_file() and not final.is_symlink():
            beside.chmod(stat.S_IMODE(final.stat().st_mode))
        beside.replace(final)
    except OSError as error:
        raise output_error(shown, error) from error
    finally:
        with contextlib.suppress(OSError):  # after the rename there is nothing left to remove
            beside.unlink()


def output_error(shown: str, error: OSError) -> OutputError:
    """Turn an operating system's refusal into one line: which file, what is wrong, what to do."""
    problem, remedy = _REMEDIES.get(
        error.errno or 0, (error.strerror or str(error), "choose another place")
    )
    return OutputError(f"{shown}: cannot be written: {problem}; {remedy}")


def _checked_target(shown: str) -> Path:
    if not shown:
        raise OutputError("the output file has no name; give a path such as report.xlsx")
    final = Path(shown).parent.resolve() / Path(shown).name  # a link itself, not where it leads
    problem = ""
    if final.is_dir() or shown.endswith(("/", os.sep)):
        problem = "it is a folder; give the name of a file in it"
    elif final.exists() and not final.is_file():  # replacing /dev/null would be worse than failing
        problem = "it is not a regular file; choose another name"
    elif final.exists() and not (final.is_symlink() or os.access(final, os.W_OK)):
        # A rename would ignore the write protection.
        problem = "it is write-protected; choose another name or allow writing to it"
    if problem:
        raise OutputError(f"{shown}: cannot be written: {problem}")
    return final


def prepare_folder(final: Path) -> None:
    """Make the target's folder, and clear away what a run that was killed left half written."""
    final.parent.mkdir(parents=True, exist_ok=True)
    # A target's name that is itself too long must fail now, not at the rename after minutes.
    with contextlib.suppress(FileNotFoundError):
        final.lstat()
    left = glob.escape(_temporary_stem(final)) + "[0-9a-f]" * 12 + ".tmp"
    for path in final.parent.glob(left):
        with contextlib.suppress(OSError):
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
