"""`tracelens-ext chart`: runs of serving engines as stacked bars of GPU time by category."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Force,
    Quiet,
    ReadingFlags,
    RuleOptions,
    UserRules,
)
from tracelens_ext.cli.screen import Block, Part, show, tell, tell_written, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from tracelens_ext.compare.engine_chart.runs import EngineRun
    from tracelens_ext.compare.engine_chart.specification import ChartInput
    from tracelens_ext.settings import ReadingOptions

#: The categorizer for traces that are given without an engine and a model.
_BUILT_IN_CATEGORIES = "builtin"
_SIDE_BY_SIDE = 3  # runs whose shares stand beside their times


@dataclass(frozen=True)
class ChartRuleOptions(RuleOptions):
    """The rules that give kernels their categories: a map for each engine and model."""

    rules: UserRules = None
    categorizer: Annotated[
        str | None,
        typer.Option(
            help=(
                "Use these categories for all inputs, such as builtin or jax. Engine "
                "and model are then only labels, and FILE alone is enough."
            ),
        ),
    ] = None
    maps: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="More engine and model maps: a JSON file, or a folder of them.",
        ),
    ] = None


def chart(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE[,ENGINE,MODEL,SECONDS]",
            help=(
                "A trace (.nsys-rep, .sqlite or PyTorch .json), the map to use, and "
                "the run time in seconds without profiling (0: take it from the "
                "trace). A trace alone uses the built-in categories."
            ),
        ),
    ] = None,
    in_file: Annotated[
        list[str] | None,
        typer.Option(
            "--in-file",
            "--in_file",
            "--infile",
            metavar="FILE,ENGINE,MODEL,SECONDS",
            help="Same as the arguments; may be repeated.",
        ),
    ] = None,
    out_dir: Annotated[
        Path,
        typer.Option(
            "--out-dir",
            "--out_dir",
            metavar="DIR",
            help="Output folder for result.html and result.csv.  [default: this folder]",
            show_default=False,
        ),
    ] = Path(),
    title: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Title of the chart.", show_default=False),
    ] = "",
    per_device: Annotated[
        bool,
        typer.Option(
            "--per-device",
            help="Draw one bar for each GPU instead of one for each trace.",
        ),
    ] = False,
    by_phase: Annotated[
        bool,
        typer.Option(
            "--by-phase", help="Draw one bar for each serving phase: prefill, decode …"
        ),
    ] = False,
    nsys_cmd: Annotated[
        str | None,
        typer.Option(
            "--nsys-cmd", "--nsys_cmd", metavar="PROGRAM", help="Same as --nsys."
        ),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    *,
    rules: ChartRuleOptions,
    reading: ReadingFlags,
) -> None:
    """Draw the elapsed time of each run as a stacked bar, by category of GPU work.

    Writes result.html (the chart, and its numbers in a table) and result.csv (which kernels make
    up each category).
    """
    from tracelens_ext.cli.named_traces import check_files
    from tracelens_ext.compare.engine_chart.page import check_results, write_results
    from tracelens_ext.compare.engine_chart.runs import names_of_notes
    from tracelens_ext.compare.engine_chart.specification import (
        are_bare_files,
        parse_inputs,
    )

    specifications = [*(in_file or ()), *(inputs or ())]
    if rules.categorizer is None and are_bare_files(specifications):
        rules = replace(rules, categorizer=_BUILT_IN_CATEGORIES)
    has_map_for_each = rules.categorizer is None
    run_inputs = parse_inputs(specifications, bare_files=not has_map_for_each)
    split = _split_of_runs(per_device=per_device, by_phase=by_phase)
    if not run_inputs:
        raise UsageError(
            "give a trace, or FILE,ENGINE,MODEL,SECONDS; see 'tracelens-ext chart "
            "--help'"
        )
    if has_map_for_each:
        _check_maps(run_inputs, rules)
    files = [run_input.path for run_input in run_inputs]
    for note in check_results(out_dir, files, force=force):
        tell(note)
    check_files(files)
    chosen_reading: ReadingOptions = reading
    if nsys_cmd is not None:
        chosen_reading = replace(reading, nsys=nsys_cmd)
    runs = _measured_runs(
        run_inputs=run_inputs, rules=rules, reading=chosen_reading, split=split
    )
    for run in runs:
        for warning in run.warnings:
            tell(f"{run.label}: {warning}")
    written = write_results(out_dir, runs, title=title)
    if quiet:
        return
    notes = names_of_notes(
        (str(number), run.notes) for number, run in enumerate(runs, 1)
    )
    lines = [f"{numbers}: {note}" for note, numbers in notes]
    show(trace_report(title="Chart", trace="", tables={}, notes=lines), _blocks(runs))
    tell_written(written)


def _split_of_runs(*, per_device: bool, by_phase: bool) -> str:
    """Return what a run is split by into several bars: `device`, `phase`, or nothing.

    Raises:
        UsageError: both are given.
    """
    if by_phase and per_device:
        raise UsageError(
            "--by-phase and --per-device both split a run; give only one of them"
        )
    if per_device:
        return "device"
    if by_phase:
        return "phase"
    return ""


def _check_maps(run_inputs: Sequence[ChartInput], rules: RuleOptions) -> None:
    """Check that there is a map for the engine and the model of each run."""
    from tracelens_ext.compare.engine_chart.specification import (
        check_models,
        known_models,
    )

    skipped_files: list[str] = []
    models = known_models(rules.maps or (), skipped_files)
    check_models(run_inputs, models, skipped_files)


def _measured_runs(
    run_inputs: Sequence[ChartInput],
    rules: RuleOptions,
    reading: ReadingOptions,
    split: str,
) -> list[EngineRun]:
    """Read traces one after the other, and keep only their measurements in memory."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import show_problems
    from tracelens_ext.compare.engine_chart.runs import measure

    shown_problems: set[str] = set()
    runs: list[EngineRun] = []
    for position, run_input in enumerate(run_inputs):
        analysis = AnalysisOptions(
            rules=rules.rules,
            categorizer=rules.categorizer or run_input.map_name,
            maps=rules.maps,
            disable_pack=rules.disable_pack,
            reading=reading,
        )
        analyzer = analyze(run_input.path, analysis)
        runs += measure(
            gpu_events=analyzer.gpu_events,
            chart_input=run_input,
            position=position,
            split=split,
        )
        show_problems(analyzer.problems, shown_problems)
    return runs


