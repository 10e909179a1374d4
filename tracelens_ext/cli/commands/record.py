"""`tracelens-ext record`: a program in; traces of a few iterations of it, and their report, out."""

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
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.hooks import Command
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
    from tracelens_ext.recorder.summary import RecordingSummary

_TRACES = "rank*.pt.trace.json.gz"
_SNAPSHOTS = "rank*.memory.pickle"
_WORKBOOK = "report.xlsx"
_PAGE = "report.html"
#: What typer exits with for Ctrl-C, which the command line takes for one of its own.
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
    run = _RecordRun(
        command=command, folder=_output_folder(output, force=force), options=options
    )
    exit_code = run.record()
    if exit_code == _INTERRUPTED:
        sys.exit(exit_code)
    raise typer.Exit(exit_code)


def _checked_steps_by(
    steps_by: StepsBy, after: str | None, for_time: str | None
) -> StepsBy:
    """Return what ends an iteration: nothing if times are given."""
    if after is None and for_time is None:
        return steps_by
    if steps_by not in (StepsBy.auto, StepsBy.time):
        raise UsageError(
            f"--after and --for record by time; leave out --steps-by {steps_by}"
        )
    return StepsBy.time


def _output_folder(output: Path | None, *, force: bool) -> Path:
    """Return the folder of the recording, without one from before."""
    if output is None:
        now = datetime.now().astimezone()
        return Path(f"tracelens-{now:%Y%m%d-%H%M%S}")
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is a file; give a folder with --output")
    earlier = _recordings_in(output)
    if earlier and not force:
        raise UsageError(
            f"{output}: already contains a recording; choose another folder, or "
            "replace it with --force"
        )
    for path in earlier:
        path.unlink()
    return output


def _recordings_in(folder: Path) -> list[Path]:
    """Return the traces and snapshots that a folder holds."""
    return sorted([*folder.glob(_TRACES), *folder.glob(_SNAPSHOTS)])


@dataclass(frozen=True)
class _RecordRun:
    """One call of the command."""

    command: Sequence[str]
    folder: Path
    options: RecordOptions

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
        if ended.problem:
            tell(ended.problem)
        else:
            self._tell_summary(summary)
        if summary.written:
            with _reporting():
                self._report(summary)
        elif is_new_folder:
            with suppress(OSError):
                self.folder.rmdir()
        return ended.exit_code

    def _tell_summary(self, summary: RecordingSummary) -> None:
        for sentence in summary.sentences():
            tell(sentence)

    def _report(self, summary: RecordingSummary) -> None:
        """Report on the traces: on all ranks of a job together."""
        traces = [self.folder / outcome.trace for outcome in summary.written]
        if len(traces) == 1:
            self._report_on_traces(
                traces=traces,
                workbook=self.folder / _WORKBOOK,
                page=self.folder / _PAGE,
            )
        elif summary.are_one_job():
            self._report_on_job(traces)
        else:
            self._report_on_traces(
                traces=traces, workbook=self.folder, page=self.folder
            )

    def _report_on_traces(
        self, traces: Sequence[Path], workbook: Path, page: Path
    ) -> None:
        """Report on one trace, or on each of several."""
        from tracelens_ext.cli.commands.report import report

        html = str(page) if _writes_pages() else None
        report(
            [str(trace) for trace in traces],
            outputs=OutputOptions(output=str(workbook), html=html),
            force=True,
            analysis=AnalysisOptions(),
            report_options=ReportOptions(),
        )

    def _report_on_job(self, traces: Sequence[Path]) -> None:
        """Report on all ranks of a job."""
        from tracelens_ext.cli.commands.fleet import fleet_blocks, fleet_report
        from tracelens_ext.distributed import run_fleet

        workbook: Places = {self.folder / _WORKBOOK: OutputFormat.xlsx}
        page: Places = {self.folder / _PAGE: writing.PAGE} if _writes_pages() else {}
        places = {**workbook, **page}
        with TemporaryDirectory() as results:
            result = run_fleet([os.fspath(trace) for trace in traces], results)
            job_report = fleet_report(result)
            show(job_report, fleet_blocks(result, top=5))
            tell_written(writing.write_report(job_report, places, traces, force=True))
        tell(f"results of all ranks: tracelens-ext fleet {self.folder} -o results")


@contextmanager
def _reporting() -> Iterator[None]:
    """Report on standard error, as standard output is the program's.

    Whatever fails does not change the exit code.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except typer.Exit:
        pass  # a report that said why it is not complete
    except TracelensError as error:
        tell(str(error))
    except Exception as error:
        from tracelens_ext.isolation import failure_message, raises_unexpected_errors

        if raises_unexpected_errors():
            raise
        tell(failure_message("The report", error))


def _writes_pages() -> bool:
    """Return whether pages can be written here; if not, say what they need."""
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
    ),
    runs_program=True,
)
