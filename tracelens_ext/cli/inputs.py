"""The traces that the arguments of a command name: files, folders, and patterns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceError, TraceNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def find_traces(
    arguments: Sequence[str], *, or_reports: bool = False
) -> tuple[list[Path], list[TraceError]]:
    """The traces that arguments name, in that order.

    A folder stands for the traces directly in it (of a report of Nsight Systems and its export the
    export; no databases of other programs), a pattern (`run_*/rank[0-3].json.gz`, `**` for
    any depth) for the files that match it; both without what this program wrote itself. An
    argument that is a file's name is that file, whatever characters it has.

    Args:
        arguments: as the user gave them.
        or_reports: whether a folder or pattern without traces stands for finished reports: the
            one whose tables are in the folder, else the workbooks, else the JSON reports in it.

    Returns:
        The files (one that does not exist too: its reader will say so), and what is wrong with
        the arguments that name nothing.
    """
    from tracelens_ext.trace_files import is_pattern

    found: list[Path] = []
    problems: list[TraceError] = []
    for argument in arguments:
        if not argument:
            raise UsageError("a trace's name is empty; name a file, a folder or a pattern")
        path = Path(argument)
        try:
            if path.is_dir():
                found += _traces_in(path, or_reports=or_reports)
            elif is_pattern(argument):
                found += _matching(argument, or_reports=or_reports)
            else:
                found.append(path)
        except TraceError as error:
            problems.append(error)
        except (OSError, ValueError) as error:
            problems.append(_unusable(path, error))
    return found, problems


def without_repetitions(paths: Iterable[Path]) -> list[Path]:
    """Each file once, by the first name given for it."""
    of_file: dict[str, Path] = {}
    for path in paths:
        of_file.setdefault(os.path.realpath(path), path)
    return list(of_file.values())


def check_files(paths: Iterable[Path]) -> None:
    """Check that all files are there, before the first is read for minutes.

    Raises:
        TraceNotFoundError: one is not.
    """
    for path in paths:
        try:
            absent = not path.exists()
        except (OSError, ValueError):
            continue  # the reader says what is wrong with such a name
        if absent:
            raise TraceNotFoundError(path, "no such file", "check the path")


def _traces_in(folder: Path, *, or_reports: bool) -> list[Path]:
    from tracelens_ext.trace_files import suffixes_text, traces_in

    if traces := traces_in(folder):
        return traces
    for of_kind in ([folder], folder.glob("*.xlsx"), folder.glob("*.json")):
        if or_reports and (reports := _reports(of_kind)):
            return reports
    raise TraceNotFoundError(
        folder,
        f"holds no {suffixes_text()} file{' and no report' if or_reports else ''}",
        "name the folder that does, or a pattern such as 'FOLDER/**/*.json.gz'",
    )


def _reports(paths: Iterable[Path]) -> list[Path]:
    from tracelens_ext.compare.finished import reports_among

    return reports_among(sorted(paths))


def _unusable(path: Path, error: OSError | ValueError) -> TraceNotFoundError:
    reason = getattr(error, "strerror", None) or error
    return TraceNotFoundError(
        path, f"cannot be opened ({reason})", "check the path and its permissions"
    )


def _matching(pattern: str, *, or_reports: bool) -> list[Path]:
    from tracelens_ext.trace_files import paths_matching, traces_matching

    found = traces_matching(pattern)
    if or_reports:
        from tracelens_ext.compare.finished import is_report

        traces = [path for path in found if not is_report(path)]
        found = traces or _reports(paths_matching(pattern)) or found
    if not found:
        raise TraceNotFoundError(pattern, "no file matches", "check the pattern")
    return found
