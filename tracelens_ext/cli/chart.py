"""`tracelens-ext chart`: runs of serving engines as stacked bars, GPU categories and the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.command import Command
from tracelens_ext.cli.inputs import check_files
from tracelens_ext.cli.messages import print_line
from tracelens_ext.errors import UsageError
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.chart.runs import Run
    from tracelens_ext.chart.specification import ChartInput
    from tracelens_ext.cli.load import AnalysisOptions

_FORM = "FILE,ENGINE,MODEL,SECONDS"


class ChartCommand(Command):
    """The command, with the engines and models at the end of its help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # click's, or typer's own copy of it
        """Write the engines and models that there are maps for, and an example."""
        from tracelens_ext.chart.specification import known_models
        from tracelens_ext.report.terminal import safe_text

        super().format_epilog(ctx, formatter)
        rows = [
            (safe_text(engine), safe_text(", ".join(models)))
            for engine, models in known_models().items()
        ]
        with formatter.section("Engines and their models"):
            formatter.write_dl(rows or [("none", "no plugin brings one; add yours with --maps")])
        with formatter.section("Example"):
            formatter.write_text(
                "tracelens-ext chart run1.nsys-rep,vllm,llama,100 run2.nsys-rep,vllm,gpt-oss,102"
                ' --out-dir results --title "Comparison of vLLM Models"'
            )


def chart(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=_FORM,
            help="A trace (.nsys-rep, .sqlite, PyTorch's .json), which map to use, and how long"
            " the run takes without profiling; 0: the time in the trace.",
            show_default=False,
        ),
    ] = None,
    in_file: Annotated[
        list[str] | None,
        typer.Option(
            "--in-file", "--in_file", "--infile", metavar=_FORM, help="The same, as an option."
        ),
    ] = None,
    out_dir: Annotated[
        Path,
        typer.Option(
            "--out-dir",
            "--out_dir",
            metavar="DIR",
            help="Where result.html and result.csv go.  [default: this folder]",
            show_default=False,
        ),
    ] = Path(),
    title: Annotated[str, typer.Option(help="Heading of the chart.", show_default=False)] = "",
    per_device: Annotated[
        bool, typer.Option("--per-device", help="A bar for each GPU, not one for all of a trace.")
    ] = False,
    by_phase: Annotated[
        bool,
        typer.Option("--by-phase", help="A bar for each phase of serving: prefill, decode …"),
    ] = False,
    nsys_cmd: Annotated[
        str | None,
        typer.Option("--nsys-cmd", "--nsys_cmd", metavar="PROGRAM", help="The same as --nsys."),
    ] = None,
    categorizer: Annotated[
        str | None,
        typer.Option(
            "--categorizer",
            help="Use these categories for all inputs, such as builtin or jax; engine and model"
            " are labels then, and FILE alone will do.",
        ),
    ] = None,
    maps: Annotated[
        list[Path] | None,
        typer.Option("--maps", help="More engines and models: a JSON file, or a folder of them."),
    ] = None,
    rules: shared.Rules = None,
    without_pack: shared.WithoutPack = None,
    force: shared.Force = False,
    quiet: shared.Quiet = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Draw where the elapsed time of runs went: a stacked bar each, by category of GPU work.

    Writes result.html (the chart, and its numbers in a table) and result.csv (which kernels make
    up each category).
    """
    from tracelens_ext.chart.page import check_results, write_results
    from tracelens_ext.chart.specification import check_models, known_models, parse_inputs
    from tracelens_ext.cli.load import AnalysisOptions

    wanted = parse_inputs([*(in_file or ()), *(inputs or ())], bare_files=categorizer is not None)
    if by_phase and per_device:
        raise UsageError("--by-phase and --per-device are two ways to split a run; give one")
    if not wanted:
        raise UsageError(f"name an input, {_FORM}; see 'tracelens-ext chart --help'")
    if categorizer is None:
        passed_over: list[str] = []
        check_models(wanted, known_models(maps or (), passed_over), passed_over)
    files = [given.path for given in wanted]
    for note in check_results(out_dir, files, force=force):
        print_line(f"tracelens-ext: {note}", error=True)
    check_files(files)
    if nsys_cmd is not None:
        reading = replace(reading, nsys=nsys_cmd)
    options = [
        AnalysisOptions(
            True,
            rules,
            given.map_name if categorizer is None else categorizer,
            maps=maps,
            without_packs=without_pack,
            reading=reading,
        )
        for given in wanted
    ]
    split = "device" if per_device else "phase" if by_phase else ""
    runs = _measured(wanted, options, split=split)
    for run in runs:
        for warning in run.warnings:
            print_line(f"tracelens-ext: {run.label}: {warning}", error=True)
    written = write_results(out_dir, runs, title=title)
    if quiet:
        return
    from rich.console import Console

    from tracelens_ext.cli.chart_view import show_runs

    show_runs(runs, Console())
    for path in written:
        print_line(f"Wrote {path}")


def _measured(
    wanted: Sequence[ChartInput],
    options: Sequence[AnalysisOptions],
    *,
    split: str,
) -> list[Run]:
    """Read and measure the inputs one after the other; only the measures stay in memory."""
    from tracelens_ext.chart.runs import measure_devices, measure_phases, measure_run
    from tracelens_ext.cli.load import analyze, show_problems

    told: set[str] = set()
    runs: list[Run] = []
    for position, (given, how) in enumerate(zip(wanted, options, strict=True)):
        analyzer = analyze(given.path, how)
        if split == "device":
            runs += measure_devices(analyzer.work, given, position)
        elif split == "phase":
            runs += measure_phases(analyzer.work, given, position)
        else:
            runs.append(measure_run(analyzer.work, given, position))
        show_problems(analyzer.problems, told)
    return runs