def _blocks(runs: Sequence[EngineRun]) -> Iterator[Block]:
    """Yield a line for each run, and the table."""
    from tracelens_ext.report.html_texts import duration_text

    for number, run in enumerate(runs, 1):
        elapsed = duration_text(run.elapsed_ns / 1e6)
        gpu = duration_text(run.gpu_ns / 1e6)
        line = (
            f"{number}: {run.label}; elapsed {elapsed} ({run.elapsed_from}), GPU {gpu}"
        )
        yield line.replace("\u00a0", " ")
    # Columns have the numbers of runs: labels would not fit, and could end like a unit.
    yield Part("Elapsed time by category", _time_table(runs))


def _time_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return a table with a row for each category, and a time and a share for each run."""
    import numpy as np

    from tracelens_ext.compare.engine_chart.runs import TOTAL, category_table
    from tracelens_ext.compare.engine_chart.specification import NS_PER_S

    by_category = category_table(runs)
    unit = "sec"
    units_per_s = 1.0
    total_name = TOTAL
    if max(run.elapsed_ns for run in runs) < NS_PER_S:
        unit = "ms"
        units_per_s = 1e3
        total_name = "total_elapsed"
    categories = [str(category) for category in by_category.index]
    times: dict[str, object] = {}
    shares: dict[str, object] = {}
    for position, run in enumerate(runs):
        elapsed = run.elapsed_ns / NS_PER_S
        seconds = np.append(by_category[position].to_numpy(), elapsed)
        times[f"{position + 1} ({unit})"] = units_per_s * seconds
        shares[f"{position + 1} (%)"] = 100.0 * seconds / (elapsed or 1.0)
    table = pd.DataFrame({"category": categories + [total_name], **times, **shares})
    if len(runs) > _SIDE_BY_SIDE:
        # The last columns are left out where room is short, so the shares come last.
        return table
    columns = ["category"]
    for time_name, share_name in zip(times, shares, strict=True):
        columns += [time_name, share_name]
    return table[columns]


def engines_and_models() -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return the section of the help that lists the engines and models with a map."""
    from tracelens_ext.compare.engine_chart.specification import known_models
    from tracelens_ext.report.terminal import safe_text

    rows = [
        (safe_text(engine), safe_text(", ".join(models)))
        for engine, models in known_models().items()
    ]
    nothing = [("none", "no installed plugin provides one; add your own with --maps")]
    return {"Engines and their models": rows or nothing}


COMMAND = Command(
    name="chart",
    summary="Draw the time of each run as a stacked bar.",
    function=chart,
    group="Compare",
    examples=(
        "chart run.nsys-rep,vllm,llama,100 --out-dir results",
        "chart a.sqlite,vllm,llama,0 b.sqlite,vllm,gpt-oss,0 --title 'Two models'",
        "chart trace.json.gz --categorizer builtin --per-device",
    ),
    help_sections=engines_and_models,
)
