"""`tracelens-ext nsys stats`: GPU time by class of kernel, of Nsight Systems tables or traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.inputs import check_files
from tracelens_ext.cli.messages import print_line, print_report
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.class_statistics.configuration import InputSpec
    from tracelens_ext.class_statistics.statistics import Classifier, ClassStatistics
    from tracelens_ext.report.report import Places
    from tracelens_ext.trace import Trace

app = typer.Typer(
    help="Statistics of Nsight Systems reports.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    pass


def stats(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="A trace instead of tables: .nsys-rep, .sqlite, or PyTorch's .json.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="JSON file that says all about the inputs."),
    ] = None,
    kernels: Annotated[
        Path | None,
        typer.Option("--kernels", metavar="CSV", help="Table cuda_gpu_kern_sum of nsys stats."),
    ] = None,
    nvtx: Annotated[
        Path | None,
        typer.Option("--nvtx", metavar="CSV", help="Table nvtx_gpu_proj_trace of nsys stats."),
    ] = None,
    mem: Annotated[
        Path | None,
        typer.Option("--mem", metavar="CSV", help="Table cuda_gpu_mem_time_sum of nsys stats."),
    ] = None,
    mem_size: Annotated[
        Path | None,
        typer.Option(
            "--mem-size",
            metavar="CSV",
            help="Table cuda_gpu_mem_size_sum of nsys stats, for sizes in the tables.",
        ),
    ] = None,
    class_map: Annotated[
        Path | None,
        typer.Option(
            "--class-map",
            metavar="FILE",
            help="JSON: part of a kernel's name → class.  [default: the built-in categories]",
            show_default=False,
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            metavar="N",
            help="Iterations recorded.  [default: as many as ranges on each GPU]",
            min=1,
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            metavar="N",
            help="GPUs recorded.  [default: those of the trace; of tables 1]",
            min=1,
            show_default=False,
        ),
    ] = None,
    iteration_range: Annotated[
        str | None,
        typer.Option(
            "--iteration-range", metavar="TAG", help="Exact name of the iterations' NVTX ranges."
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Heading of the output.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON, nothing else.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="DIR", help="Write the tables to CSV files in this folder."),
    ] = None,
    xlsx: Annotated[
        Path | None,
        typer.Option("--xlsx", metavar="FILE", help="Write the tables to an Excel file."),
    ] = None,
    force: shared.Force = False,
    quiet: shared.Quiet = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Sum GPU time by class of kernel, collective and memory operation, per iteration.

    With NVTX ranges around the iterations, also estimate the time in them that no kernel fills.
    """
    from tracelens_ext.class_statistics.configuration import InputSpec, load_class_map
    from tracelens_ext.class_statistics.statistics import Classifier
    from tracelens_ext.report.report import check_places

    values = {
        "a trace": trace,
        "--kernels": kernels,
        "--nvtx": nvtx,
        "--mem": mem,
        "--mem-size": mem_size,
        "--class-map": class_map,
        "--iterations": iterations,
        "--gpus": gpus,
        "--iteration-range": iteration_range,
        "--title": title,
    }
    given = [name for name, value in values.items() if value is not None]
    if config is not None:
        if given:
            raise UsageError(f"{given[0]} does not go with --config, whose file says all that")
        specs, classifier = _configured(config)
    else:
        main_file = _main_file(given, trace, kernels)
        spec = InputSpec(
            title=main_file.stem if title is None else title,
            kernels=kernels,
            ranges=nvtx,
            memory=mem,
            sizes=mem_size,
            trace=trace,
            iterations=iterations,
            gpus=gpus if trace is not None else gpus or 1,
            tag=iteration_range,
        )
        mapping = load_class_map(class_map) if class_map is not None else None
        specs, classifier = [spec], Classifier(mapping, str(class_map))
    inputs = [path for spec in specs for path in spec.files]
    places = _places(csv, xlsx)
    for note in check_places(places, inputs, force=force):
        print_line(f"tracelens-ext: {note}", error=True)
    statistics, problems = _computed(specs, classifier, reading)
    if statistics:
        _show(statistics, problems, places, inputs, json=json, quiet=quiet, force=force)
    if problems:
        raise typer.Exit(1)


app.command()(stats)


