"""Write a report in one or several formats."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from tracelens_ext.compatibility.earlier_names import earlier_table_name
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.atomic_files import written_beside
from tracelens_ext.report.report import Report


@contextmanager
def fast_pandas() -> Iterator[None]:
    """Build and write tables faster, as a context manager or a decorator; the result is the same.

    Garbage collection is off: tables have hardly any cycles, and walking all objects of all modules
    takes a tenth of the time of a small trace. Texts are stored as Python objects: with pyarrow
    installed, pandas would copy every text into Arrow arrays and back.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        with pd.option_context("mode.string_storage", "python"):
            yield
    finally:
        if was_collecting:
            gc.enable()


class OutputFormat(StrEnum):
    """A format for the tables of a report."""

    xlsx = "xlsx"
    csv = "csv"
    json = "json"
    markdown = "markdown"
    parquet = "parquet"

    @property
    def is_folder(self) -> bool:
        """True if the format is a folder with one file per table."""
        return self in (OutputFormat.csv, OutputFormat.parquet)

    @property
    def suffix(self) -> str:
        """The suffix of the file, or of each file of a folder."""
        return ".md" if self is OutputFormat.markdown else f".{self.value}"


#: The HTML page, which is not an `OutputFormat` because it has an option of its own.
PAGE: Final = "html"
#: The files and folders to write, and the format of each.
Places = Mapping[Path, OutputFormat | Literal["html"]]
#: Suffix of the name of an output file → its format.
FORMAT_OF_SUFFIX = {
    output_format.suffix: output_format
    for output_format in OutputFormat
    if not output_format.is_folder
}
FORMAT_OF_SUFFIX[".markdown"] = OutputFormat.markdown


def require_format(chosen: OutputFormat | Literal["html"]) -> None:
    """Raise a UsageError if a format needs a package that is not installed."""
    import importlib.util

    if chosen is OutputFormat.parquet and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed; run: pip install "
            "'tracelens-ext[parquet]'"
        )
    if not isinstance(chosen, OutputFormat):
        from tracelens_ext.report.html import require_html_extra

        require_html_extra()


def check_places(
    places: Places, inputs: Sequence[str | Path], *, force: bool
) -> list[str]:
    """Refuse to overwrite an input, or a file that another program wrote, before anything is read.

    The files in a folder are checked later, when they are written.

    Returns:
        A line for each folder that a killed run left unfinished.

    Raises:
        OutputError: a place cannot be written to.
    """
    from tracelens_ext.report.manifest import (
        check_output,
        refuse_input,
        unfinished_note,
    )

    notes: list[str] = []
    for path, chosen in places.items():
        if isinstance(chosen, OutputFormat) and chosen.is_folder:
            refuse_input(path, inputs)
            notes += unfinished_note(path)
        else:
            check_output(path, inputs, force=force)
    return notes


@fast_pandas()
def write_report(
    report: Report,
    places: Places,
    inputs: Sequence[str | Path] = (),
    *,
    force: bool = False,
) -> list[Path]:
    """Write a report; a file or folder replaces an existing one only when it is complete."""
    for path, chosen in places.items():
        require_format(chosen)
        if chosen == PAGE:
            from tracelens_ext.report.html import write_html

            write_html(path, report)
        elif chosen is OutputFormat.xlsx:
            from tracelens_ext.report.excel import write_workbook

            write_workbook(path, report)
        elif OutputFormat(chosen).is_folder:
            from tracelens_ext.report.formats import file_names, write_tables
            from tracelens_ext.report.manifest import check_folder

            suffix = OutputFormat(chosen).suffix
            table_names = map(earlier_table_name, report.sheets)
            check_folder(path, file_names(table_names, suffix), inputs, force=force)
            write_tables(path, report.sheets, suffix)
        else:
            text = report_text(report, OutputFormat(chosen))
            with (
                written_beside(path) as new,
                new.open("w", encoding="utf-8", newline="\n") as f,
            ):
                f.writelines(text)
    return list(places)


def report_text(report: Report, chosen: OutputFormat) -> Iterator[str]:
    """Yield a report as JSON or Markdown, in pieces."""
    from tracelens_ext.report.formats import json_text, markdown_text

    writers = {OutputFormat.json: json_text, OutputFormat.markdown: markdown_text}
    if chosen not in writers:
        raise ValueError(f"{chosen} is not a string")
    return writers[chosen](report)
