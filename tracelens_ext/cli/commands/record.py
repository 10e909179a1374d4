"""`tracelens-ext record`: runs a program, records a few of its iterations, and reports on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import AnalysisOptions
from tracelens_ext.cli.outputs import OutputOptions
from tracelens_ext.cli.screen import show, tell, tell_written
from tracelens_ext.errors import OutputError, TracelensError, UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.recorder.other_profilers import OtherProfiler, check_options
from tracelens_ext.recorder.record_options import (
    DEFAULT_AFTER_S,
    DEFAULT_FOR_S,
    RecordOptions,
    StepsBy,
    duration_s,
    rank_numbers,
)
from tracelens_ext.report import writing
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.writing import OutputFormat, Places

if TYPE_CHECKING:
    from tracelens_ext.recorder.program import Ended
    from tracelens_ext.recorder.summary import RecordingSummary

#: The files of a recording in its folder, besides the reports.
_RECORDINGS = (
    "rank*.pt.trace.json.gz",
    "rank*.memory.pickle",
    "profile.nsys-rep",
    "profile.sqlite",
    "profile-*.db",
    "profile-*.json",
    "profile-*.csv",
)
_WORKBOOK = "report.xlsx"
_PAGE = "report.html"
#: The reports in that folder, which are replaced together with the recording.
_REPORTS = (_WORKBOOK, _PAGE, "*_perf_report.xlsx", "*_perf_report.html")
#: The exit code of typer after a Ctrl-C. If the program exits with it, `typer.Exit` would look like
#: a Ctrl-C of this command.
_INTERRUPTED = 130


def record(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="The program and its arguments, e.g. -- python train.py --lr 0.1",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Output folder for traces and report.  [default: tracelens-DATE-TIME]",
            show_default=False,
        ),
    ] = None,
    skip: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Number of iterations to skip first."),
    ] = 10,
    warmup: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Number of warm-up iterations of the profiler."
        ),
    ] = 2,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of iterations to record.")
    ] = 3,
    steps_by: Annotated[
        StepsBy,
        typer.Option(
            help=(
                "What ends an iteration: an optimizer step, a call of the outermost "
                "module, or nothing (record by time). auto: the optimizer step if "
                "there is one."
            )
        ),
    ] = StepsBy.auto,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Record by time: start this long after PyTorch is imported.  [default "
                "with --for: 30s]"
            ),
            show_default=False,
        ),
    ] = None,
    for_time: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Record by time: stop after this long.  [default with --after: 5s]",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Record only these ranks, such as 0,1 or 0-7.",
            show_default=False,
        ),
    ] = None,
    no_stacks: Annotated[
        bool,
        typer.Option(
            "--no-stacks", help="Record no Python stacks, which reduces the overhead."
        ),
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Record memory allocations.")
    ] = False,
    memory_snapshot: Annotated[
        bool,
        typer.Option("--memory-snapshot", help="Also write a GPU memory snapshot."),
    ] = False,
    profiler: Annotated[
        OtherProfiler | None,
        typer.Option(
            "--with",
            help=(
                "Run the program, Python or not, under this profiler, and report on all of"
                " the run, or on --after and --for."
            ),
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace the recording in the folder."),
    ] = False,
) -> None:
    """Run a program, record a few of its iterations, and report on them.

    The program needs no changes. Its output and its exit code stay what they are.
    """
    steps_by = _checked_steps_by(steps_by, after, for_time)
    options = RecordOptions(
        skip=skip,
        warmup=warmup,
        steps=steps,
        steps_by=steps_by,
        after_s=DEFAULT_AFTER_S if after is None else duration_s(after),
        for_s=DEFAULT_FOR_S if for_time is None else duration_s(for_time),
        ranks=None if ranks is None else rank_numbers(ranks),
        stacks=not no_stacks,
        memory=memory,
        memory_snapshot=memory_snapshot,
    )
    run: _RecordRun
    if profiler is None:
        run = _HookedRun(
            command=command, folder=_output_folder(output, force=force), options=options
        )
    else:
        check_options(profiler, options)
        program = profiler.program()
        folder = _output_folder(output, force=force)
        run = _ProfiledRun(
            command=command,
            folder=folder,
            options=options,
            profiler=profiler,
            program=program,
        )
    exit_code = run.record()
    if exit_code == _INTERRUPTED:
        sys.exit(exit_code)
    raise typer.Exit(exit_code)


def _checked_steps_by(
    steps_by: StepsBy, after: str | None, for_time: str | None
) -> StepsBy:
    """Return what ends an iteration; `time` if `--after` or `--for` is given."""
    if after is None and for_time is None:
        return steps_by
    if steps_by not in (StepsBy.auto, StepsBy.time):
        raise UsageError(
            f"--after and --for record by time; leave out --steps-by {steps_by}"
        )
    return StepsBy.time


def _output_folder(output: Path | None, *, force: bool) -> Path:
    """Return the folder for the recording, after removing an earlier one if that is allowed."""
    if output is None:
        now = datetime.now().astimezone()
        return Path(f"tracelens-{now:%Y%m%d-%H%M%S}")
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is a file; give a folder with --output")
    earlier = _files_in(output, _RECORDINGS)
    if earlier and not force:
        raise UsageError(
            f"{output}: already contains a recording; choose another folder, or "
            "replace it with --force"
        )
    if earlier:
        for path in earlier + _files_in(output, _REPORTS):
            path.unlink()
    return output


def _files_in(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files in a folder whose names match one of the patterns."""
    paths: list[Path] = []
    for pattern in patterns:
        paths += folder.glob(pattern)
    return sorted(path for path in paths if path.is_file())


