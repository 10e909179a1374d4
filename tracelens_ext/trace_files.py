"""Which files of a folder, or among those that match a pattern, are traces."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_JOURNALS = ("-wal", "-journal")
#: What the name of a report of Nsight Systems ends in.
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_EXPORT_SUFFIX = ".sqlite"
#: What the name of a trace ends in.
TRACE_SUFFIXES = (".json", ".json.gz", _EXPORT_SUFFIX, *REPORT_SUFFIXES)
#: The same in words.
SUFFIXES_TEXT = ".json, .json.gz, .sqlite or .nsys-rep"


def is_trace_name(name: str) -> bool:
    """Whether a name, or a path, ends as a trace's does."""
    return name.lower().endswith(TRACE_SUFFIXES)


def trace_names(names: Iterable[str]) -> list[str]:
    """Those of the files of a folder that traces have, sorted.

    Of a report of Nsight Systems and its export it is the export.
    """
    found = sorted(filter(is_trace_name, names))
    exported = {os.path.splitext(n)[0] for n in found if n.lower().endswith(_EXPORT_SUFFIX)}  # noqa: PTH122  # of URLs too
    return [
        name
        for name in found
        if not name.lower().endswith(REPORT_SUFFIXES) or os.path.splitext(name)[0] not in exported  # noqa: PTH122
    ]


def traces_in(folder: Path) -> list[Path]:
    """The traces directly in a folder, sorted, without what this program wrote itself.

    Databases of other programs are none either.

    Raises:
        OSError: it cannot be listed.
    """
    return _not_ours(folder / name for name in trace_names(os.listdir(folder)))  # noqa: PTH208


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern, and not a file's name."""
    return glob.has_magic(text) and not Path(text).exists()


def traces_matching(pattern: str) -> list[Path]:
    """The files that match a pattern, sorted, without those that `traces_in` leaves out too."""
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  # absolute ones too
    return _not_ours(map(Path, names))


def _not_ours(paths: Iterable[Path]) -> list[Path]:
    from tracelens_ext.readers.nsys.database import is_other_database
    from tracelens_ext.report.manifest import made_here

    return [
        path
        for path in paths
        if path.is_file() and not made_here(path) and not is_other_database(path)
    ]


def journal_beside(database: Path) -> Path | None:
    """The file beside a SQLite database that says it is being written; None without one.

    Raises:
        OSError: the folder cannot be read.
    """
    for ending in _JOURNALS:
        beside = database.with_name(database.name + ending)
        if beside.exists() and beside.stat().st_size:
            return beside
    return None
