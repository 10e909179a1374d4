"""Reads SQLite exports of Nsight Systems.

Supports: exports of 2022 to today (schema 2.9 to 3.25). `export_trace.py` says what becomes of
their tables.
Ignores: all other tables, such as calls of the operating system, samples, and counters.
Format: the SQLite schema reference in the documentation of Nsight Systems.
"""

from __future__ import annotations

from pathlib import Path

from tracelens_ext.readers.nsys.export_schema import META_DATA, NVTX
from tracelens_ext.readers.nsys.export_trace import make_trace
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.trace import Trace

FORMAT = "Nsight Systems SQLite export"

#: Beginnings of the names of tables that every export has, even if nothing was recorded.
_TABLES_OF_EVERY_EXPORT = META_DATA + (
    "META_DATA_CAPTURE",
    "TARGET_INFO_",
    "ENUM_NSYS_",
)


class NsysDatabase(Database):
    """An export of Nsight Systems that is open for reading."""

    format = "Nsight Systems export"
    remedy = "export it with `nsys export --type sqlite REPORT.nsys-rep`"

    def _is_ours(self) -> bool:
        """Return True if the tables are those that an export has, even a partial one."""
        if any(name.startswith(_TABLES_OF_EVERY_EXPORT) for name in self.tables):
            return True
        if "StringIds" not in self.tables:
            return False
        if NVTX in self.tables:
            return True
        return any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in self.tables)


def read(source: ByteSource) -> Trace:
    """Read an export.

    Raises:
        TraceFormatError: it is damaged, not an export of Nsight Systems, or has no CUDA events.
    """
    return read_export(source, source.file_or_bytes())


def read_export(source: ByteSource, export: Path | bytes) -> Trace:
    """Read an export that was made of a source; messages name the source.

    Args:
        source: the file that the user named.
        export: the path of the export, or its bytes.

    Raises:
        TraceFormatError: as `read`.
    """
    with NsysDatabase(source.path, export) as database:
        return make_trace(database, FORMAT, source.progress)
