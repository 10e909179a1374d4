"""Reads reports of Nsight Systems (`.nsys-rep`, and the older `.qdrep`) without the program `nsys`.

Supports: reports of 28 versions, 2020.3 to 2026.2, with kernels, copies, memsets, graphs recorded
whole, CUDA runtime and driver calls, NVTX ranges and marks, processes, threads, GPUs, and the
warnings of the profiler. A report is decoded into the tables that its export would have. The code
that reads exports (`export_trace.py`) makes the trace, so both give the same trace.
Ignores: samples, scheduling, calls of the operating system, counters. Anything else that is not
read is counted in the notes of the trace.
Never reads: the environment, command lines, names of hosts and users, output of programs.
Format: not documented by NVIDIA; `report_file.py` and `report_schema.py` describe it.
"""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from tracelens_ext.errors import TraceCutOffError, TraceFormatError, TraceNotFoundError
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN, REMEDY_SALVAGE
from tracelens_ext.readers.nsys import conversion, export_trace
from tracelens_ext.readers.nsys.report_file import MAGIC, DamagedReportError, ReportFile
from tracelens_ext.readers.nsys.report_tables import NsysReportTables
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.trace import SALVAGED, Trace

FORMAT = "Nsight Systems report"
_CONVERT = "convert it with Nsight Systems, using --nsys PROGRAM"


def read(source: ByteSource) -> Trace:
    """Read a report. If the user names the program `nsys`, read what it converts the report to.

    Raises:
        TraceFormatError: the file is not a report, or has no CUDA events.
        TraceCutOffError: the report is damaged or cut off.
        TraceTooLargeError: it unpacks to more bytes than the user allows.
    """
    if source.reading.nsys is not None:
        return conversion.read_converted(source)
    with ExitStack() as stack:
        content = source.file_or_bytes()
        try:
            file, size = _open(content, stack)
            return _read_report(source, file, size)
        except OSError as error:
            raise TraceNotFoundError.of(source.path, error) from None


def _open(content: Path | bytes, stack: ExitStack) -> tuple[BinaryIO, int]:
    """Return a report as an open, seekable file, and its size in bytes.

    Args:
        content: the path of the report, or its bytes.
        stack: closes the file when it is closed itself.
    """
    if isinstance(content, bytes):
        return io.BytesIO(content), len(content)
    file = stack.enter_context(content.open("rb"))
    size = file.seek(0, io.SEEK_END)
    return file, size


def _read_report(source: ByteSource, file: BinaryIO, size: int) -> Trace:
    """Return the trace of an open report."""
    path = source.path
    try:
        report = ReportFile(file, size)
    except DamagedReportError:
        problem = f"is not an Nsight Systems report: it does not begin with {MAGIC.decode()!r}"
        remedy = f"if it is one, copy it again, or {_CONVERT}"
        raise TraceFormatError(path, problem, remedy) from None
    tables = NsysReportTables(
        path=path,
        file=report,
        most_bytes=source.reading.max_bytes,
        progress=source.progress,
    )
    try:
        tables.read(allow_damage=source.reading.allow_truncated)
    except DamagedReportError as error:
        tables.damage = error
    damage = tables.damage
    notes = tables.notes()
    if damage is not None:
        problem = (
            f"is a damaged Nsight Systems report (byte {damage.offset:,}: "
            f"{damage.problem})"
        )
        if not source.reading.allow_truncated:
            remedy = f"{REMEDY_COPY_AGAIN}, or {_CONVERT}"
            if tables.events:
                remedy = f"{REMEDY_COPY_AGAIN}, {REMEDY_SALVAGE}, or {_CONVERT}"
            raise TraceCutOffError(path, problem, remedy)
        if not tables.events:
            remedy = f"no event precedes the damage; {REMEDY_COPY_AGAIN}, or {_CONVERT}"
            raise TraceCutOffError(path, problem, remedy)
        notes.insert(0, _salvage_note(tables, damage))
    return export_trace.make_trace(
        tables=tables, format_name=FORMAT, progress=source.progress, notes=notes
    )


def _salvage_note(tables: NsysReportTables, damage: DamagedReportError) -> str:
    """Return a sentence for the user about the damage and what was read in spite of it."""
    loss = "everything after it is lost"
    if tables.names_are_lost:
        loss += (
            ", including the names of kernels and calls, which are stored at the end "
            "of a report"
        )
    where = f"byte {damage.offset:,}: {damage.problem}"
    return f"{SALVAGED}({where}): {tables.events:,} events before it are here; {loss}."
