"""The commands and their names."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens_ext.cli.cache import app as cache
from tracelens_ext.cli.chart import ChartCommand, chart
from tracelens_ext.cli.compare import compare
from tracelens_ext.cli.demo import demo
from tracelens_ext.cli.explain import explain
from tracelens_ext.cli.fleet import fleet
from tracelens_ext.cli.gaps import gaps
from tracelens_ext.cli.iterations import iterations
from tracelens_ext.cli.kernels import kernels
from tracelens_ext.cli.nsys import app as nsys
from tracelens_ext.cli.plugins import app as plugins
from tracelens_ext.cli.reading import reads_traces
from tracelens_ext.cli.report import report
from tracelens_ext.cli.rules import app as rules
from tracelens_ext.cli.tree import tree

app = typer.Typer(
    help="Where did the GPU time go? Call tree, kernel categories and reports for GPU traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(reads_traces(report))
app.command()(reads_traces(compare))
app.command()(reads_traces(iterations))
app.command()(reads_traces(tree))
app.command()(reads_traces(kernels))
app.command()(reads_traces(gaps))
app.command(cls=ChartCommand)(reads_traces(chart))
app.command()(reads_traces(fleet))
app.command()(demo)
app.command()(explain)
app.add_typer(nsys, name="nsys")
app.add_typer(rules, name="rules")
app.add_typer(plugins, name="plugins")
app.add_typer(cache, name="cache")


def _show_version(wanted: bool) -> None:
    if wanted:
        from tracelens_ext import __version__

        typer.echo(f"tracelens-ext {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
