"""Lines for the terminal, whatever names are in them: files, kernels and plugins have any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.lazy import pd
    from tracelens_ext.report.formats import Format
    from tracelens_ext.report.report import Report


def print_line(text: str, *, error: bool = False) -> None:
    """Print a line; what could act on a terminal, or break the line, is shown as an escape.

    Args:
        text: the line.
        error: to standard error.
    """
    from tracelens_ext.report.terminal import safe_text

    typer.echo(safe_text(text), err=error)


def print_report(report: Report, form: Format | None = None) -> None:
    """Print a report to standard output, piece by piece."""
    from tracelens_ext.report.formats import Format
    from tracelens_ext.report.report import report_text

    for piece in report_text(report, form or Format.json):
        typer.echo(piece, nl=False)


def print_json(
    title: str,
    trace: object,
    tables: Mapping[str, pd.DataFrame],
    notes: Sequence[str] = (),
    *,
    facts: Sequence[tuple[str, object]] = (),
    members: Mapping[str, object] | None = None,
) -> None:
    """Print tables of a trace as one JSON document."""
    from tracelens_ext.report.report import Report

    told: list[tuple[str, object]] = [("Trace", str(trace)), *facts]
    print_report(Report(title, tables, told, notes, members=members or {}))
