"""`tracelens-ext nsys stats`: GPU time by class of kernel, of Nsight Systems tables or traces.

And `tracelens-ext chart`: runs of serving engines as stacked bars, GPU categories and the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tracelens_ext.analysis.nsys_statistics import configuration
from tracelens_ext.cli import load, screen
from tracelens_ext.cli import options as shared
from tracelens_ext.compare.engine_chart.specification import (
    NS_PER_S,
    check_models,
    known_models,
    parse_inputs,
)
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.report.writing import OutputFormat, Places
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.analysis.nsys_statistics.statistics import Classifier, ClassStatistics
    from tracelens_ext.compare.engine_chart.runs import EngineRun
    from tracelens_ext.trace import Trace

app = typer.Typer(
    help="Statistics of Nsight Systems reports.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    pass


def _check(given: configuration.InputSpec) -> None:
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
    given: configuration.InputSpec,
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
    from tracelens_ext.analysis.nsys_statistics.layout import document, text
    from tracelens_ext.analysis.nsys_statistics.statistics import Classifier

    if config is None:
        _check(given)
        specs: Sequence[configuration.InputSpec] = [given]
        mapping = (
            configuration.load_class_map(given.class_map) if given.class_map is not None else None
        )
        classifier = Classifier(mapping, str(given.class_map))
    elif names := shared.given_options(given):
        first = "a trace" if names[0] == "--trace" else names[0]
        raise UsageError(f"{first} does not go with --config, whose file says all that")
    else:
        loaded = configuration.load_configuration(config)
        specs = loaded.inputs
        classifier = Classifier(loaded.class_map, f"{config}: kernel_to_class_map")
    inputs = [path for spec in specs for path in spec.files]
    places = _places(csv, xlsx)
    screen.check_outputs(places, inputs, force=force)
    statistics, problems = _computed(specs, classifier, reading)
    if statistics:
        report = document(statistics, problems)
        written = screen.write_outputs(report, places, inputs, force=force) if places else []
        if json:
            screen.print_report(report)
        elif not quiet:
            typer.echo("\n\n".join(text(found, title) for title, found in statistics), nl=False)
            screen.tell_written(written)
    if problems:
        raise typer.Exit(1)


app.command()(stats)


def _places(csv: Path | None, xlsx: Path | None) -> Places:
    if csv is not None and csv.suffix.lower() == ".csv" and not csv.is_dir():
        raise UsageError(f"{csv}: names one file for several tables; name a folder")
    if xlsx is not None and xlsx.suffix.lower() != ".xlsx":
        raise UsageError(f"{xlsx}: an Excel file is named .xlsx")
    return ({csv: OutputFormat.csv} if csv else {}) | ({xlsx: OutputFormat.xlsx} if xlsx else {})


def _computed(
    specs: Sequence[configuration.InputSpec], classifier: Classifier, reading: ReadingOptions
) -> tuple[list[tuple[str, ClassStatistics]], list[str]]:
    """The statistics of each input, and what is wrong with those that have none.

    Doubts, and all problems but that of a single input, are told on standard error.
    """
    from tracelens_ext.analysis.nsys_statistics.inputs import statistics_of

    statistics = []
    problems = []
    for spec in specs:
        try:
            load.check_files([] if spec.missing else spec.files)
            found = statistics_of(spec, classifier, _read, reading)
        except TracelensError as error:
            if len(specs) == 1:
                raise
            problems.append(f"{spec.heading}: {error}")
            screen.tell(problems[-1])
            continue
        statistics.append((spec.heading, found))
        warnings = (f"warning: {spec.heading}: {warning}" for warning in found.warnings)
        for told in (*warnings, *(f"{spec.heading}: {note}" for note in found.notes)):
            screen.tell(told)
    return statistics, problems


def _read(path: Path, options: ReadingOptions) -> Trace:
    from tracelens_ext.readers import read_trace

    with load.reading_of(path) as progress:
        trace = read_trace(
            path, progress=progress, cache=load.chosen_cache(options), reading=options
        )
    load.tell_dropped(path, trace)
    return trace


_SIDE_BY_SIDE = 3  # runs whose shares stand beside their times


class ChartCommand(shared.CarefulCommand):
    """The command, with the engines and models at the end of its help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # click's, or typer's own copy of it
        """Write the engines and models that there are maps for."""
        models = known_models().items()
        rows = [(safe_text(engine), safe_text(", ".join(own))) for engine, own in models]
        with formatter.section("Engines and their models"):
            formatter.write_dl(rows or [("none", "no plugin brings one; add yours with --maps")])
        super().format_epilog(ctx, formatter)


COMMAND_CLASS = ChartCommand