def _configured(config: Path) -> tuple[Sequence[InputSpec], Classifier]:
    """The inputs and the classes of a configuration file.

    Raises:
        ConfigurationError, RuleError: the file is no good.
    """
    from tracelens_ext.class_statistics.configuration import load_configuration
    from tracelens_ext.class_statistics.statistics import Classifier

    loaded = load_configuration(config)
    return loaded.inputs, Classifier(loaded.class_map, f"{config}: kernel_to_class_map")


def _main_file(given: Sequence[str], trace: Path | None, kernels: Path | None) -> Path:
    """The trace, or the table of kernels.

    Raises:
        UsageError: the options that are given do not go together.
    """
    tables = [name for name in given if name in ("--kernels", "--nvtx", "--mem", "--mem-size")]
    if trace is not None:
        if tables:
            raise UsageError(f"{tables[0]} names a table instead of a trace; give one of them")
        if "--iterations" not in given and "--iteration-range" not in given:
            raise UsageError("give --iterations, or --iteration-range for ranges to count")
        return trace
    if kernels is None:
        raise UsageError("name a trace, --kernels with a table, or --config with a file")
    if "--mem-size" in given and "--mem" not in given:
        raise UsageError("--mem-size needs --mem, the times of the same operations")
    if ("--nvtx" in given) != ("--iteration-range" in given):
        raise UsageError("--nvtx and --iteration-range go together; give both or neither")
    if "--iterations" not in given and "--nvtx" not in given:
        raise UsageError("give --iterations, or --nvtx with --iteration-range to count them")
    return kernels


def _places(csv: Path | None, xlsx: Path | None) -> Places:
    from tracelens_ext.report.report import Format

    if csv is not None and csv.suffix.lower() == ".csv" and not csv.is_dir():
        raise UsageError(f"{csv}: names one file for several tables; name a folder")
    if xlsx is not None and xlsx.suffix.lower() != ".xlsx":
        raise UsageError(f"{xlsx}: an Excel file is named .xlsx")
    asked = ((csv, Format.csv), (xlsx, Format.xlsx))
    return {path: chosen for path, chosen in asked if path is not None}


def _computed(
    specs: Sequence[InputSpec], classifier: Classifier, reading: ReadingOptions
) -> tuple[list[tuple[str, ClassStatistics]], list[str]]:
    """The statistics of each input, and what is wrong with those that have none.

    Doubts, and all problems but that of a single input, are told on standard error.
    """
    from tracelens_ext.class_statistics.inputs import statistics_of

    statistics, problems = [], []
    for spec in specs:
        try:
            check_files([] if spec.missing else spec.files)
            found = statistics_of(spec, classifier, _read, reading)
        except TracelensError as error:
            if len(specs) == 1:
                raise
            problems.append(f"{spec.title}: {error}")
            print_line(f"tracelens-ext: {problems[-1]}", error=True)
            continue
        statistics.append((spec.title, found))
        for warning in found.warnings:
            print_line(f"tracelens-ext: warning: {spec.title}: {warning}", error=True)
        for note in found.notes:
            print_line(f"tracelens-ext: {spec.title}: {note}", error=True)
    return statistics, problems


def _read(path: Path, options: ReadingOptions) -> Trace:
    from tracelens_ext.cli.load import reading, tell_dropped
    from tracelens_ext.cli.reading import chosen_cache
    from tracelens_ext.readers import read_trace

    with reading(path) as progress:
        trace = read_trace(path, progress=progress, cache=chosen_cache(options), reading=options)
    tell_dropped(path, trace)
    return trace


def _show(
    statistics: Sequence[tuple[str, ClassStatistics]],
    problems: Sequence[str],
    places: Places,
    inputs: Sequence[Path],
    *,
    json: bool,
    quiet: bool,
    force: bool,
) -> None:
    """Write what was asked for, and print the text, or the tables as JSON."""
    from tracelens_ext.class_statistics.layout import document, text
    from tracelens_ext.cli.outputs import write_outputs

    report = document(statistics, problems) if json or places else None
    written = write_outputs(report, places, inputs, force=force) if report is not None else []
    if json and report is not None:
        print_report(report)
    elif not quiet:
        typer.echo("\n\n".join(text(found, title) for title, found in statistics), nl=False)
        for path in written:
            print_line(f"Wrote {path}")
