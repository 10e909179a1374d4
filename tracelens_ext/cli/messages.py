"""What commands say on standard error about traces and plugins, and in notes about recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import tell
from tracelens_ext.errors import TraceFormatError, TracelensError

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace import Trace

#: From this many on, files that are not traces share one line.
_MANY_FILES = 3
#: The number of such files whose names are in that line.
_FILES_NAMED = 3


def dropped_text(trace: Trace) -> str:
    """Return how many events of a trace were dropped, and why; empty if none were."""
    provenance = trace.provenance
    if not provenance.dropped:
        return ""
    count = sum(provenance.dropped.values())
    return (
        f"{count:,} of {provenance.present:,} events dropped: {provenance.dropped_text}"
    )


def tell_dropped(path: Path, trace: Trace) -> None:
    """Print on standard error how many events of a trace were dropped, and why."""
    dropped = dropped_text(trace)
    if dropped:
        tell(f"{path}: {dropped}")


def show_plugin_problems(analyzer: TreePerfAnalyzer) -> None:
    """Print on standard error which plugins failed; failed parts are in the notes already."""
    failures = analyzer.failures.messages
    show_problems([problem for problem in analyzer.problems if problem not in failures])


def tell_errors(errors: Sequence[TracelensError]) -> None:
    """Print on standard error which traces could not be read.

    From three on, files that are not traces share one line.
    """
    not_traces = [error for error in errors if type(error) is TraceFormatError]
    if len(not_traces) < _MANY_FILES:
        not_traces = []
    for error in errors:
        if error not in not_traces:
            tell(str(error))
    if not_traces:
        names = [Path(error.path).name for error in not_traces]
        first_names = ", ".join(names[:_FILES_NAMED])
        more = len(names) - _FILES_NAMED
        if more > 0:
            first_names += f" and {more:,} more"
        tell(
            f"{len(names):,} files are not traces, and were skipped: {first_names}; "
            "name one of them to see why"
        )


def show_problems(
    problems: Sequence[str], already_shown: set[str] | None = None
) -> None:
    """Print problems on standard error, each only once.

    Args:
        problems: the messages.
        already_shown: messages that are not printed again; the new ones are added to it.
    """
    if already_shown is None:
        already_shown = set()
    for problem in dict.fromkeys(problems):
        if problem not in already_shown:
            tell(problem)
    already_shown.update(problems)
