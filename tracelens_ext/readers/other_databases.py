"""SQLite databases of other programs, recognized by their tables, and what to do instead."""

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
    """A database that is known, and not read."""

    problem: str  #: what the file is, a clause
    remedy: str  #: what to do instead, a clause
    #: takes the name of the file and the names of its tables, in lower case
    fits: Callable[[str, Collection[str]], bool]


def _is_of_ascend(_: str, tables: Collection[str]) -> bool:
    of_ascend = {
        "pytorch_api",
        "cann_api",
        "task",
        "enum_api_type",
        "session_time_info",
    }
    return "string_ids" in tables and not of_ascend.isdisjoint(tables)


def _is_of_dlprof(name: str, tables: Collection[str]) -> bool:
    return name.startswith("dlprof") or any("dlprof" in table for table in tables)


_DATABASES: Final = (
    OtherDatabase(
        problem="is a database of Ascend's profiler (msprof), which is not supported",
        remedy="open it with MindStudio Insight",
        fits=_is_of_ascend,
    ),
    OtherDatabase(
        problem="is a database of DLProf, which is not supported",
        remedy="give the Nsight Systems report (.nsys-rep, .qdrep) that DLProf wrote next to it",
        fits=_is_of_dlprof,
    ),
)


class _AnyDatabase(Database):
    """A database of which only the names of the tables are read."""

    format = "trace"
    remedy = "create it again"

    def _is_ours(self) -> bool:
        return True


def refuse_database(source: ByteSource) -> TraceFormatError | None:
    """Return the error for a database of a program that is known; None for any other file."""
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
