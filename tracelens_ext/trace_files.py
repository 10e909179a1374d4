"""Finds the traces in a folder, or among the files that match a pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_SMALL_DOCUMENT_BYTES: Final = 65_536
#: Text that occurs in every JSON trace: in Chrome traces, and in those of rocprofv3.
_MARKS_OF_EVENTS: Final = (b'"ph"', b'"traceEvents"', b"rocprofiler-sdk")


def trace_suffixes() -> tuple[str, ...]:
    """Return the suffixes of traces, as the installed readers declare them."""
    from tracelens_ext.readers.formats import offered_readers, suffixes_of

    suffixes: dict[str, None] = {}
    for reader in offered_readers():
        suffixes |= dict.fromkeys(suffixes_of(reader.item))
    return tuple(suffixes)


def suffixes_text() -> str:
    """Return the suffixes of traces in words: `.json, .json.gz or .sqlite`."""
    *others, last = trace_suffixes()
    if not others:
        return last
    return f"{', '.join(others)} or {last}"


def is_trace_name(name: str) -> bool:
    """Return True for a name or path with the suffix of a trace."""
    return name.lower().endswith(trace_suffixes())


def with_rank(path: Path, rank: int) -> Path:
    """Return a name for one rank of a merged file: `run_rank3.json.gz`."""
    lengths = [
        len(suffix) for suffix in trace_suffixes() if path.name.lower().endswith(suffix)
    ]
    place = len(path.name) - max(lengths, default=0)
    return path.with_name(f"{path.name[:place]}_rank{rank}{path.name[place:]}")


class _Alternatives(NamedTuple):
    """Suffixes of files that contain the same recording in different formats."""

    left_out: tuple[str, ...]
    taken: tuple[str, ...]


def _alternatives() -> list[_Alternatives]:
    from tracelens_ext.readers import builtin

    tables = tuple(f"_{suffix}" for suffix in builtin.ROCPROF_TABLES)
    return [
        _Alternatives(left_out=builtin.NSYS_REPORTS, taken=builtin.NSYS_EXPORTS),
        _Alternatives(left_out=builtin.XPLANE_JSON, taken=builtin.XPLANE),
        _Alternatives(left_out=builtin.ROCPROF_JSON + tables, taken=builtin.ROCPD),
        _Alternatives(tables, builtin.ROCPROF_JSON),
        _Alternatives(
            left_out=("_results.pftrace",), taken=builtin.ROCPD + builtin.ROCPROF_JSON
        ),
    ]


def trace_names(names: Iterable[str]) -> list[str]:
    """Return the names of traces among the names of a folder's files, sorted.

    Of several files with the same recording, only one is returned: the export of an Nsight Systems
    report rather than the report, the profile that JAX wrote rather than its JSON, and the first
    of the formats that rocprofv3 wrote.
    """
    suffixes = trace_suffixes()
    chosen = sorted(name for name in names if name.lower().endswith(suffixes))
    for left_out, taken in _alternatives():
        stems = {_stem(name, taken) for name in chosen} - {""}
        chosen = [name for name in chosen if _stem(name, left_out) not in stems]
    return chosen


def traces_in(folder: Path) -> list[Path]:
    """Return the traces directly in a folder, sorted, and then those in JAX profiles below it.

    Files that this program wrote, and databases of other programs, are left out.
    """
    folders = [folder]
    folders += sorted(filter(Path.is_dir, folder.glob("plugins/profile/*")))
    paths: list[Path] = []
    for place in folders:
        names = trace_names(os.listdir(place))  # noqa: PTH208  # names, not paths
        paths += [place / name for name in names]
    return _without_others(paths)


def only_trace(path: Path) -> Path:
    """Return the trace in a folder that contains exactly one; any other path as it is."""
    if not path.is_dir():
        return path
    traces = traces_in(path)
    return traces[0] if len(traces) == 1 else path


def is_pattern(text: str) -> bool:
    """Return True for a pattern; the name of an existing file is never one."""
    return glob.has_magic(text) and not Path(text).exists()


def traces_matching(pattern: str) -> list[Path]:
    """Return the files that match a pattern, sorted, without those that `traces_in` leaves out."""
    return _without_others(paths_matching(pattern))


def paths_matching(pattern: str) -> list[Path]:
    """Return the files and folders that match a pattern, sorted."""
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207  # absolute ones too
    return [Path(name) for name in sorted(names)]


def _without_others(paths: Iterable[Path]) -> list[Path]:
    """Leave out files that this program wrote, and databases that no reader recognizes."""
    from tracelens_ext.report.manifest import has_own_mark

    files = [path for path in paths if path.is_file() and not has_own_mark(path)]
    return [file for file in files if not _is_other_database(file)]


def is_likely_trace(path: Path) -> bool:
    """Return True for a file with the suffix of a trace that does not look like something else.

    Programs store many other things as JSON; a small document without events is not a trace.
    """
    if not is_trace_name(path.name) or not path.is_file():
        return False
    if not path.name.lower().endswith(".json"):
        return not _is_other_database(path)
    with suppress(OSError), path.open("rb") as file:  # the reader will report the error
        beginning = file.read(_SMALL_DOCUMENT_BYTES + 1)
        is_whole = len(beginning) <= _SMALL_DOCUMENT_BYTES
        if is_whole:
            return any(mark in beginning for mark in _MARKS_OF_EVENTS)
    return True


def _is_other_database(path: Path) -> bool:
    """Return True for a database that no reader recognizes."""
    from tracelens_ext.readers.formats import HEAD_BYTES, is_recognised
    from tracelens_ext.readers.source import SQLITE_MAGIC

    with suppress(OSError), path.open("rb") as file:  # the reader will report the error
        head = file.read(HEAD_BYTES)
        return head.startswith(SQLITE_MAGIC) and not is_recognised(path, head)
    return False


def _stem(name: str, suffixes: tuple[str, ...]) -> str:
    """Return a file name without a suffix of the format; empty if it has no such suffix."""
    for suffix in suffixes:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return ""
