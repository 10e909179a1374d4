"""rocprofv3, AMD's profiler: its databases (rocpd), its JSON, and its CSV tables.

What parses them is imported when a file is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens_ext.hooks import Reader
from tracelens_ext.readers.source import SQLITE_MAGIC

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

#: How rocprofv3 ends the names of its JSON files.
RESULTS_JSON = ("_results.json", "_results.json.gz")

_RECORD = "rocprofv3 --sys-trace"
_JSON = re.compile(rb'[\xef\xbb\xbf\s]*\{\s*"rocprofiler-sdk-tool"\s*:')
_EARLIER = re.compile(rb'"Index","KernelName",[^\n]*"BeginNs"|"Name","Calls","TotalDurationNs"')
_EARLIER_JSON = re.compile(
    rb'[\xef\xbb\xbf\s]*\{\s*"traceEvents"\s*:.*?"name"\s*:\s*'
    rb'"(?:CPU H(?:IP|SA) API|COPY|GPU\d+|Markers and Ranges)"',
    re.DOTALL,
)
_TITLES = re.compile(rb'[\xef\xbb\xbf]*"?[A-Z][A-Za-z]*(?:_[A-Z][A-Za-z]*)*"?,[^\n]*_Timestamp"?')


class RocpdReader(Reader):
    """Reads a database that rocprofv3 writes by default since ROCm 7."""

    name = "rocprofv3 database (rocpd)"
    suffixes = ("_results.db",)
    how_to_record = f"{_RECORD} -- python train.py"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is an SQLite database with the tables of rocpd.

        Of one that is gzipped, or damaged, its name says it.
        """
        if not head.startswith(SQLITE_MAGIC):
            return False
        from tracelens_ext.readers.rocprof.rocpd import RocpdDatabase

        known = RocpdDatabase.is_one(path)
        return ".db" in path.suffixes if known is None else known

    def read_source(self, source: ByteSource) -> Trace:
        """Read a database where it lies; one that is gzipped, from memory."""
        from tracelens_ext.readers.rocprof import rocpd

        return rocpd.read(source)


class RocprofJsonReader(Reader):
    """Reads the JSON of rocprofv3."""

    name = "rocprofv3 JSON"
    suffixes = (".json", ".json.gz")
    how_to_record = f"{_RECORD} --output-format json -- python train.py"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether a file begins as such a document does."""
        return _JSON.match(head) is not None

    def read_source(self, source: ByteSource) -> Trace:
        """Read a document."""
        from tracelens_ext.readers.rocprof import json_records

        return json_records.read(source)


class RocprofResultsReader(Reader):
    """Reads databases and JSON of rocprof, before rocprofv3."""

    name = "rocprof results"
    suffixes = ("results.db",)
    how_to_record = "rocprof --hip-trace python train.py"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is such a database, or JSON with its processes."""
        if not head.startswith(SQLITE_MAGIC):
            return _EARLIER_JSON.match(head) is not None
        from tracelens_ext.readers.rocprof.results import ResultsDatabase

        return bool(ResultsDatabase.is_one(path))

    def read_source(self, source: ByteSource) -> Trace:
        """Read a file."""
        from tracelens_ext.readers.rocprof import results

        return results.read(source)


class RocprofTableReader(Reader):
    """Reads the CSV tables of rocprofv3 that have one prefix."""

    name = "rocprofv3 tables (CSV)"
    suffixes = ("kernel_trace.csv",)
    how_to_record = f"{_RECORD} --output-format csv -- python train.py"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether a file begins with the titles of any of these tables."""
        return _TITLES.match(head) is not None or _EARLIER.match(head) is not None

    def read_source(self, source: ByteSource) -> Trace:
        """Read a table and those beside it."""
        from tracelens_ext.readers.rocprof import csv_tables

        return csv_tables.read(source)
