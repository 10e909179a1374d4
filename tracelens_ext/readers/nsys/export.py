"""Reports of Nsight Systems (`.nsys-rep`, `.qdrep`): converted by its own `nsys export`."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cache.file import TEMPORARY_SUFFIX
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.nsys import sqlite
from tracelens_ext.readers.unsupported import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

_TROUBLE = re.compile(
    r"error|fail|cannot|can't|could not|unable|invalid|corrupt|unsupported|not supported|no such"
    r"|denied|not found|newer|version|what\(\)",
    re.IGNORECASE,
)


def read(source: ByteSource) -> Trace:
    """Read a report."""
    if source.file is None or source.compressed:
        what = "a report of Nsight Systems that is gzipped or an open file"
        raise TraceFormatError(source.path, f"is {what}", "unpack it and give its path")
    with _exported(source) as database:
        return sqlite.read(source, database)


@contextmanager
def _exported(source: ByteSource) -> Iterator[Path]:
    """The SQLite export of a report, for as long as it is read.

    It is looked for and kept in the cache of the source; without, it is removed afterwards. Raises
    TraceFormatError where `nsys` is missing, or failed; the message has its own.
    """
    path, cache = source.path, source.cache
    if cache is not None and (kept := cache.conversion(path)) is not None:
        yield kept
        return
    with _temporary_folder(cache) as folder:
        made = folder / "export.sqlite"
        _export(path, made, source.reading.nsys)
        kept = cache.keep_conversion(path, made) if cache is not None else None
        yield kept or made


@contextmanager
def _temporary_folder(cache: TraceCache | None) -> Iterator[Path]:
    """A folder for the export: in the cache, so that it needs no copying there."""
    where = None
    if cache is not None:
        try:
            cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            where = cache.folder
        except OSError:
            pass  # the cache says so when it keeps the export
    try:
        folder = tempfile.TemporaryDirectory(prefix=".nsys-", suffix=TEMPORARY_SUFFIX, dir=where)
    except OSError:
        folder = tempfile.TemporaryDirectory(prefix="tracelens-ext-nsys-")
    with folder as name:
        yield Path(name)


def _export(path: str, made: Path, chosen: str | None) -> None:
    program = _program(path, chosen)
    command = [
        program,
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={made}",
        str(Path(path).absolute()),
    ]
    try:
        done = subprocess.run(  # noqa: S603  # the user's own program, no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise _failed(path, f"{program} cannot be run ({error.strerror or error})") from None
    if done.returncode != 0:
        said = _telling(done.stderr) or _telling(done.stdout) or "it says nothing"
        raise _failed(path, f"`nsys export` failed with exit code {done.returncode} ({said})")
    if not made.is_file():
        raise _failed(path, "`nsys export` wrote no database")


def _program(path: str, chosen: str | None) -> str:
    found = shutil.which(chosen or "nsys")
    if found is not None:
        return found
    name = Path(path)
    why = (
        f"there is no program {chosen} to convert it"
        if chosen
        else "the program `nsys`, which converts it, is not on the PATH"
    )
    raise TraceFormatError(
        path,
        f"is a report of Nsight Systems, and {why}",
        f"run `nsys export --type sqlite {name.name}` where Nsight Systems is installed and give"
        f" {name.stem}.sqlite, or name the program with --nsys",
    )


def _failed(path: str, why: str) -> TraceFormatError:
    return TraceFormatError(
        path,
        f"cannot be converted: {why}",
        "is the report whole, and nsys not older than what recorded it?",
    )


def _telling(output: bytes) -> str:
    """What a program said went wrong: its lines about errors, else its last line."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [line.strip() for line in lines if _TROUBLE.search(line)]
    return one_line("; ".join(dict.fromkeys(telling or lines[-1:])))
