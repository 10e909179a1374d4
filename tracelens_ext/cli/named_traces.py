"""Finds the traces that arguments of the command line name: files, folders and patterns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracelens_ext import trace_files as files
from tracelens_ext.errors import TraceError, TraceNotFoundError, UsageError


@dataclass(frozen=True)
class NamedTraces:
    """The traces that arguments of the command line name."""

    #: the files, in the order of the arguments
    paths: list[Path] = field(default_factory=list)
    #: an error for each argument that names no trace
    problems: list[TraceError] = field(default_factory=list)


def find_traces(arguments: Sequence[str], *, or_reports: bool = False) -> NamedTraces:
    """Return the traces that arguments name.

    A folder stands for the traces directly in it, and a pattern for the files that match it, in
    both cases without files that this program wrote. Any other argument is taken as a file; if it
    does not exist, the reader reports that later.

    Args:
        arguments: as the user wrote them.
        or_reports: a folder or a pattern without traces stands for finished reports. In a folder
            these are the tables of one report, or else the workbooks, or else the JSON reports.

    Raises:
        UsageError: an argument is empty.
    """
    named = NamedTraces()
    for argument in arguments:
        if not argument:
            raise UsageError(
                "the name of a trace is empty; give a file, a folder or a pattern"
            )
        path = Path(argument)
        try:
            named.paths.extend(_files_named(path, argument, or_reports=or_reports))
        except TraceError as error:
            named.problems.append(error)
        except (OSError, ValueError) as error:
            named.problems.append(TraceNotFoundError.of(path, error))
    return named


def _files_named(path: Path, argument: str, *, or_reports: bool) -> list[Path]:
    """Return the files that one argument names."""
    if path.is_dir():
        return _traces_in(path, or_reports=or_reports)
    if files.is_pattern(argument):
        return _matching(argument, or_reports=or_reports)
    return [path]


def without_repetitions(paths: Iterable[Path]) -> list[Path]:
    """Return each file once, by the first name given for it."""
    path_of_file: dict[str, Path] = {}
    for path in paths:
        file = os.path.realpath(path)
        path_of_file.setdefault(file, path)
    return list(path_of_file.values())


def check_files(paths: Iterable[Path]) -> None:
    """Check that all files exist, before minutes are spent on reading the first one.

    Raises:
        TraceNotFoundError: one does not.
    """
    for path in paths:
        try:
            is_absent = not path.exists()
        except (OSError, ValueError):
            continue  # the reader will report what is wrong with this name
        if is_absent:
            raise TraceNotFoundError(path, "no such file", "check the path")


def _traces_in(folder: Path, *, or_reports: bool) -> list[Path]:
    traces = files.traces_in(folder)
    if traces:
        return traces
    missing = f"contains no {files.suffixes_text()} file"
    if or_reports:
        from tracelens_ext.compare.finished_reports import is_report

        missing += " and no report"
        for candidates in ([folder], folder.glob("*.xlsx"), folder.glob("*.json")):
            reports = [
                path for path in sorted(candidates) if is_report(path, of_trace=True)
            ]
            if reports:
                return reports
    remedy = (
        "give a folder that contains traces, or a pattern such as 'FOLDER/**/*.json.gz'"
    )
    raise TraceNotFoundError(folder, missing, remedy)


def _matching(pattern: str, *, or_reports: bool) -> list[Path]:
    matching = files.traces_matching(pattern)
    if or_reports:
        from tracelens_ext.compare.finished_reports import is_report

        traces = [path for path in matching if not is_report(path)]
        if traces:
            return traces
        all_files = files.paths_matching(pattern)
        reports = [path for path in all_files if is_report(path, of_trace=True)]
        matching = reports or matching
    if not matching:
        raise TraceNotFoundError(pattern, "no file matches", "check the pattern")
    return matching
