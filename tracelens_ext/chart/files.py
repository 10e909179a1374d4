"""`result.html` and `result.csv`: written whole, and over nothing of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tracelens_ext.chart.runs import Run

_STEM: Final = "result"
PAGE: Final = f"{_STEM}.html"
CSV: Final = f"{_STEM}.csv"


def check_results(
    folder: str | os.PathLike[str], inputs: Sequence[Path], *, force: bool = False
) -> None:
    """Check that a chart may be written to a folder, before anything is read.

    Args:
        folder: the folder; it may not exist.
        inputs: files that are never written over, whatever `force` says.
        force: whether files that this program did not write may be replaced.

    Raises:
        OutputError: a file stands in the way.
        UsageError: what the page is made with is not installed.
    """
    from tracelens_ext.report.html import require_html_extra
    from tracelens_ext.report.manifest import check_folder, check_output

    require_html_extra()
    check_output(Path(folder) / PAGE, inputs, force=force)
    check_folder(folder, [CSV], inputs, force=force)


def write_results(
    folder: str | os.PathLike[str], runs: Sequence[Run], *, title: str = ""
) -> list[Path]:
    """Write the chart and its numbers into a folder, which is created when missing.

    Args:
        folder: the folder.
        runs: what to draw, a bar each.
        title: the heading of the page.

    Returns:
        The page and the CSV file.

    Raises:
        OutputError: a file cannot be written.
    """
    from tracelens_ext.chart.page import write_page
    from tracelens_ext.chart.tables import kernel_table
    from tracelens_ext.report.csv_files import write_csvs
    from tracelens_ext.report.manifest import finish_folder, manifest_files

    target = Path(folder)
    write_page(target / PAGE, runs, title=title)
    write_csvs(target, {_STEM: kernel_table(runs)})
    # A folder of a report's tables may be the same one: its files stay, and stay known.
    finish_folder(target, list(dict.fromkeys([*manifest_files(target), CSV])))
    return [target / PAGE, target / CSV]
