"""`tracelens-ext nsys stats`: GPU time by class of kernel, of Nsight Systems tables or traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracelens_ext.class_statistics.configuration import (
    InputSpec,
    load_class_map,
    load_configuration,
)
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import check_files, chosen_cache, reading_of, tell_dropped
from tracelens_ext.cli.outputs import check_outputs, tell_written, write_outputs
from tracelens_ext.cli.screen import print_report, tell
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.report.report import Format, Places
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.class_statistics.statistics import Classifier, ClassStatistics
    from tracelens_ext.trace import Trace

app = typer.Typer(
    help="Statistics of Nsight Systems reports.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    pass


def _check(given: InputSpec) -> None:
    """Check that the options that describe an input go together."""
    names = shared.given_options(given)
    tables = [name for name in names if name in ("--kernels", "--nvtx", "--mem", "--mem-size")]
    if given.trace is not None:
        if tables:
            raise UsageError(f"{tables[0]} names a table instead of a trace; give one of them")
        if "--iterations" not in names and "--iteration-range" not in names:
            raise UsageError("give --iterations, or --iteration-range for ranges to count")
    elif given.kernels is None:
        raise UsageError("name a trace, --kernels with a table, or --config with a file")
    elif "--mem-size" in names and "--mem" not in names:
        raise UsageError("--mem-size needs --mem, the times of the same operations")
    elif ("--nvtx" in names) != ("--iteration-range" in names):
        raise UsageError("--nvtx and --iteration-range go together; give both or neither")
    elif "--iterations" not in names and "--nvtx" not in names:
        raise UsageError("give --iterations, or --nvtx with --iteration-range to count them")


def stats(
    given: InputSpec,
    config: Path | None = None,
    json: bool = False,
    csv: Path | None = None,
    xlsx: Path | None = None,
    force: bool = False,
    quiet: bool = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Sum GPU time by class of kernel, collective and memory operation, per iteration.

    With NVTX ranges around the iterations, also estimate the time in them that no kernel fills.

    Operands:
        trace TRACE: A trace instead of tables: .nsys-rep, .sqlite, or PyTorch's .json.

    Options:
        kernels CSV: Table cuda_gpu_kern_sum of nsys stats.
        nvtx CSV: Table nvtx_gpu_proj_trace of nsys stats.
        mem CSV: Table cuda_gpu_mem_time_sum of nsys stats.
        mem_size CSV: Table cuda_gpu_mem_size_sum of nsys stats, for sizes in the tables.
        class_map FILE: JSON: part of a kernel's name → class.  [default: the built-in categories]
        iterations N 1..: Iterations recorded.  [default: as many as ranges on each GPU]
        gpus N 1..: GPUs recorded.  [default: those of the trace; of tables 1]
        iteration_range TAG: Exact name of the iterations' NVTX ranges.
        title TEXT: Heading of the output.
        config FILE: JSON file that says all about the inputs.
        json: Print the tables as JSON, nothing else.
        csv DIR: Write the tables to CSV files in this folder.
        xlsx FILE: Write the tables to an Excel file.
    """
    from tracelens_ext.class_statistics.layout import document, text
    from tracelens_ext.class_statistics.statistics import Classifier

    if config is None:
        _check(given)
        specs: Sequence[InputSpec] = [given]
        mapping = load_class_map(given.class_map) if given.class_map is not None else None
        classifier = Classifier(mapping, str(given.class_map))
    elif names := shared.given_options(given):
        first = "a trace" if names[0] == "--trace" else names[0]
        raise UsageError(f"{first} does not go with --config, whose file says all that")
    else:
        loaded = load_configuration(config)
        specs = loaded.inputs
        classifier = Classifier(loaded.class_map, f"{config}: kernel_to_class_map")
    inputs = [path for spec in specs for path in spec.files]
    places = _places(csv, xlsx)
    check_outputs(places, inputs, force=force)
    statistics, problems = _computed(specs, classifier, reading)
    if statistics:
        report = document(statistics, problems)
        written = write_outputs(report, places, inputs, force=force) if places else []
        if json:
            print_report(report)
        elif not quiet:
            typer.echo("\n\n".join(text(found, title) for title, found in statistics), nl=False)
            tell_written(written)
    if problems:
        raise typer.Exit(1)


app.command()(stats)


def _places(csv: Path | None, xlsx: Path | None) -> Places:
    if csv is not None and csv.suffix.lower() == ".csv" and not csv.is_dir():
        raise UsageError(f"{csv}: names one file for several tables; name a folder")
    if xlsx is not None and xlsx.suffix.lower() != ".xlsx":
        raise UsageError(f"{xlsx}: an Excel file is named .xlsx")
    return ({csv: Format.csv} if csv else {}) | ({xlsx: Format.xlsx} if xlsx else {})


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
            problems.append(f"{spec.heading}: {error}")
            tell(problems[-1])
            continue
        statistics.append((spec.heading, found))
        for warning in found.warnings:
            tell(f"warning: {spec.heading}: {warning}")
        for note in found.notes:
            tell(f"{spec.heading}: {note}")
    return statistics, problems


def _read(path: Path, options: ReadingOptions) -> Trace:
    from tracelens_ext.readers import read_trace

    with reading_of(path) as progress:
        trace = read_trace(path, progress=progress, cache=chosen_cache(options), reading=options)
    tell_dropped(path, trace)
    return trace
