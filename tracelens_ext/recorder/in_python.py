"""Recording from Python: `record` around a loop, and `trace_handler` for PyTorch's profiler."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from tracelens_ext.errors import OutputError, TracelensError, UsageError
from tracelens_ext.isolation import failure_message
from tracelens_ext.recorder.hook.counting import typical_duration_ms
from tracelens_ext.recorder.hook.options import Options
from tracelens_ext.recorder.hook.process_file import TRACE_SUFFIX, compress
from tracelens_ext.recorder.hook.ranks import group_size, process_rank
from tracelens_ext.recorder.hook.recording import Recording
from tracelens_ext.report.tables.units import FIRST_FACTS
from tracelens_ext.text import counted, encodable, ms_text

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Findings
    from tracelens_ext.report.report import Report

#: Number of findings, or of CPU activities, that are printed.
_SHOWN: Final = 3
#: The table of CPU time by activity; its last row is the total.
_CPU_TIME: Final = "cpu_timeline"


@dataclass(frozen=True)
class RecordedReport:
    """A recorded trace and its report."""

    trace_path: Path
    report: Report
    written: list[Path]  #: the paths of the workbook and the page
    findings: Findings | None  #: None if they could not be computed

    def lines(self) -> list[str]:
        """Return the lines to print: the first findings, and the files."""
        lines = _finding_lines(self.findings) or self._time_lines()
        lines.append(f"Wrote {self.trace_path}")
        lines += [f"Wrote {path}" for path in self.written]
        return lines

    def _time_lines(self) -> list[str]:
        """Return lines about times, for a trace without findings, such as one of the CPU alone."""
        lines = []
        for label, value in self.report.facts:
            if label in FIRST_FACTS:
                lines.append(f"{label}: {value}")
        activities = self.report.sheets.get(_CPU_TIME)
        if activities is not None:
            largest = activities.iloc[:-1].nlargest(_SHOWN, "time_ms")
            times = []
            for activity in largest.to_dict("records"):
                time_text = ms_text(float(activity["time_ms"]))
                times.append(f"{activity['description']} {time_text}")
            lines.append(f"CPU time: {', '.join(times)}")
        return lines


class record:  # noqa: N801  # it is called like a function
    """Records a few iterations of a loop with PyTorch's profiler, and reports on them.

    >>> with tracelens_ext.record("run1") as recording:
    ...     for batch in loader:
    ...         train(batch)
    ...         recording.step()

    The trace, `report.xlsx` and `report.html` are written into the folder: the trace as soon as the
    last iteration has been recorded, and the report at the end of the block. With
    `skip=0, warmup=0`, the block need not call `step()`; then the whole block is recorded.

    Args:
        folder: the folder for trace and report.
        skip: number of iterations to skip first.
        warmup: number of iterations in which the profiler warms up.
        steps: number of iterations to record.
        stacks: record Python stacks.
        memory: record memory allocations.
        quiet: print nothing.

    Raises:
        UsageError: PyTorch is not installed, another profiler is active, or a number is negative.
        OutputError: the folder or the trace cannot be written.
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
        #: path of the trace, once it is written
        self.trace_path: Path | None = None
        #: the trace and its report, once the block has ended
        self.result: RecordedReport | None = None
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
        #: the profiler; None until the skipped iterations have ended
        self._recording: Recording | None = None
        self._is_over = False  #: True once the profiler has stopped for good
        self._iterations = 0  #: number of iterations that have ended
        self._ended_at: list[float] = []  #: when each iteration ended, s

    @property
    def _first_recorded(self) -> int:
        """The number of the first iteration to record, from 0."""
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
            self._say([_failure_line(problem, self.trace_path)])

    def _advance(self) -> None:
        """Do what is due before the next iteration.

        The first `skip` iterations go by without a profiler. It is prepared before the `warmup`
        iterations, and started before the first iteration to record. From then on, each iteration
        is marked.
        """
        if self._recording is None and self._iterations >= self._options.skip:
            self._recording = self._prepare()
        recording = self._recording
        if recording is None or self._iterations < self._first_recorded:
            return
        if not recording.is_started:
            recording.start()
        recording.begin_iteration(self._iterations)

    def _prepare(self) -> Recording:
        """Return a prepared profiler; raise a `UsageError` if another one is active."""
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
        """Stop the profiler, and write the trace of what was recorded so far."""
        self._is_over = True
        recording = self._recording
        if recording is None:
            return
        was_started = recording.is_started
        recording.stop(self._facts(recording))
        if was_started:
            self.trace_path = write_trace(self._torch, self.folder, recording)

    def _facts(self, recording: Recording) -> dict[str, Any]:
        """Return facts about the recording, which the trace file also contains."""
        return {
            "iterations": self._iterations,
            "first_iteration": self._first_recorded,
            "recorded_ms": recording.recorded_ms,
            # The profiler is prepared after the skipped iterations, so only these are typical.
            "before_ms": typical_duration_ms(self._ended_at[: self._options.skip]),
            "steps_by": "step()",
            "world_size": group_size(self._torch),
            "stacks_off_because": recording.stacks_off_because,
        }

    def _end(self) -> None:
        """End the recording if it still runs, and report on the trace."""
        if not self._is_over:
            self._finish()
        if self.trace_path is None:
            self._say([self._reason_for_nothing()])
            return
        self.result = report_on(self.trace_path)
        self._say(self.result.lines())

    def _reason_for_nothing(self) -> str:
        """Return a sentence that explains why there is no trace."""
        skip = self._options.skip
        warmup = self._options.warmup
        calls = counted(self._iterations, "call")
        return (
            f"nothing was recorded: the block ended after {calls} of step(), and the"
            f" recording begins after {self._first_recorded} (skip={skip}, warmup={warmup});"
            " call step() after each iteration, or record earlier with skip=0, warmup=0"
        )

    def _say(self, lines: Iterable[str]) -> None:
        if not self._quiet:
            _print_lines(lines)


