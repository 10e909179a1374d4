"""Reads and analyzes a trace for a command: with its options, its cache and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext import trace_files as files
from tracelens_ext.cli.messages import dropped_text, show_problems, tell_dropped
from tracelens_ext.cli.options import AnalysisOptions
from tracelens_ext.cli.progress import several_progress
from tracelens_ext.cli.screen import tell
from tracelens_ext.errors import TraceError, TraceFormatError, TracelensError
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.settings import Progress, ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.readers.cache.store import TraceCache

_NO_MEMORY = "there is not enough memory to read it"


def analyze(
    trace: Path,
    options: AnalysisOptions,
    *,
    tells_dropped: bool = True,
    refuses_tpu: bool = False,
    progress: Progress | None = None,
) -> TreePerfAnalyzer:
    """Read and analyze a trace: a file, or the only one in a folder.

    Args:
        trace: the file or folder.
        options: how to read and analyze it.
        tells_dropped: print how many events were dropped on standard error. A report has that in
            its notes.
        refuses_tpu: refuse a profile of TPUs, of which only the CPU's part can be analyzed.
        progress: called with the bytes read so far, instead of a progress bar.

    Raises:
        TraceError: the trace cannot be read, or it is a profile of TPUs and those are refused.
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
        if refuses_tpu:
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
        failures: collects the errors of the tables that fail.
        makers: name of each table → the function that computes it.

    Raises:
        TracelensError: no table can be computed.
    """
    tables = {}
    for name, make in makers.items():
        with failures.isolate(f"The table {name}"):
            tables[name] = make()
    if makers and not tables:
        raise TracelensError(failures.messages[-1])
    return tables


def recording_notes(analyzer: TreePerfAnalyzer, *, for_json: bool) -> list[str]:
    """Return a sentence for each thing that was left out, dropped or corrected.

    Args:
        analyzer: of the trace.
        for_json: return all notes. On the screen, those that were printed to standard error before
            are left out.
    """
    trace = analyzer.trace
    notes = list(analyzer.problems if for_json else analyzer.failures.messages)
    dropped = dropped_text(trace)
    if for_json and dropped:
        notes.append(f"{dropped}.")
    notes_were_printed = bool(trace.provenance.salvaged)
    if for_json or not notes_were_printed:
        notes += trace.provenance.notes
    return list(dict.fromkeys(notes))


@contextmanager
def reading_of(
    trace: Path, listener: Progress | None = None
) -> Iterator[Progress | None]:
    """Yield the `progress` for the reader of a trace: a bar if there is no other listener.

    If no reader can read the file, the plugins that failed are listed: one of them might have.
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


def chosen_cache(reading: ReadingOptions) -> TraceCache | None:
    """Return the cache that a command uses; None if it uses none."""
    from tracelens_ext.readers.cache.folder import cache_is_off
    from tracelens_ext.readers.cache.store import TraceCache

    if reading.no_cache or cache_is_off():
        return None
    return TraceCache.from_environment(verify=reading.verify_cache, tell=tell)
