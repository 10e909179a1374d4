"""The output formats of a report: the same tables as Excel, CSV, JSON, Markdown or Parquet."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.report.atomic import written_beside

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pandas as pd

    from tracelens_ext.report.charts import Chart


class Format(StrEnum):
    """How the tables of a report are written."""

    xlsx = "xlsx"
    csv = "csv"
    json = "json"
    markdown = "markdown"
    parquet = "parquet"

    @property
    def is_folder(self) -> bool:
        """Whether the format is a folder with a file a table."""
        return self in (Format.csv, Format.parquet)

    @property
    def suffix(self) -> str:
        """What the name of a file ends in; of one table, for a format that is a folder."""
        return ".md" if self is Format.markdown else f".{self.value}"


#: What the name of an output file can end in, and the format that it means.
FORMAT_OF_SUFFIX = {
    ".xlsx": Format.xlsx,
    ".json": Format.json,
    ".md": Format.markdown,
    ".markdown": Format.markdown,
}


@dataclass(frozen=True)
class Document:
    """A report, whatever it is of.

    Attributes:
        title: the heading.
        sheets: the tables by name, in order.
        facts: label and value of what was analysed.
        notes: what the reader should know first, a sentence each.
        descriptions: what a table shows, by its name.
        charts: what to draw in a workbook.
        page_charts: what to draw on a page; None for what the tables allow.
        page_sheets: tables that only a page has, after the others, by name.
    """

    title: str
    sheets: Mapping[str, pd.DataFrame]
    facts: Sequence[tuple[str, object]] = ()
    notes: Sequence[str] = ()
    descriptions: Mapping[str, str] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    page_charts: Sequence[Chart] | None = None
    page_sheets: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def require_format(chosen: Format) -> None:
    """Check that a format can be written here, before a trace is read for nothing.

    Raises:
        UsageError: a package is missing; the message says what to install.
    """
    import importlib.util

    if chosen is Format.parquet and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs pyarrow, not installed here; run: pip install 'tracelens-ext[parquet]'"
        )


def write_document(document: Document, chosen: Format, path: str | os.PathLike[str]) -> list[Path]:
    """Write a report.

    Each file is written beside its target and renamed, and no file of a folder takes its place
    before all are written.

    Args:
        document: the report.
        chosen: the format.
        path: the file; for a format that is a folder, the folder.

    Returns:
        The files written.

    Raises:
        UsageError: a package that the format needs is missing.
        OutputError: a file cannot be written; whatever was there is untouched.
    """
    require_format(chosen)
    if chosen is Format.xlsx:
        from tracelens_ext.report.excel import write_workbook

        write_workbook(
            path,
            document.sheets,
            facts=document.facts,
            charts=document.charts,
            notes=document.notes,
            descriptions=document.descriptions,
            title=document.title,
        )
        return [Path(path)]
    if chosen is Format.csv:
        from tracelens_ext.report.csv_files import write_csvs

        return write_csvs(path, document.sheets)
    if chosen is Format.parquet:
        from tracelens_ext.report.parquet_files import write_parquets

        return write_parquets(path, document.sheets)
    return [_write_text(path, document_text(document, chosen))]


def document_text(document: Document, chosen: Format) -> Iterator[str]:
    """A report as JSON or Markdown, in pieces.

    Raises:
        ValueError: the format is no text.
    """
    if chosen is Format.json:
        from tracelens_ext.report.json_text import json_text

        return json_text(document)
    if chosen is Format.markdown:
        from tracelens_ext.report.markdown_text import markdown_text

        return markdown_text(document)
    raise ValueError(f"{chosen} is no text")


def _write_text(path: str | os.PathLike[str], pieces: Iterable[str]) -> Path:
    with (
        written_beside(path) as beside,
        beside.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        stream.writelines(pieces)
    return Path(path)
