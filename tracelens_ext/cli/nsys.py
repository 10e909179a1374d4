"""`tracelens-ext nsys stats`: GPU time by class of kernel, of Nsight Systems tables or traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracelens_ext.cli.inputs import check_files
from tracelens_ext.cli.load import chosen_cache, reading_of, tell_dropped
from tracelens_ext.cli.outputs import write_outputs
from tracelens_ext.cli.screen import print_line, print_report, tell
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
    trace: Path | None = None,
    config: Path | None = None,
    kernels: Path | None = None,
    nvtx: Path | None = None,
    mem: Path | None = None,
    mem_size: Path | None = None,
    class_map: Path | None = None,
    iterations: int | None = None,
    gpus: int | None = None,
    iteration_range: str | None = None,
    title: str | None = None,
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
        config FILE: JSON file that says all about the inputs.
        kernels CSV: Table cuda_gpu_kern_sum of nsys stats.
        nvtx CSV: Table nvtx_gpu_proj_trace of nsys stats.
        mem CSV: Table cuda_gpu_mem_time_sum of nsys stats.
        mem_size CSV: Table cuda_gpu_mem_size_sum of nsys stats, for sizes in the tables.
        class_map FILE: JSON: part of a kernel's name → class.  [default: the built-in categories]
        iterations N 1..: Iterations recorded.  [default: as many as ranges on each GPU]
        gpus N 1..: GPUs recorded.  [default: those of the trace; of tables 1]
        iteration_range TAG: Exact name of the iterations' NVTX ranges.
        title TEXT: Heading of the output.
        json: Print the tables as JSON, nothing else.
        csv DIR: Write the tables to CSV files in this folder.
        xlsx FILE: Write the tables to an Excel file.
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
        tell(note)
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
            tell(problems[-1])
            continue
        statistics.append((spec.title, found))
        for warning in found.warnings:
            tell(f"warning: {spec.title}: {warning}")
        for note in found.notes:
            tell(f"{spec.title}: {note}")
    return statistics, problems


def _read(path: Path, options: ReadingOptions) -> Trace:
    from tracelens_ext.readers import read_trace

    with reading_of(path) as progress:
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

    report = document(statistics, problems) if json or places else None
    written = write_outputs(report, places, inputs, force=force) if report is not None else []
    if json and report is not None:
        print_report(report)
    elif not quiet:
        typer.echo("\n\n".join(text(found, title) for title, found in statistics), nl=False)
        for path in written:
            print_line(f"Wrote {path}")