def chart(
    inputs: list[str] | None = None,
    in_file: list[str] | None = None,
    out_dir: Path = Path(),
    title: str = "",
    per_device: bool = False,
    by_phase: bool = False,
    nsys_cmd: str | None = None,
    force: bool = False,
    quiet: bool = False,
    *,
    rules: shared.RuleOptions,
    reading: ReadingOptions,
) -> None:
    """Draw where the elapsed time of runs went: a stacked bar each, by category of GPU work.

    Writes result.html (the chart, and its numbers in a table) and result.csv (which kernels make
    up each category).

    Operands:
        inputs FILE,ENGINE,MODEL,SECONDS: A trace (.nsys-rep, .sqlite, PyTorch's .json), which map
            to use, and how long the run takes without profiling; 0: the time in the trace.

    Options:
        in_file --in-file --in_file --infile FILE,ENGINE,MODEL,SECONDS: The same, as an option.
        out_dir --out-dir --out_dir DIR: Where result.html and result.csv go.  [default: this
            folder]
        title TEXT: Heading of the chart.
        per_device: A bar for each GPU, not one for all of a trace.
        by_phase: A bar for each phase of serving: prefill, decode …
        nsys_cmd --nsys-cmd --nsys_cmd PROGRAM: The same as --nsys.
        categorizer: Use these categories for all inputs, such as builtin or jax; engine and model
            are labels then, and FILE alone will do.
        maps FILE: More engines and models: a JSON file, or a folder of them.
    """
    from tracelens_ext.compare.engine_chart.page import check_results, write_results
    from tracelens_ext.compare.engine_chart.runs import grouped, measure

    by_map = rules.categorizer is None
    wanted = parse_inputs([*(in_file or ()), *(inputs or ())], bare_files=not by_map)
    if by_phase and per_device:
        raise UsageError("--by-phase and --per-device are two ways to split a run; give one")
    if not wanted:
        raise UsageError(
            "name an input, FILE,ENGINE,MODEL,SECONDS; see 'tracelens-ext chart --help'"
        )
    if by_map:
        passed_over: list[str] = []
        check_models(wanted, known_models(rules.maps or (), passed_over), passed_over)
    files = [given.path for given in wanted]
    for note in check_results(out_dir, files, force=force):
        screen.tell(note)
    load.check_files(files)
    if nsys_cmd is not None:
        reading = replace(reading, nsys=nsys_cmd)
    split = "device" if per_device else "phase" if by_phase else ""
    told: set[str] = set()
    runs: list[EngineRun] = []
    for position, each in enumerate(wanted):  # only the measures stay in memory
        chosen = replace(rules, categorizer=rules.categorizer or each.map_name)
        analyzer = load.analyze(each.path, shared.AnalysisOptions(**vars(chosen), reading=reading))
        runs += measure(analyzer.work, each, position, split)
        load.show_problems(analyzer.problems, told)
    for run in runs:
        for warning in run.warnings:
            screen.tell(f"{run.label}: {warning}")
    written = write_results(out_dir, runs, title=title)
    if quiet:
        return
    notes = grouped((str(number), run.notes) for number, run in enumerate(runs, 1))
    lines = [f"{numbers}: {note}" for note, numbers in notes]
    screen.show(screen.trace_report("Chart", "", {}, lines), _blocks(runs))
    screen.tell_written(written)


def _blocks(runs: Sequence[EngineRun]) -> Iterator[screen.Block]:
    """A line a run, and the table."""
    from tracelens_ext.report.html_figures import duration_text

    for number, run in enumerate(runs, 1):
        elapsed, gpu = (duration_text(ns / 1e6) for ns in (run.elapsed_ns, run.gpu_ns))
        line = f"{number}: {run.label}; elapsed {elapsed} ({run.elapsed_from}), GPU {gpu}"
        yield line.replace("\u00a0", " ")
    # Numbers for the runs: their labels would not fit, and could say anything about units.
    yield screen.Part("Elapsed time by category", _shown(runs))


def _shown(runs: Sequence[EngineRun]) -> pd.DataFrame:
    import numpy as np

    from tracelens_ext.compare.engine_chart.runs import TOTAL, category_table

    table = category_table(runs)
    short = max(run.elapsed_ns for run in runs) < NS_PER_S
    unit, scale, total = ("ms", 1e3, "total_elapsed") if short else ("sec", 1.0, TOTAL)
    columns: dict[str, object] = {"category": [*map(str, table.index), total]}
    for place, run in enumerate(runs):
        elapsed = run.elapsed_ns / NS_PER_S
        column = np.append(table[place].to_numpy(), elapsed)
        columns[f"{place + 1} ({unit})"] = scale * column
        columns[f"{place + 1} (%)"] = 100.0 * column / (elapsed or 1.0)
    # Of many runs the shares come last: what does not fit is left out from the end.
    names = [*columns]
    few = len(runs) <= _SIDE_BY_SIDE
    return pd.DataFrame(columns)[names if few else [names[0], *names[1::2], *names[2::2]]]
