"""Records from Python: `record` around a loop, and `trace_handler` for PyTorch's profiler."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from tracelens_ext.errors import OutputError, TracelensError, UsageError
from tracelens_ext.isolation import failure_message
from tracelens_ext.recorder.hook.options import Options
from tracelens_ext.recorder.hook.process_file import TRACE_SUFFIX, compress
from tracelens_ext.recorder.hook.ranks import group_size, process_rank
from tracelens_ext.recorder.hook.recording import Recording
from tracelens_ext.report.tables.units import FIRST_FACTS
from tracelens_ext.text import encodable, ms_text

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Findings
    from tracelens_ext.report.report import Report

#: How many findings are printed.
_MOST_FINDINGS: Final = 3
#: The table of CPU time by activity; its last row is the total.
_CPU_TIME: Final = "cpu_timeline"
#: How many iterations are ignored when their usual duration is computed: the first ones also
#: allocate memory, compile kernels, and so on.
_WARM_UP: Final = 2


@dataclass(frozen=True)
class RecordedReport:
    """A recorded trace and its report."""

    trace_path: Path
    report: Report
    written: list[Path]  #: the files of the report: workbook and HTML page
    findings: Findings | None  #: None if they could not be computed

    def lines(self) -> list[str]:
        """Return the lines to print: the first findings, and the files."""
        lines = _finding_lines(self.findings) or self._time_lines()
        lines.append(f"Wrote {self.trace_path}")
        lines += [f"Wrote {path}" for path in self.written]
        return lines

    def _time_lines(self) -> list[str]:
        """Return lines about where the time went, for a trace without findings."""
        lines = [
            f"{label}: {value}"
            for label, value in self.report.facts
            if label in FIRST_FACTS
        ]
        activities = self.report.sheets.get(_CPU_TIME)
        if activities is not None:
            largest = activities.iloc[:-1].nlargest(_MOST_FINDINGS, "time_ms")
            times = [
                f"{description} {ms_text(time_ms)}"
                for description, time_ms in zip(
                    largest["description"].tolist(),
                    largest["time_ms"].tolist(),
                    strict=True,
                )
            ]
            lines.append(f"CPU time: {', '.join(times)}")
        return lines


class record:  # noqa: N801  # it is called like a function
    """Record a few iterations of a loop with PyTorch's profiler, and report on them.

    >>> with tracelens_ext.record("run1") as recording:
    ...     for batch in loader:
    ...         train(batch)
    ...         recording.step()

    The trace, `report.xlsx` and `report.html` are written into the folder: the trace as soon as the
    last iteration has been recorded, the report at the end of the block. With `skip=0, warmup=0`,
    the block need not call `step()`; then all of it is recorded.

    Args:
        folder: the folder for the trace and the report.
        skip: how many iterations to skip first.
        warmup: during how many iterations the profiler warms up.
        steps: how many iterations to record.
        stacks: record Python stacks.
        memory: record memory allocations.
        quiet: print nothing.

    Raises:
        UsageError: PyTorch is not installed, another profiler is at work, or a number is negative.
        OutputError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        skip: int = 10,
        warmup: int = 2,
        steps: int = 3,
        stacks: bool = True,
        memory: bool = False,
        quiet: bool = False,
    ) -> None:
        if skip < 0 or warmup < 0 or steps < 1:
            raise UsageError(
                "skip and warmup must not be negative, and steps at least 1"
            )
        self.folder = Path(folder)
        self.trace_path: Path | None = None  #: None until it is written
        self.result: RecordedReport | None = None  #: None until the block ends
        self._quiet = quiet
        self._options = Options(
            skip=skip,
            warmup=warmup,
            steps=steps,
            steps_by="auto",
            after_s=0.0,
            for_s=0.0,
            ranks=None,
            stacks=stacks,
            memory=memory,
            memory_snapshot=False,
        )
        self._torch = _imported_torch()
        self._recording: Recording | None = None
        self._is_over = False
        self._iterations = 0  #: how many have ended so far
        self._ended_at: list[float] = []

    @property
    def _first_recorded(self) -> int:
        return self._options.skip + self._options.warmup

    def __enter__(self) -> Self:
        _make_folder(self.folder)
        self._advance()
        return self

    def step(self) -> None:
        """End an iteration."""
        if self._is_over:
            return
        self._iterations += 1
        self._ended_at.append(time.perf_counter())
        if self._recording is not None and self._recording.is_started:
            self._recording.end_iteration()
            if len(self._recording.recorded_ms) >= self._options.steps:
                self._finish()
                return
        self._advance()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._end()
            return
        try:
            self._end()
        except Exception as problem:  # noqa: BLE001  # the error of the block matters more
            self._say([failure_message("The report", problem)])

    def _advance(self) -> None:
        """Prepare the profiler, start it, or mark the next iteration, whichever is due."""
        if self._recording is None and self._iterations >= self._options.skip:
            self._recording = self._prepared()
        recording = self._recording
        if recording is None or self._iterations < self._first_recorded:
            return
        if not recording.is_started:
            recording.start()
        recording.begin_iteration(self._iterations)

    def _prepared(self) -> Recording:
        if self._torch._C._autograd._profiler_enabled():
            raise UsageError(
                "another profiler is at work, and PyTorch has only one at a time; end it before"
                " the recording, or leave out tracelens_ext.record"
            )
        return Recording(
            self._torch,
            self._options,
            all_threads=False,
            activities=supported_activities(self._torch),
        )

    def _finish(self) -> None:
        """Stop the profiler, and write the trace of what was recorded."""
        self._is_over = True
        recording = self._recording
        if recording is None:
            return
        was_started = recording.is_started
        recording.stop(self._facts(recording))
        if was_started:
            self.trace_path = written_trace(self._torch, self.folder, recording)

    def _facts(self, recording: Recording) -> dict[str, Any]:
        return {
            "iterations": self._iterations,
            "first_iteration": self._first_recorded,
            "recorded_ms": recording.recorded_ms,
            "before_ms": self._typical_ms(),
            "steps_by": "step()",
            "world_size": group_size(self._torch),
            "stacks_off_because": recording.stacks_off_because,
        }

    def _typical_ms(self) -> float | None:
        """Return the median duration of the iterations before the profiler was prepared."""
        ended_at = self._ended_at[_WARM_UP : self._options.skip]
        durations = [end - start for start, end in pairwise(ended_at)]
        return 1000 * median(durations) if durations else None

    def _end(self) -> None:
        """Report on what was recorded."""
        if not self._is_over:
            self._finish()
        if self.trace_path is None:
            self._say([self._reason_for_nothing()])
            return
        self.result = reported(self.trace_path)
        self._say(self.result.lines())

    def _reason_for_nothing(self) -> str:
        skip = self._options.skip
        warmup = self._options.warmup
        return (
            f"nothing was recorded: the block ended after {self._iterations} calls of step(), and"
            f" the recording begins after {self._first_recorded} (skip={skip}, warmup={warmup});"
            " call step() after each iteration, or record earlier with skip=0, warmup=0"
        )

    def _say(self, lines: Iterable[str]) -> None:
        if not self._quiet:
            _print_lines(lines)


