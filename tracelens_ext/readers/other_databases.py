"""Recognizes SQLite databases of programs that are not supported, by their tables."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelens_ext.errors import TraceError, TraceFormatError
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.sqlite_columns import Database


@dataclass(frozen=True)
class OtherDatabase:
    """A kind of database that is recognized, but not supported."""

    problem: str  #: what the file is, as a clause of a message
    remedy: str  #: what to do instead, as a clause of a message
    #: returns True for such a database, given the name of the file and the names of its tables,
    #: both in lower case
    fits: Callable[[str, Collection[str]], bool]


def _is_ascend_database(_: str, tables: Collection[str]) -> bool:
    """Return True for the tables of Ascend's profiler."""
    tables_of_ascend = {
        "pytorch_api",
        "cann_api",
        "task",
        "enum_api_type",
        "session_time_info",
    }
    return "string_ids" in tables and not tables_of_ascend.isdisjoint(tables)


def _is_dlprof_database(name: str, tables: Collection[str]) -> bool:
    return name.startswith("dlprof") or any("dlprof" in table for table in tables)


_DATABASES: Final = (
    OtherDatabase(
        problem="is a database of Ascend's profiler (msprof), which is not supported",
        remedy="open it with MindStudio Insight",
        fits=_is_ascend_database,
    ),
    OtherDatabase(
        problem="is a database of DLProf, which is not supported",
        remedy="give the Nsight Systems report (.nsys-rep, .qdrep) that DLProf wrote next to it",
        fits=_is_dlprof_database,
    ),
)


class _AnyDatabase(Database):
    """Any database; only the names of its tables are read."""

    format = "trace"
    remedy = "create it again"

    def _is_ours(self) -> bool:
        return True


def refuse_database(source: ByteSource) -> TraceFormatError | None:
    """Return the error for a database of a recognized program; None for any other file."""
    try:
        with _AnyDatabase(source.path, source.file_or_bytes()) as database:
            tables = {table.lower() for table in database.tables}
    except TraceError:
        return None
    name = Path(source.path).name.lower()
    for other in _DATABASES:
        if other.fits(name, tables):
            return TraceFormatError(source.path, other.problem, other.remedy)
    return None
