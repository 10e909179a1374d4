"""From a trace's file to its analyzer, with a progress bar for those who watch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import tell
from tracelens_ext.errors import TraceError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.cli.options import AnalysisOptions
    from tracelens_ext.settings import Progress, ReadingOptions
    from tracelens_ext.trace import Trace


def analyze(
    trace: Path,
    options: AnalysisOptions,
    *,
    tells_dropped: bool = True,
    without_tpu: bool = False,
    progress: Progress | None = None,
) -> TreePerfAnalyzer:
    """Read and analyse a trace.

    Args:
        trace: its file, or the folder that holds only this trace.
        options: how.
        without_tpu: whether a profile of TPUs, of which the host's part is read, is refused.
        progress: who is told how far it is read, instead of a bar.
        tells_dropped: whether standard error has events that could not be used; a report has them.

    Raises:
        TraceError: the trace cannot be analysed.
        RuleError: the rules are no good.
        UsageError: so is the categorizer.
    """
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.recording.told import is_of_tpu
    from tracelens_ext.trace_files import only_trace

    trace = only_trace(trace)
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
        remedy = "see its CPU operations with: tracelens-ext report"
        if without_tpu:
            raise TraceError(trace, problem, remedy)
        tell(f"{trace}: {problem}")
    if options.reading.salvage:
        for note in analyzer.trace.provenance.notes:
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
    """What to hand to the reader of a trace as `progress`.

    If no reader can read the file, plugins that failed are shown: one of them might have read it.
    """
    from tracelens_ext.cli.progress import reading_progress
    from tracelens_ext.hooks import default_registry

    try:
        if listener is not None:
            yield listener
            return
        with reading_progress(f"Reading {trace.name}") as progress:
            yield progress
    except TraceFormatError:
        show_problems(default_registry().problems)
        raise
    except MemoryError:
        problem = "there is not enough memory for it"
        raise TraceError(trace, problem, "free some, or analyse less at once") from None


def show_problems(problems: Sequence[str], told: set[str] | None = None) -> None:
    """Say on standard error which plugins failed.

    Args:
        problems: as `TreePerfAnalyzer.problems` has them.
        told: those that were shown before, and are not shown again; grows.
    """
    told = set() if told is None else told
    for problem in problems:
        if problem not in told:
            tell(f"plugin {problem}")
            told.add(problem)


def chosen_cache(reading: ReadingOptions) -> TraceCache | None:
    """The cache that a command is to use; None for none.

    Raises:
        UsageError: the limit in the environment is no size.
    """
    from tracelens_ext.cache.folder import cache_is_off
    from tracelens_ext.cache.store import TraceCache

    if reading.no_cache or cache_is_off():
        return None
    return TraceCache.from_environment(verify=reading.verify_cache, tell=tell)