@dataclass(frozen=True)
class _RecordRun:
    """One run of the command."""

    command: Sequence[str]
    folder: Path
    options: RecordOptions

    def record(self) -> int:
        """Run the program, report, and return its exit code."""
        raise NotImplementedError

    def _tell_end(self, ended: Ended, sentences: Sequence[str]) -> None:
        """Print why the program could not be started, or else what was recorded."""
        if ended.problem:
            tell(ended.problem)
            return
        for sentence in sentences:
            tell(sentence)

    def _report_on_each(self, traces: Sequence[Path]) -> None:
        """Report on one trace, or on each of several traces, into the folder of the recording."""
        if len(traces) == 1:
            workbook = self.folder / _WORKBOOK
            page = self.folder / _PAGE
            self._report_on_traces(traces, workbook, page)
        else:
            self._report_on_traces(traces, self.folder, self.folder)

    def _report_on_traces(
        self, traces: Sequence[Path], workbook: Path, page: Path
    ) -> None:
        """Report on traces, as `report` does with these outputs."""
        from tracelens_ext.cli.commands.report import report

        html = str(page) if _writes_pages() else None
        report(
            [str(trace) for trace in traces],
            outputs=OutputOptions(output=str(workbook), html=html),
            force=True,
            analysis=AnalysisOptions(),
            report_options=ReportOptions(),
        )


