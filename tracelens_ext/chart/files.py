"""`result.html` and `result.csv`: written whole, and over nothing of the user's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from tracelens_ext.chart.runs import Run

_STEM: Final = "result"
PAGE: Final = f"{_STEM}.html"
CSV: Final = f"{_STEM}.csv"


def check_results(
    folder: str | os.PathLike[str], inputs: Sequence[Path], *, force: bool = False
) -> list[str]:
    """Check that a chart may be written to a folder, before anything is read.

    Args:
        folder: the folder; it may not exist.
        inputs: files that are never written over, whatever `force` says.
        force: whether files that this program did not write may be replaced.

    Returns:
        A line if a run left the folder unfinished.

    Raises:
        OutputError: a file stands in the way.
        UsageError: what the page is made with is not installed.
    """
    from tracelens_ext.report.html import require_html_extra
    from tracelens_ext.report.manifest import check_folder, check_output, unfinished_note

    require_html_extra()
    check_output(Path(folder) / PAGE, inputs, force=force)
    check_folder(folder, [CSV], inputs, force=force)
    return unfinished_note(folder)


def write_results(
    folder: str | os.PathLike[str], runs: Sequence[Run], *, title: str = ""
) -> list[Path]:
    """Write the chart and its numbers into a folder, which is created when missing.

    Returns:
        The page and the CSV file.

    Raises:
        OutputError: a file cannot be written.
    """
    from tracelens_ext.chart.page import write_page
    from tracelens_ext.chart.tables import kernel_table
    from tracelens_ext.report.csv_files import write_csv
    from tracelens_ext.report.folder import write_folder

    writers: dict[str, Callable[[Path], object]] = {
        PAGE: partial(write_page, runs=runs, title=title),
        CSV: partial(write_csv, frame=kernel_table(runs)),
    }
    # A folder of a report's tables may be the same one: its files stay, and stay known.
    return write_folder(folder, writers, keep=True)
