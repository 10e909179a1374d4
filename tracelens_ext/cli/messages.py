"""Lines for the terminal, whatever names are in them: files, kernels and plugins have any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tracelens_ext.report.formats import Document, Format


def say(text: str, *, error: bool = False) -> None:
    """Print a line; what could act on a terminal, or break the line, is shown as an escape.

    Args:
        text: the line.
        error: to standard error.
    """
    from tracelens_ext.report.terminal import safe_text

    typer.echo(safe_text(text), err=error)


def print_document(document: Document, form: Format | None = None) -> None:
    """Print a document to standard output, piece by piece.

    Args:
        document: the document.
        form: JSON, unless told otherwise.
    """
    from tracelens_ext.report.formats import Format, document_text

    for piece in document_text(document, form or Format.json):
        typer.echo(piece, nl=False)
