"""Reads reports of Nsight Systems by having the program `nsys` export them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.cache.file import TEMPORARY_SUFFIX
from tracelens_ext.readers.nsys import sqlite
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.text import one_line
from tracelens_ext.trace import Trace

#: Words in the lines of output that report an error.
_ERROR_WORDS = re.compile(
    r"error|fail|cannot|can't|could not|unable|invalid|corrupt|unsupported|not supported|no such"
    r"|denied|not found|newer|version|what\(\)",
    re.IGNORECASE,
)


def read_converted(source: ByteSource) -> Trace:
    """Read the export that `nsys` makes of a report.

    Raises:
        TraceFormatError: the program is missing or fails, or the export has no CUDA events.
    """
    with _exported(source) as export:
        return sqlite.read_export(source, export)


@contextmanager
def _exported(source: ByteSource) -> Iterator[Path]:
    """Provide the export of a report while it is read.

    The export comes from the cache, or is made and then kept in the cache. If there is no cache, or
    it cannot keep the export, the export is deleted afterwards.
    """
    path = source.path
    if source.file is None or source.compressed:
        problem = "is an Nsight Systems report that is gzipped or an open file"
        raise TraceFormatError(path, problem, "unpack it and give its path")
    cache = source.cache
    folder_for_export = None
    if cache is not None:
        cached_export = cache.conversion(path)
        if cached_export is not None:
            yield cached_export
            return
        # The export is made inside the cache folder, so that keeping it does not copy it. If that
        # folder cannot be used, the cache itself reports it later.
        with suppress(OSError):
            cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(cache.folder, os.W_OK):
                folder_for_export = cache.folder
    with TemporaryDirectory(
        prefix=".nsys-", suffix=TEMPORARY_SUFFIX, dir=folder_for_export
    ) as folder:
        export = Path(folder) / "export.sqlite"
        _run_export(path, export, source.reading.nsys or "nsys")
        kept_export = None
        if cache is not None:
            kept_export = cache.keep_conversion(path, export)
        yield kept_export or export


def _run_export(path: str, export: Path, program_name: str) -> None:
    """Have `nsys` export a report.

    Args:
        path: the path of the report.
        export: the path that the export is written to.
        program_name: the name or path of the program.

    Raises:
        TraceFormatError: the program does not exist, or it fails.
    """
    name = Path(path)
    program = shutil.which(program_name)
    if program is None:
        problem = (
            f"is an Nsight Systems report, and the program {program_name} to convert "
            "it was not found"
        )
        remedy = (
            "leave out --nsys, because reports can be read without it; or run `nsys "
            f"export --type sqlite {name.name}` where Nsight Systems is installed, "
            f"and give {name.stem}.sqlite"
        )
        raise TraceFormatError(path, problem, remedy)
    command = [
        program,
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={export}",
        str(name.absolute()),
    ]
    reason = "`nsys export` wrote no database"
    try:
        finished = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if finished.returncode == 0 and export.is_file():
            return
        if finished.returncode != 0:
            message = _error_lines(finished.stderr) or _error_lines(finished.stdout)
            reason = (
                f"`nsys export` failed with exit code {finished.returncode} "
                f"({message or 'no message'})"
            )
    except OSError as error:
        reason = f"{program} cannot be run ({error.strerror or error})"
    remedy = (
        "check that the report is complete and that nsys is not older than the "
        "version that recorded it"
    )
    raise TraceFormatError(path, f"cannot be converted: {reason}", remedy)


def _error_lines(output: bytes) -> str:
    """Return the lines of a program's output that report errors, else its last line."""
    text = output.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    about_errors = [line for line in lines if _ERROR_WORDS.search(line)]
    quoted = about_errors or lines[-1:]
    distinct = dict.fromkeys(quoted)
    return one_line("; ".join(distinct))
