"""Reports of tables alone, for the tests of the writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens_ext.report import excel, html
from tracelens_ext.report.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd

_TITLE = "GPU performance report"


def write_workbook(
    path: Path, sheets: Mapping[str, pd.DataFrame], **more: Any
) -> list[str]:
    """Write tables as a workbook."""
    return excel.write_workbook(path, Report(more.pop("title", _TITLE), sheets, **more))


def write_html(
    path: Path, sheets: Mapping[str, pd.DataFrame], **more: Any
) -> list[str]:
    """Write tables as a page."""
    return html.write_html(path, Report(more.pop("title", _TITLE), sheets, **more))
