"""`tracelens-ext chart`: runs of serving engines as stacked bars, GPU categories and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.chart.specification import NS_PER_S, check_models, known_models, parse_inputs
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, check_files, show_problems
from tracelens_ext.cli.options import CarefulCommand
from tracelens_ext.cli.outputs import tell_written
from tracelens_ext.cli.screen import Block, Part, show, tell, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.chart.runs import Run

_SIDE_BY_SIDE = 3  # runs whose shares stand beside their times

_FORM = "FILE,ENGINE,MODEL,SECONDS"


class ChartCommand(CarefulCommand):
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
    screen: shared.Screen,
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
    from tracelens_ext.chart.page import check_results, write_results
    from tracelens_ext.chart.runs import grouped, measure

    by_map = rules.categorizer is None
    wanted = parse_inputs([*(in_file or ()), *(inputs or ())], bare_files=not by_map)
    if by_phase and per_device:
        raise UsageError("--by-phase and --per-device are two ways to split a run; give one")
    if not wanted:
        raise UsageError(f"name an input, {_FORM}; see 'tracelens-ext chart --help'")
    if by_map:
        passed_over: list[str] = []
        check_models(wanted, known_models(rules.maps or (), passed_over), passed_over)
    files = [given.path for given in wanted]
    for note in check_results(out_dir, files, force=force):
        tell(note)
    check_files(files)
    if nsys_cmd is not None:
        reading = replace(reading, nsys=nsys_cmd)
    split = "device" if per_device else "phase" if by_phase else ""
    told: set[str] = set()
    runs: list[Run] = []
    for position, each in enumerate(wanted):  # only the measures stay in memory
        chosen = rules.categorizer or each.map_name
        how = shared.AnalysisOptions(
            rules.rules, chosen, rules.maps, rules.without_pack, reading=reading
        )
        analyzer = analyze(each.path, how)
        runs += measure(analyzer.work, each, position, split)
        show_problems(analyzer.problems, told)
    for run in runs:
        for warning in run.warnings:
            tell(f"{run.label}: {warning}")
    written = write_results(out_dir, runs, title=title)
    if quiet:
        return
    notes = grouped((str(number), run.notes) for number, run in enumerate(runs, 1))
    lines = [f"{numbers}: {note}" for note, numbers in notes]
    show(trace_report("Chart", "", {}, lines), _blocks(runs), all_notes=screen.notes)
    tell_written(written)


def _blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """A line a run, and the table."""
    from tracelens_ext.report.html_figures import duration_text

    for number, run in enumerate(runs, 1):
        elapsed, gpu = duration_text(run.elapsed_ns / 1e6), duration_text(run.gpu_ns / 1e6)
        line = f"{number}: {run.label}; elapsed {elapsed} ({run.elapsed_from}), GPU {gpu}"
        yield line.replace("\u00a0", " ")
    # Numbers for the runs: their labels would not fit, and could say anything about units.
    yield Part("Elapsed time by category", _shown(runs))


def _shown(runs: Sequence[Run]) -> pd.DataFrame:
    import numpy as np

    from tracelens_ext.chart.runs import TOTAL, category_table

    table = category_table(runs)
    short = max(run.elapsed_ns for run in runs) < NS_PER_S
    unit, scale, total = ("ms", 1e3, "total_elapsed") if short else ("sec", 1.0, TOTAL)
    columns: dict[str, object] = {}
    for place, run in enumerate(runs):
        elapsed = run.elapsed_ns / NS_PER_S
        column = np.append(table[place].to_numpy(), elapsed)
        columns[f"{place + 1} ({unit})"] = scale * column
        columns[f"{place + 1} (%)"] = 100.0 * column / (elapsed or 1.0)
    # Of many runs the shares come last: what does not fit is left out from the end.
    names = [*columns]
    names = names if len(runs) <= _SIDE_BY_SIDE else [*names[::2], *names[1::2]]
    return pd.DataFrame({"category": [*map(str, table.index), total], **columns})[
        ["category", *names]
    ]
