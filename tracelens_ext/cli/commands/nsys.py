"""`tracelens-ext nsys stats`: sums the GPU time of Nsight Systems data by kernel class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import Force, Quiet, ReadingFlags, given_options
from tracelens_ext.cli.screen import print_report, tell, tell_written
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.report.writing import OutputFormat, Places

if TYPE_CHECKING:
    from tracelens_ext.analysis.nsys_statistics.configuration import InputSpec
    from tracelens_ext.analysis.nsys_statistics.kernel_classes import Classifier
    from tracelens_ext.analysis.nsys_statistics.report_tables import TitledStatistics
    from tracelens_ext.settings import ReadingOptions
    from tracelens_ext.trace import Trace

_TABLE_OPTIONS = ("--kernels", "--nvtx", "--mem", "--mem-size")

app = typer.Typer(
    help="Statistics of Nsight Systems reports.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    pass


@dataclass(frozen=True)
class InputOptions:
    """One input: either tables or a trace."""

    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="A trace instead of tables: .nsys-rep, .sqlite, or PyTorch .json.",
        ),
    ] = None
    kernels: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="CSV of the nsys stats table cuda_gpu_kern_sum."
        ),
    ] = None
    nvtx: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="CSV of the nsys stats table nvtx_gpu_proj_trace."
        ),
    ] = None
    mem: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="CSV of the nsys stats table cuda_gpu_mem_time_sum."
        ),
    ] = None
    mem_size: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="CSV of the nsys stats table cuda_gpu_mem_size_sum, for the sizes.",
        ),
    ] = None
    class_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON that maps part of a kernel name to a class.  [default: the "
            "built-in categories]",
        ),
    ] = None
    iterations: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of recorded iterations.  [default: the number of ranges on "
            "each GPU]",
        ),
    ] = None
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of recorded GPUs.  [default: those of the trace; 1 for tables]",
        ),
    ] = None
    iteration_range: Annotated[
        str | None,
        typer.Option(
            metavar="TAG", help="Exact name of the NVTX range of an iteration."
        ),
    ] = None
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Title of the output.")
    ] = None

    def input_spec(self) -> InputSpec:
        """Return the input in the form that the analysis takes."""
        from tracelens_ext.analysis.nsys_statistics.configuration import InputSpec

        return InputSpec(**vars(self))

    def check(self) -> None:
        """Check that the options fit together.

        Raises:
            UsageError: they do not.
        """
        names = given_options(self)
        if self.trace is not None:
            tables = [name for name in names if name in _TABLE_OPTIONS]
            if tables:
                raise UsageError(
                    f"{tables[0]} takes a table, but a trace is given too; give only "
                    "one of them"
                )
            if "--iterations" not in names and "--iteration-range" not in names:
                raise UsageError(
                    "the number of iterations is unknown; give --iterations, or "
                    "--iteration-range to count them"
                )
        elif self.kernels is None:
            raise UsageError(
                "no input; give a trace, --kernels with a table, or --config with a "
                "file"
            )
        elif "--mem-size" in names and "--mem" not in names:
            raise UsageError("--mem-size needs --mem, the times of the same operations")
        elif ("--nvtx" in names) != ("--iteration-range" in names):
            raise UsageError(
                "--nvtx and --iteration-range only work together; give both or neither"
            )
        elif "--iterations" not in names and "--nvtx" not in names:
            raise UsageError(
                "the number of iterations is unknown; give --iterations, or --nvtx "
                "with --iteration-range to count them"
            )


@app.command()
def stats(
    options: InputOptions,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file that describes the inputs."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print only the tables, as JSON.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the tables as CSV files to this folder."
        ),
    ] = None,
    xlsx: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the tables to an Excel file."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    *,
    reading: ReadingFlags,
) -> None:
    """Sum the GPU time per iteration by class of kernel, collective and memory operation.

    With NVTX ranges around the iterations, also estimate the time in which no kernel runs.
    """
    from tracelens_ext.analysis.nsys_statistics.layout import text
    from tracelens_ext.analysis.nsys_statistics.report_tables import statistics_report
    from tracelens_ext.cli.outputs import check_outputs, write_outputs

    inputs = _inputs(options, config)
    files = [path for spec in inputs.specs for path in spec.files]
    places = _places(csv, xlsx)
    check_outputs(places, files, force=force)
    results = _computed(inputs, reading)
    if results.statistics:
        report = statistics_report(results.statistics, results.problems)
        written = []
        if places:
            written = write_outputs(report, places, files, force=force)
        if json:
            print_report(report)
        elif not quiet:
            texts = [
                text(statistics, title) for title, statistics in results.statistics
            ]
            typer.echo("\n\n".join(texts), nl=False)
            tell_written(written)
    if results.problems:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Inputs:
    """The inputs to sum, and the classes of kernels."""

    specs: Sequence[InputSpec]
    classifier: Classifier


def _inputs(options: InputOptions, config: Path | None) -> _Inputs:
    """Return the inputs that the options name, or that a configuration file describes."""
    from tracelens_ext.analysis.nsys_statistics.configuration import (
        load_class_map,
        load_configuration,
    )
    from tracelens_ext.analysis.nsys_statistics.kernel_classes import Classifier

    if config is None:
        options.check()
        class_map = None
        if options.class_map is not None:
            class_map = load_class_map(options.class_map)
        return _Inputs(
            specs=[options.input_spec()],
            classifier=Classifier(class_map, str(options.class_map)),
        )
    names = given_options(options)
    if names:
        first = "a trace" if names[0] == "--trace" else names[0]
        raise UsageError(
            f"{first} cannot be combined with --config; put it into the configuration "
            "file"
        )
    loaded = load_configuration(config)
    classifier = Classifier(
        mapping=loaded.class_map, name=f"{config}: kernel_to_class_map"
    )
    return _Inputs(loaded.inputs, classifier)


def _places(csv: Path | None, xlsx: Path | None) -> Places:
    """Return the files and folders to write, with their formats."""
    looks_like_file = csv is not None and csv.suffix.lower() == ".csv"
    if csv is not None and looks_like_file and not csv.is_dir():
        raise UsageError(
            f"{csv}: is a single file, but there are several tables; give a folder"
        )
    if xlsx is not None and xlsx.suffix.lower() != ".xlsx":
        raise UsageError(f"{xlsx}: is not the name of an Excel file; end it with .xlsx")
    places: dict[Path, OutputFormat] = {}
    if csv:
        places[csv] = OutputFormat.csv
    if xlsx:
        places[xlsx] = OutputFormat.xlsx
    return places


@dataclass(frozen=True)
class _Results:
    """The statistics of all inputs, and the errors of those that failed."""

    #: the heading and the statistics of each input that could be read
    statistics: list[TitledStatistics] = field(default_factory=list)
    #: an error message for each other input
    problems: list[str] = field(default_factory=list)


def _computed(inputs: _Inputs, reading: ReadingOptions) -> _Results:
    """Return the statistics of each input.

    Warnings go to standard error, and so do errors of inputs. Only the error of a single input is
    raised.
    """
    from tracelens_ext.analysis.nsys_statistics.inputs import statistics_of
    from tracelens_ext.analysis.nsys_statistics.report_tables import TitledStatistics
    from tracelens_ext.cli.named_traces import check_files

    results = _Results()
    for spec in inputs.specs:
        try:
            if not spec.missing:
                check_files(spec.files)
            statistics = statistics_of(
                spec=spec, classifier=inputs.classifier, read=_read, reading=reading
            )
        except TracelensError as error:
            if len(inputs.specs) == 1:
                raise
            problem = f"{spec.heading}: {error}"
            results.problems.append(problem)
            tell(problem)
            continue
        results.statistics.append(TitledStatistics(spec.heading, statistics))
        for warning in statistics.warnings:
            tell(f"warning: {spec.heading}: {warning}")
        for note in statistics.notes:
            tell(f"{spec.heading}: {note}")
    return results


def _read(path: Path, reading: ReadingOptions) -> Trace:
    """Read a trace with a progress bar."""
    from tracelens_ext.cli.load import chosen_cache, reading_of
    from tracelens_ext.cli.messages import tell_dropped
    from tracelens_ext.readers import read_trace

    with reading_of(path) as progress:
        trace = read_trace(
            path, progress=progress, cache=chosen_cache(reading), reading=reading
        )
    tell_dropped(path, trace)
    return trace


COMMAND = Command(
    name="nsys",
    summary="Summarize Nsight Systems reports by kernel class.",
    function=app,
    group="Inspect",
    examples=(
        "nsys stats run.nsys-rep",
        "nsys stats run.sqlite --xlsx classes.xlsx",
        "nsys stats --kernels kern_sum.csv --mem mem_time_sum.csv --json",
    ),
)
