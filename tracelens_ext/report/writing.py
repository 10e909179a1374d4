"""How a report is written: in any formats, to any places."""

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
from tracelens_ext.report.manifest import written_beside
from tracelens_ext.report.report import Report


@contextmanager
def fast_pandas() -> Iterator[None]:
    """Make the tables of a report, and write them, with less to do; usable as a decorator.

    Tables make hardly any cycles, and a garbage collection walks every object of every module: a
    tenth of the time of a small trace. Where pyarrow is installed pandas would copy every text into
    its arrays and out again; the tables are the same.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with pd.option_context("mode.string_storage", "python"):
            yield
    finally:
        if collecting:
            gc.enable()


class OutputFormat(StrEnum):
    """How the tables of a report are written."""

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
        """What the name of a file ends in; of one table, for a format that is a folder."""
        return ".md" if self is OutputFormat.markdown else f".{self.value}"


#: A page for browsers; an option of its own asks for it.
PAGE: Final = "html"
#: Files and folders to write, and what they are.
Places = Mapping[Path, OutputFormat | Literal["html"]]
#: What the name of an output file can end in, and the format that it means.
FORMAT_OF_SUFFIX = {each.suffix: each for each in OutputFormat if not each.is_folder}
FORMAT_OF_SUFFIX[".markdown"] = OutputFormat.markdown


def require_format(chosen: OutputFormat | Literal["html"]) -> None:
    """Check that a format can be written here, before a trace is read for nothing."""
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
    """Refuse to write over an input or what this program did not make, before anything is read.

    What is in a folder is checked when it is written. Gives a line for each unfinished folder.
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
    """Write a report; each file, and the files of a folder as one, take their places when whole."""
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
    """A report as JSON or Markdown, in pieces."""
    from tracelens_ext.report.formats import json_text, markdown_text

    writers = {OutputFormat.json: json_text, OutputFormat.markdown: markdown_text}
    if chosen not in writers:
        raise ValueError(f"{chosen} is not a string")
    return writers[chosen](report)