def trace_handler(folder: str | os.PathLike[str]) -> Callable[[Any], None]:
    """Return a function for `on_trace_ready` of `torch.profiler.profile`.

    It writes the trace and its report into a folder, and prints the three first findings. A report
    that cannot be made does not stop the program.

    >>> with profile(schedule=schedule(wait=10, warmup=2, active=3),
    ...              on_trace_ready=tracelens_ext.trace_handler("run1")) as profiler:

    Args:
        folder: the folder for the trace and the report.
    """
    target = Path(folder)

    def handle(profiler: Any) -> None:  # noqa: ANN401  # of PyTorch, which may be missing
        try:
            _make_folder(target)
            trace_path = written_trace(_imported_torch(), target, profiler)
            lines = reported(trace_path).lines()
        except TracelensError as error:
            lines = [f"tracelens-ext: {error}"]
        except Exception as error:  # noqa: BLE001  # the program goes on
            lines = [failure_message("The report", error)]
        _print_lines(lines)

    return handle


def supported_activities(torch: Any) -> list[Any]:  # noqa: ANN401  # PyTorch
    """Return everything that PyTorch can record on this machine: the CPU and accelerators."""
    return list(torch.profiler.supported_activities())


def written_trace(torch: Any, folder: Path, profiler: Any) -> Path:  # noqa: ANN401  # PyTorch's
    """Write the trace of a profiler under the first free name for this rank; return the path.

    Args:
        torch: the module `torch`.
        folder: the folder for the trace.
        profiler: a profiler of PyTorch that has stopped, or a `Recording`.
    """
    rank = process_rank(torch) or 0
    is_ours = isinstance(profiler, Recording)
    export = profiler.export if is_ours else profiler.export_chrome_trace
    unfinished = profiler.current if is_ours else None
    with tempfile.TemporaryDirectory(prefix=".tracelens-ext-", dir=folder) as scratch:
        plain = Path(scratch) / "trace.json"
        packed = Path(scratch) / "trace.json.gz"
        export(str(plain))
        compress(str(plain), str(packed), unfinished)
        target = _first_free(folder, f"rank{rank}", TRACE_SUFFIX)
        packed.replace(target)
    return target


