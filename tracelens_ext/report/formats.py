"""The formats of a report: the same tables as Excel, CSV, JSON, Markdown, Parquet or HTML."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from tracelens_ext.errors import UsageError


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


#: A page for browsers; an option of its own asks for it.
PAGE: Final = "html"
#: Files and folders to write, and what they are.
Places = Mapping[Path, Format | Literal["html"]]
#: What the name of an output file can end in, and the format that it means.
FORMAT_OF_SUFFIX = {
    ".xlsx": Format.xlsx,
    ".json": Format.json,
    ".md": Format.markdown,
    ".markdown": Format.markdown,
}


def require_format(chosen: Format | Literal["html"]) -> None:
    """Check that a format can be written here, before a trace is read for nothing."""
    import importlib.util

    if chosen is Format.parquet and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs pyarrow, not installed here; run: pip install 'tracelens-ext[parquet]'"
        )
    if not isinstance(chosen, Format):
        from tracelens_ext.report.html import require_html_extra

        require_html_extra()
