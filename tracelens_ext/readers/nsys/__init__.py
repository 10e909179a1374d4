"""Nsight Systems: its reports, their SQLite exports, and its tables of GPU events.

What parses them is imported when a file is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import Reader
from tracelens_ext.readers.source import SQLITE_MAGIC

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

_REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
_RECORD = "nsys profile -t cuda,nvtx -o run PROGRAM"


class NsysReportReader(Reader):
    """Has a report converted to SQLite by `nsys export`, and reads that."""

    name = "Nsight Systems report"
    suffixes = (".nsys-rep", ".qdrep")
    how_to_record = f"{_RECORD} (the program `nsys` is needed to read it)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the content is a report, or may be one and the name says so."""
        text = head.lstrip()
        if path.name.lower().endswith(self.suffixes):
            return bool(text) and not text.startswith((b"{", b"[", SQLITE_MAGIC))
        return text.startswith(_REPORT_MAGIC)

    def read_source(self, source: ByteSource) -> Trace:
        """Read a report."""
        from tracelens_ext.readers.nsys import export, sqlite

        if source.file is None or source.compressed:
            what = "a report of Nsight Systems that is gzipped or an open file"
            raise TraceFormatError(source.path, f"is {what}", "unpack it and give its path")
        with export.exported(source) as database:
            return sqlite.read(source.path, database, source.progress)


class NsysDatabaseReader(Reader):
    """Reads an SQLite export."""

    name = "Nsight Systems SQLite export"
    suffixes = (".sqlite",)
    how_to_record = f"{_RECORD}, then nsys export --type sqlite run.nsys-rep"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is an SQLite database, as far as can be seen of Nsight Systems."""
        if not head.startswith(SQLITE_MAGIC):
            return False
        from tracelens_ext.readers.nsys.sqlite import NsysDatabase

        return NsysDatabase.is_one(path) is not False

    def read_source(self, source: ByteSource) -> Trace:
        """Read a database where it lies; one that is gzipped or an open file, from memory."""
        from tracelens_ext.readers.nsys import sqlite

        return sqlite.read(source.path, source.file_or_bytes(), source.progress)


class NsysTableReader(Reader):
    """Reads the table of GPU events that `nsys stats` writes as CSV."""

    name = "nsys stats cuda_gpu_trace (CSV)"
    how_to_record = f"{_RECORD}, then nsys stats -r cuda_gpu_trace --format csv run.nsys-rep"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether a file begins with any table of `nsys stats`, behind messages or at once."""
        if head.startswith(b"{"):
            return False
        from tracelens_ext.readers.nsys.csv_tables import report_in

        return report_in(head) is not None

    def read_source(self, source: ByteSource) -> Trace:
        """Read a table; other tables of `nsys stats` are refused by name."""
        from tracelens_ext.readers.nsys.csv_trace import read_gpu_trace

        return read_gpu_trace(source)