def reported(trace_path: Path) -> RecordedReport:
    """Analyze a trace, and write its report next to it.

    Raises:
        TracelensError: the trace cannot be analyzed, or the report cannot be written.
    """
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.perf_report import build_perf_report
    from tracelens_ext.report import writing

    analyzer = TreePerfAnalyzer(trace_path, use_kernel_name_categories=True)
    report = build_perf_report(analyzer, for_page=True)
    findings = None
    with analyzer.failures.isolate("The findings"):
        findings = analyzer.findings()
    places: dict[Path, writing.OutputFormat | Literal["html"]] = {}
    for chosen in (writing.OutputFormat.xlsx, writing.PAGE):
        try:
            writing.require_format(chosen)
        except UsageError:
            continue  # a package for this format is not installed
        places[_report_path(trace_path, str(chosen))] = chosen
    writing.write_report(report, places, [trace_path], force=True)
    return RecordedReport(trace_path, report, list(places), findings)


def _report_path(trace_path: Path, ending: str) -> Path:
    """Return `report.xlsx` for the trace `rank0`, and `report-rank1.xlsx` and so on for others."""
    stem = trace_path.name.removesuffix(TRACE_SUFFIX)
    suffix = "" if stem == "rank0" else f"-{stem}"
    return trace_path.with_name(f"report{suffix}.{ending}")


def _first_free(folder: Path, stem: str, suffix: str) -> Path:
    """Return the first name of `rank0`, `rank0-2`, `rank0-3` … that no file has."""
    path = folder / f"{stem}{suffix}"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}{suffix}"
        number += 1
    return path


def _finding_lines(findings: Findings | None) -> list[str]:
    """Return lines about the first findings and their advice; without findings, a summary."""
    from tracelens_ext.findings.summary import first_sentences

    if findings is None:
        return []
    lines = list(first_sentences(findings))
    for number, finding in enumerate(findings.worthwhile[:_MOST_FINDINGS], 1):
        lines.append(f"{number}. {finding.title}")
        lines.append(f"   {finding.advice}")
    return lines


def _imported_torch() -> Any:  # noqa: ANN401  # a package that may be missing
    try:
        torch = import_module("torch")
        import_module("torch.profiler")
    except ImportError as error:
        message = f"PyTorch cannot be imported ({error}); install it to record"
        raise UsageError(message) from error
    return torch


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder}: cannot be written ({error.strerror})"
        raise OutputError(f"{message}; choose another folder") from error


def _print_lines(lines: Iterable[str]) -> None:
    """Print to standard output, which notebooks and logs show."""
    for line in lines:
        sys.stdout.write(f"{encodable(line)}\n")
    sys.stdout.flush()
