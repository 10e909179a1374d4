"""From what a user names to analyzed traces, with progress bars for those who watch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext import trace_files as files
from tracelens_ext.cli.options import AnalysisOptions
from tracelens_ext.cli.screen import tell
from tracelens_ext.errors import TraceError, TraceFormatError, TraceNotFoundError, UsageError
from tracelens_ext.settings import Progress, ReadingOptions

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.readers.cache.store import TraceCache
    from tracelens_ext.trace import Trace

_PATIENCE_S = 1.0


def find_traces(
    arguments: Sequence[str], *, or_reports: bool = False
) -> tuple[list[Path], list[TraceError]]:
    """The traces that arguments name, in that order; and what is wrong with those that name none.

    A folder stands for the traces directly in it, a pattern for the files that match it; both
    without what this program wrote itself. Another argument is a file, even if there is none: its
    reader will say so. With `or_reports` a folder or pattern without traces stands for finished
    reports: the one whose tables are in the folder, else the workbooks, else the JSON reports.
    """
    found: list[Path] = []
    problems: list[TraceError] = []
    for argument in arguments:
        if not argument:
            raise UsageError("a trace's name is empty; name a file, a folder or a pattern")
        path = Path(argument)
        try:
            if path.is_dir():
                found += _traces_in(path, or_reports=or_reports)
            elif files.is_pattern(argument):
                found += _matching(argument, or_reports=or_reports)
            else:
                found.append(path)
        except TraceError as error:
            problems.append(error)
        except (OSError, ValueError) as error:
            problems.append(TraceNotFoundError.of(path, error))
    return found, problems


def without_repetitions(paths: Iterable[Path]) -> list[Path]:
    """Each file once, by the first name given for it."""
    of_file: dict[str, Path] = {}
    for path in paths:
        of_file.setdefault(os.path.realpath(path), path)
    return list(of_file.values())


def check_files(paths: Iterable[Path]) -> None:
    """Check that all files are there, before the first is read for minutes."""
    for path in paths:
        try:
            absent = not path.exists()
        except (OSError, ValueError):
            continue  # the reader says what is wrong with such a name
        if absent:
            raise TraceNotFoundError(path, "no such file", "check the path")


def _traces_in(folder: Path, *, or_reports: bool) -> list[Path]:
    if traces := files.traces_in(folder):
        return traces
    if or_reports:
        from tracelens_ext.compare.finished_reports import is_report

        for of_kind in ([folder], folder.glob("*.xlsx"), folder.glob("*.json")):
            if reports := [path for path in sorted(of_kind) if is_report(path, of_trace=True)]:
                return reports
    raise TraceNotFoundError(
        folder,
        f"holds no {files.suffixes_text()} file{' and no report' if or_reports else ''}",
        "name the folder that does, or a pattern such as 'FOLDER/**/*.json.gz'",
    )


def _matching(pattern: str, *, or_reports: bool) -> list[Path]:
    found = files.traces_matching(pattern)
    if or_reports:
        from tracelens_ext.compare.finished_reports import is_report

        traces = [path for path in found if not is_report(path)]
        reports = (path for path in files.paths_matching(pattern) if is_report(path, of_trace=True))
        found = traces or [*reports] or found
    if not found:
        raise TraceNotFoundError(pattern, "no file matches", "check the pattern")
    return found


def analyze(
    trace: Path,
    options: AnalysisOptions,
    *,
    tells_dropped: bool = True,
    without_tpu: bool = False,
    progress: Progress | None = None,
) -> TreePerfAnalyzer:
    """Read and analyse a trace: a file, or the only one in a folder.

    `tells_dropped`: standard error has events that could not be used; a report has them itself.
    `without_tpu`: a profile of TPUs, of which the host's part is read, is refused. `progress`: who
    is told how far it is read, instead of a bar.
    """
    from tracelens_ext.analysis.coverage.missing_gpu_work import is_of_tpu
    from tracelens_ext.analyzer import TreePerfAnalyzer

    trace = files.only_trace(trace)
    with reading_of(trace, progress) as progress:
        analyzer = TreePerfAnalyzer(
            trace,
            use_kernel_name_categories=options.kernel_categories,
            **options.arguments(),
            include_unlinked_kernels=options.unlinked_kernels,
            add_python_func=options.python_frames,
            capture=options.capture,
            progress=progress,
            cache=chosen_cache(options.reading),
            reading=options.reading,
        )
    if tells_dropped:
        tell_dropped(trace, analyzer.trace)
    if is_of_tpu(analyzer.trace):
        problem = "is a profile of TPUs, whose work is not analysed"
        if without_tpu:
            raise TraceError(trace, problem, "see its CPU operations with: tracelens-ext report")
        tell(f"{trace}: {problem}")
    for note in analyzer.trace.provenance.notes if options.reading.salvage else ():
        tell(f"{trace}: {note}")
    return analyzer


def tell_dropped(path: Path, trace: Trace) -> None:
    """Say on standard error how many events of a trace could not be used, and why."""
    if dropped := trace.provenance.dropped_text:
        count = sum(trace.provenance.dropped.values())
        of = f"{count:,} of {trace.provenance.present:,} events"
        tell(f"{path}: {of} dropped: {dropped}")


@contextmanager
def reading_of(trace: Path, listener: Progress | None = None) -> Iterator[Progress | None]:
    """What to hand to the reader of a trace as `progress`: a bar, unless someone listens.

    If no reader can read the file, plugins that failed are shown: one of them might have read it.
    """
    from tracelens_ext.hooks import default_registry

    names = [] if listener else [f"Reading {trace.name}"]
    try:
        with several_progress(names) as advance:
            yield listener or (advance and partial(advance, 0))
    except TraceFormatError:
        show_problems([f"plugin {problem}" for problem in default_registry().problems])
        raise
    except MemoryError:
        remedy = "free some, or analyse less at once"
        raise TraceError(trace, "there is not enough memory for it", remedy) from None


def show_problems(problems: Sequence[str], told: set[str] | None = None) -> None:
    """Say on standard error what was left out; what is in `told`, which grows, not again."""
    told = set() if told is None else told
    for problem in dict.fromkeys(problems):
        if problem not in told:
            tell(problem)
    told.update(problems)


def chosen_cache(reading: ReadingOptions) -> TraceCache | None:
    """The cache that a command is to use; None for none."""
    from tracelens_ext.readers.cache.folder import cache_is_off
    from tracelens_ext.readers.cache.store import TraceCache

    if reading.no_cache or cache_is_off():
        return None
    return TraceCache.from_environment(verify=reading.verify_cache, tell=tell)


@contextmanager
def several_progress(
    labels: Sequence[str],
) -> Iterator[Callable[[int, int | None, int | None], None] | None]:
    """What to call with the number of a file, its bytes read so far, and its size.

    None if standard error is no terminal. There is a bar for each file that is being read, after a
    second; `None` bytes mean that it is done with.
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
    """Bars on standard error; beside each the bytes that are read, or another amount."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount or DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