def trace_handler(folder: str | os.PathLike[str]) -> Callable[[Any], None]:
    """Return a function for `on_trace_ready` of `torch.profiler.profile`.

    The function writes the trace and its report into a folder, and prints the first three findings.
    If the report fails, the program goes on.

    >>> with profile(schedule=schedule(wait=10, warmup=2, active=3),
    ...              on_trace_ready=tracelens_ext.trace_handler("run1")) as profiler:

    Args:
        folder: the folder for trace and report.
    """
    target = Path(folder)

    def handle(profiler: Any) -> None:  # noqa: ANN401  # of PyTorch, which may be missing
        trace_path = None
        try:
            _make_folder(target)
            trace_path = write_trace(_imported_torch(), target, profiler)
            lines = report_on(trace_path).lines()
        except Exception as error:  # noqa: BLE001  # the program goes on
            lines = [_failure_line(error, trace_path)]
        _print_lines(lines)

    return handle


def supported_activities(torch: Any) -> list[Any]:  # noqa: ANN401  # PyTorch
    """Return the activities that PyTorch can record on this machine: CPU and accelerators."""
    return list(torch.profiler.supported_activities())


def write_trace(torch: Any, folder: Path, profiler: Any) -> Path:  # noqa: ANN401  # PyTorch's
    """Write the trace of a profiler, under the first free name for this rank; return the path.

    Args:
        torch: PyTorch.
        folder: the folder for the trace.
        profiler: a profiler of PyTorch that has stopped, or a `Recording`.

    Raises:
        OutputError: the trace cannot be written into the folder.
    """
    rank = process_rank(torch) or 0
    if isinstance(profiler, Recording):
        export = profiler.export
        unfinished_iteration = profiler.current
    else:
        export = profiler.export_chrome_trace
        unfinished_iteration = None
    target = _first_free(folder, f"rank{rank}", TRACE_SUFFIX)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".tracelens-ext-", dir=folder
        ) as scratch:
            plain = Path(scratch) / "trace.json"
            packed = Path(scratch) / "trace.json.gz"
            export(str(plain))
            compress(str(plain), str(packed), unfinished_iteration)
            packed.replace(target)
    except OSError as error:
        raise OutputError(
            f"{folder}: the trace cannot be written ({error.strerror or error}); free some space,"
            " or choose another folder"
        ) from error
    return target


def report_on(trace_path: Path) -> RecordedReport:
    """Analyze a trace, and write its report into the same folder.

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
    format_of_path: dict[Path, writing.OutputFormat | Literal["html"]] = {}
    for output_format in (writing.OutputFormat.xlsx, writing.PAGE):
        try:
            writing.require_format(output_format)
        except UsageError:
            continue  # a package that this format requires is not installed
        format_of_path[_report_path(trace_path, str(output_format))] = output_format
    writing.write_report(report, format_of_path, [trace_path], force=True)
    return RecordedReport(trace_path, report, list(format_of_path), findings)


def _report_path(trace_path: Path, ending: str) -> Path:
    """Return the path of a report: `report.xlsx` for `rank0`, `report-rank1.xlsx` for `rank1`."""
    stem = trace_path.name.removesuffix(TRACE_SUFFIX)
    suffix = "" if stem == "rank0" else f"-{stem}"
    return trace_path.with_name(f"report{suffix}.{ending}")


def _first_free(folder: Path, stem: str, suffix: str) -> Path:
    """Return the first path out of `rank0`, `rank0-2`, `rank0-3` … that does not exist."""
    path = folder / f"{stem}{suffix}"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}{suffix}"
        number += 1
    return path


def _finding_lines(findings: Findings | None) -> list[str]:
    """Return the summary of the findings, and the first ones with their advice."""
    from tracelens_ext.findings.summary import first_sentences

    if findings is None:
        return []
    lines = list(first_sentences(findings))
    for number, finding in enumerate(findings.worthwhile[:_SHOWN], 1):
        lines.append(f"{number}. {finding.title}")
        lines.append(f"   {finding.advice}")
    return lines


def _imported_torch() -> Any:  # noqa: ANN401  # a package that may be missing
    """Return PyTorch; raise a `UsageError` if it cannot be imported."""
    try:
        torch = import_module("torch")
        import_module("torch.profiler")
    except ImportError as error:
        message = f"PyTorch cannot be imported ({error}); install it to record"
        raise UsageError(message) from error
    return torch


def _make_folder(folder: Path) -> None:
    """Create a folder if it does not exist.

    Raises:
        OutputError: the folder cannot be created, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A folder that exists already may be read-only.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        message = f"{folder}: cannot be written ({error.strerror})"
        raise OutputError(f"{message}; choose another folder") from error


def _failure_line(error: Exception, trace_path: Path | None) -> str:
    """Return the line about a trace or report that failed.

    Args:
        error: the reason.
        trace_path: the path of the trace; None if writing the trace failed.
    """
    if isinstance(error, TracelensError):
        return f"tracelens-ext: {error}"
    if trace_path is None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"tracelens-ext: PyTorch could not write the trace ({reason}); record it again"
    return failure_message("The report", error)


def _print_lines(lines: Iterable[str]) -> None:
    """Print to standard output, which notebooks and logs show, too."""
    for line in lines:
        sys.stdout.write(f"{encodable(line)}\n")
    sys.stdout.flush()