@dataclass(frozen=True)
class _HookedRun(_RecordRun):
    """A run that PyTorch's profiler records."""

    def record(self) -> int:
        """Run the program, report, and return its exit code."""
        from tracelens_ext.recorder.hook_folder import HookFolder
        from tracelens_ext.recorder.program import run_program
        from tracelens_ext.recorder.summary import RecordingSummary

        is_new_folder = not self.folder.exists()
        hook = HookFolder.create(self.folder, self.options)
        try:
            ended = run_program(self.command, hook.environment(os.environ))
            summary = RecordingSummary(
                command=self.command,
                options=self.options,
                outcomes=hook.outcomes(),
                python_ran=hook.python_ran,
                problems=hook.problems(),
            )
        finally:
            hook.remove()
        self._tell_end(ended, summary.sentences())
        if summary.written:
            with _reporting():
                self._report(summary)
        elif is_new_folder:
            _remove_if_empty(self.folder)
        return ended.exit_code

    def _report(self, summary: RecordingSummary) -> None:
        """Report on the traces; if they are the ranks of one job, together."""
        traces = [self.folder / outcome.trace for outcome in summary.written]
        if summary.is_part_of_job():
            # Other nodes write into the same folder.
            traces = _files_in(self.folder, _RECORDINGS[:1])
        if len(traces) > 1 and summary.are_one_job():
            self._report_on_job(traces, summary)
        else:
            self._report_on_each(traces)

    def _report_on_job(self, traces: Sequence[Path], summary: RecordingSummary) -> None:
        """Report on all ranks of a job together, as `fleet` does."""
        from tracelens_ext.cli.commands.fleet import fleet_blocks, fleet_report
        from tracelens_ext.distributed import run_fleet

        workbook: Places = {self.folder / _WORKBOOK: OutputFormat.xlsx}
        page: Places = {self.folder / _PAGE: writing.PAGE} if _writes_pages() else {}
        places = {**workbook, **page}
        with TemporaryDirectory() as results:
            for sentence in summary.cost_sentences():
                tell(sentence)
            result = run_fleet([os.fspath(trace) for trace in traces], results)
            job_report = fleet_report(result)
            show(job_report, fleet_blocks(result, top=5))
            tell_written(writing.write_report(job_report, places, traces, force=True))
        tell(f"results of all ranks: tracelens-ext fleet {self.folder} -o results")


@dataclass(frozen=True)
class _ProfiledRun(_RecordRun):
    """A run under a profiler of the GPU's vendor."""

    profiler: OtherProfiler
    program: str  #: the path of the profiler

    def record(self) -> int:
        """Run the program, report, and return its exit code."""
        from tracelens_ext.recorder.program import run_program

        is_new_folder = not self.folder.exists()
        _make_folder(self.folder)
        folder = self.folder.absolute()
        files_before = set(self.folder.rglob("*"))
        command = self.profiler.command(
            self.program, self.command, folder, self.options
        )
        ended = run_program(command, os.environ)
        recordings = self.profiler.recordings(self.folder, files_before)
        self._tell_end(ended, [] if recordings else [self._reason_for_nothing()])
        if recordings:
            with _reporting():
                self._report_on_each(recordings)
        elif is_new_folder:
            _remove_if_empty(self.folder)
        return ended.exit_code

    def _reason_for_nothing(self) -> str:
        return (
            f"nothing was recorded: {self.profiler.value} left no recording in {self.folder};"
            " its messages above say why"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder}: cannot be written ({error.strerror})"
        raise OutputError(f"{message}; choose another folder") from error


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _reporting() -> Iterator[None]:
    """Send the report to standard error, as standard output belongs to the program.

    Errors of the report are printed. The exit code remains that of the program.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except typer.Exit:
        pass  # the report has printed what is incomplete
    except TracelensError as error:
        tell(str(error))
    except Exception as error:
        from tracelens_ext.isolation import failure_message, raises_unexpected_errors

        if raises_unexpected_errors():
            raise
        tell(failure_message("The report", error))


def _writes_pages() -> bool:
    """Return whether HTML pages can be written; if not, print what is missing."""
    try:
        writing.require_format(writing.PAGE)
    except UsageError as error:
        tell(f"the page could not be written: {error}")
        return False
    return True


COMMAND = Command(
    name="record",
    summary="Run a program, and record and analyze a few iterations.",
    function=record,
    group="Inspect",
    examples=(
        "record -- python train.py",
        "record -o run1 --skip 50 -- torchrun --nproc-per-node 8 train.py",
        "record --after 60s --for 5s -- python serve.py",
        "record --with nsys -- ./server",
    ),
    runs_program=True,
)
