"""From what a user names to analyzed traces, with progress bars for those who watch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext import trace_files as files
from tracelens_ext.cli.options import AnalysisOptions
from tracelens_ext.cli.screen import tell
from tracelens_ext.errors import (
    TraceError,
    TraceFormatError,
    TracelensError,
    TraceNotFoundError,
    UsageError,
)
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.settings import Progress, ReadingOptions

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.readers.cache.store import TraceCache
    from tracelens_ext.trace import Trace

#: Called with the number of a file, its bytes read so far (None: it is done with), and its size.
Advance = Callable[[int, int | None, int | None], None]

_PATIENCE_S = 1.0
#: So many files that are no traces are told in one line, with some of their names.
_MANY_FILES = 3
_FILES_NAMED = 3
_NO_MEMORY = "there is not enough memory to read it"


@dataclass(frozen=True)
class NamedTraces:
    """What arguments name."""

    paths: list[Path] = field(default_factory=list)  #: in the order of the arguments
    #: what is wrong with the arguments that name no trace
    problems: list[TraceError] = field(default_factory=list)


def find_traces(arguments: Sequence[str], *, or_reports: bool = False) -> NamedTraces:
    """Return the traces that arguments name.

    A folder stands for the traces directly in it, a pattern for the files that match it; both
    without what this program wrote itself. Another argument is a file, even if there is none: its
    reader will say so. With `or_reports` a folder or pattern without traces stands for finished
    reports: the one whose tables are in the folder, else the workbooks, else the JSON reports.
    """
    named = NamedTraces()
    for argument in arguments:
        if not argument:
            raise UsageError(
                "the name of a trace is empty; give a file, a folder or a pattern"
            )
        path = Path(argument)
        try:
            named.paths.extend(_named(path, argument, or_reports=or_reports))
        except TraceError as error:
            named.problems.append(error)
        except (OSError, ValueError) as error:
            named.problems.append(TraceNotFoundError.of(path, error))
    return named


def _named(path: Path, argument: str, *, or_reports: bool) -> list[Path]:
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
    """Check that all files are there, before the first is read for minutes."""
    for path in paths:
        try:
            is_absent = not path.exists()
        except (OSError, ValueError):
            continue  # the reader says what is wrong with such a name
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


def analyze(
    trace: Path,
    options: AnalysisOptions,
    *,
    tells_dropped: bool = True,
    without_tpu: bool = False,
    progress: Progress | None = None,
) -> TreePerfAnalyzer:
    """Read and analyze a trace: a file, or the only one in a folder.

    Args:
        trace: The file or folder.
        options: How.
        tells_dropped: Say on standard error how many events could not be used; a report has that
            itself.
        without_tpu: Refuse a profile of TPUs, of which the host's part is read.
        progress: Who is told how far it is read, instead of a bar.
    """
    from tracelens_ext.analysis.coverage.missing_gpu_work import is_of_tpu
    from tracelens_ext.analyzer import TreePerfAnalyzer

    trace = files.only_trace(trace)
    with reading_of(trace, progress) as listener:
        analyzer = TreePerfAnalyzer(
            trace,
            use_kernel_name_categories=options.kernel_categories,
            **options.arguments(),
            include_unlinked_kernels=options.unlinked_kernels,
            add_python_func=options.python_frames,
            capture=options.capture,
            progress=listener,
            cache=chosen_cache(options.reading),
            reading=options.reading,
        )
    if tells_dropped:
        tell_dropped(trace, analyzer.trace)
    if is_of_tpu(analyzer.trace):
        problem = "is a TPU profile; TPU work is not analyzed"
        if without_tpu:
            raise TraceError(
                path=trace,
                problem=problem,
                remedy="show its CPU operations with: tracelens-ext report",
            )
        tell(f"{trace}: {problem}")
    if options.reading.allow_truncated:
        for note in analyzer.trace.provenance.notes:
            tell(f"{trace}: {note}")
    return analyzer


def computed_tables(
    failures: PartFailures, makers: Mapping[str, Callable[[], pd.DataFrame]]
) -> dict[str, pd.DataFrame]:
    """Return the tables that a command shows, without those that cannot be computed.

    Args:
        failures: Takes the errors of those.
        makers: Table name → what computes it.

    Raises:
        TracelensError: None can be computed.
    """
    tables = {}
    for name, make in makers.items():
        with failures.isolate(f"The table {name}"):
            tables[name] = make()
    if makers and not tables:
        raise TracelensError(failures.messages[-1])
    return tables


def recording_notes(analyzer: TreePerfAnalyzer, *, for_json: bool) -> list[str]:
    """Return what was left out, dropped or corrected, a sentence each.

    The screen leaves out what standard error has.
    """
    trace = analyzer.trace
    notes = list(analyzer.problems if for_json else analyzer.failures.messages)
    dropped = dropped_text(trace)
    if for_json and dropped:
        notes.append(f"{dropped}.")
    notes_were_told = bool(trace.provenance.salvaged)
    if for_json or not notes_were_told:
        notes += trace.provenance.notes
    return list(dict.fromkeys(notes))


def dropped_text(trace: Trace) -> str:
    """Return how many events of a trace could not be used, and why; empty for none."""
    provenance = trace.provenance
    if not provenance.dropped:
        return ""
    count = sum(provenance.dropped.values())
    return (
        f"{count:,} of {provenance.present:,} events dropped: {provenance.dropped_text}"
    )


def tell_dropped(path: Path, trace: Trace) -> None:
    """Say on standard error how many events of a trace could not be used, and why."""
    dropped = dropped_text(trace)
    if dropped:
        tell(f"{path}: {dropped}")


@contextmanager
def reading_of(
    trace: Path, listener: Progress | None = None
) -> Iterator[Progress | None]:
    """Yield what to hand to the reader of a trace as `progress`: a bar, unless someone listens.

    If no reader can read the file, plugins that failed are shown: one of them might have read it.
    """
    from tracelens_ext.hooks import default_registry

    labels = [] if listener else [f"Reading {trace.name}"]
    try:
        with several_progress(labels) as advance:
            if listener is None and advance is not None:
                listener = partial(advance, 0)
            yield listener
    except TraceFormatError:
        show_problems([f"plugin {problem}" for problem in default_registry().problems])
        raise
    except MemoryError:
        remedy = "free some memory, or analyze fewer traces at once"
        raise TraceError(path=trace, problem=_NO_MEMORY, remedy=remedy) from None


def show_plugin_problems(analyzer: TreePerfAnalyzer) -> None:
    """Say on standard error which plugins failed; the notes have the parts that failed."""
    failures = analyzer.failures.messages
    show_problems([problem for problem in analyzer.problems if problem not in failures])


def tell_errors(errors: Sequence[TracelensError]) -> None:
    """Say on standard error which traces could not be read; files that are none in one line."""
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
    problems: Sequence[str], already_told: set[str] | None = None
) -> None:
    """Say on standard error what was left out, each once.

    Args:
        problems: What was left out.
        already_told: What is not told again; it grows.
    """
    if already_told is None:
        already_told = set()
    for problem in dict.fromkeys(problems):
        if problem not in already_told:
            tell(problem)
    already_told.update(problems)


def chosen_cache(reading: ReadingOptions) -> TraceCache | None:
    """Return the cache that a command is to use; None for none."""
    from tracelens_ext.readers.cache.folder import cache_is_off
    from tracelens_ext.readers.cache.store import TraceCache

    if reading.no_cache or cache_is_off():
        return None
    return TraceCache.from_environment(verify=reading.verify_cache, tell=tell)


@contextmanager
def several_progress(labels: Sequence[str]) -> Iterator[Advance | None]:
    """Yield what shows how far files are read; None if standard error is no terminal.

    There is a bar for each file that is being read, after a second.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bars = progress_bars()
    started = time.monotonic()
    tasks = [bars.add_task(label, total=None, visible=False) for label in labels]

    def advance(number: int, done: int | None, size: int | None) -> None:
        if time.monotonic() - started > _PATIENCE_S:
            bars.start()
        if done is None:
            bars.update(tasks[number], visible=False)
        else:
            bars.update(tasks[number], completed=done, total=size, visible=True)

    try:
        yield advance
    finally:
        bars.stop()


def progress_bars(amount: ProgressColumn | None = None) -> Bars:
    """Return bars on standard error; beside each the bytes that are read, or another amount."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount or DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
