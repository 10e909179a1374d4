"""Which files of a folder, or among those that match a pattern, are traces."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def trace_suffixes() -> tuple[str, ...]:
    """How the names of traces end, by the readers that take part."""
    from tracelens_ext.readers.formats import offered_readers, suffixes_of

    found = (suffix for each in offered_readers() for suffix in suffixes_of(each.item))
    return tuple(dict.fromkeys(found))


def suffixes_text() -> str:
    """The same in words: `.json, .json.gz or .sqlite`."""
    *others, last = trace_suffixes()
    return f"{', '.join(others)} or {last}" if others else last


def is_trace_name(name: str) -> bool:
    """Whether a name, or a path, ends as a trace's does."""
    return name.lower().endswith(trace_suffixes())


def trace_names(names: Iterable[str]) -> list[str]:
    """Those of the names of a folder's files that traces have, sorted.

    Of files that hold the same one is taken: the export of a report of Nsight Systems, the profile
    that JAX wrote and not its JSON, the first of the forms that rocprofv3 wrote of a run.
    """
    from tracelens_ext.readers import builtin

    found = sorted(name for name in names if name.lower().endswith(trace_suffixes()))
    tables = tuple(f"_{suffix}" for suffix in builtin.ROCPROF_TABLES)
    same = (
        (builtin.NSYS_REPORTS, builtin.NSYS_EXPORTS),
        (builtin.XPLANE_JSON, builtin.XPLANE),
        ((*builtin.ROCPROF_JSON, *tables), builtin.ROCPD),
        (tables, builtin.ROCPROF_JSON),
        (("_results.pftrace",), (*builtin.ROCPD, *builtin.ROCPROF_JSON)),
    )
    for left_out, taken in same:
        stems = {stem for name in found if (stem := _stem(name, taken))}
        found = [name for name in found if _stem(name, left_out) not in stems]
    return found


def traces_in(folder: Path) -> list[Path]:
    """The traces directly in a folder, sorted; then those of the profiles that JAX wrote below it.

    Files that this program wrote and databases of other programs are left out.
    """
    folders = [folder, *sorted(filter(Path.is_dir, folder.glob("plugins/profile/*")))]
    return _without_others(
        place / name
        for place in folders
        for name in trace_names(os.listdir(place))  # noqa: PTH208
    )


def only_trace(path: Path) -> Path:
    """The trace in a folder that holds one; any other path as it is."""
    traces = traces_in(path) if path.is_dir() else []
    return traces[0] if len(traces) == 1 else path


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern, and not a file's name."""
    return glob.has_magic(text) and not Path(text).exists()


def traces_matching(pattern: str) -> list[Path]:
    """The files that match a pattern, sorted, without those that `traces_in` leaves out too."""
    return _without_others(paths_matching(pattern))


def paths_matching(pattern: str) -> list[Path]:
    """The files and folders that match a pattern, sorted."""
    return [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207  # absolute ones too


def _without_others(paths: Iterable[Path]) -> list[Path]:
    """The files without those that this program wrote, and databases that no reader knows."""
    from tracelens_ext.report.manifest import made_here

    return [p for p in paths if p.is_file() and not made_here(p) and not _is_other_database(p)]


def _is_other_database(path: Path) -> bool:
    from tracelens_ext.readers.formats import HEAD_BYTES, is_recognised
    from tracelens_ext.readers.source import SQLITE_MAGIC

    with suppress(OSError), path.open("rb") as file:  # whoever reads it says why
        head = file.read(HEAD_BYTES)
        return head.startswith(SQLITE_MAGIC) and not is_recognised(path, head)
    return False


def _stem(name: str, suffixes: tuple[str, ...]) -> str:
    """What stands before the suffix of a file of a format; empty for one of another."""
    return next((name[: -len(each)] for each in suffixes if name.lower().endswith(each)), "")
