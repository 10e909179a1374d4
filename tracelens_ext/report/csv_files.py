"""Write tables as CSV files: everything at full length, exact numbers, UTF-8."""

from __future__ import annotations

import codecs
import csv
from typing import TYPE_CHECKING, Literal

from tracelens_ext.report.table_files import write_tables

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd

_REPLACE_SURROGATES = "tracelens_ext.replace"


def write_csvs(folder: str | os.PathLike[str], sheets: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write each table to a file of its own, `NAME.csv`.

    All files are written before the first takes its place, so that a full disk leaves the files
    of an earlier report as they were. Files of other names are left alone. The index of a
    DataFrame is not written; None, NaN and NaT become empty fields, lone surrogates U+FFFD.
    Numbers have all their digits, and lines end with a line feed.

    Args:
        folder: the folder, created when missing.
        sheets: the tables by name. Characters that a file's name cannot have become `_`.

    Returns:
        The files, in the order of the tables.

    Raises:
        OutputError: a file cannot be written.
    """
    return write_tables(folder, sheets, ".csv", _write)


def _write(path: Path, frame: pd.DataFrame) -> None:
    """Write one table."""
    codecs.register_error(_REPLACE_SURROGATES, _replace_surrogates)
    # The csv module does not quote a bare carriage return, which readers take for a line's end.
    quoting: Literal[0, 2] = (
        csv.QUOTE_NONNUMERIC if _has_carriage_return(frame) else csv.QUOTE_MINIMAL
    )
    with path.open("w", encoding="utf-8", errors=_REPLACE_SURROGATES, newline="") as stream:
        frame.to_csv(stream, index=False, lineterminator="\n", quoting=quoting)


def _replace_surrogates(error: UnicodeError) -> tuple[bytes, int]:
    """Encode what UTF-8 has no bytes for as U+FFFD, one for one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


def _has_carriage_return(frame: pd.DataFrame) -> bool:
    """Say whether any text of a table holds a carriage return."""
    import pandas as pd

    if any("\r" in str(name) for name in frame.columns):
        return True
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.cat.categories.to_series()
        if pd.api.types.is_numeric_dtype(column.dtype):
            continue
        distinct = column.unique() if isinstance(column.dtype, pd.StringDtype) else column.tolist()
        if any("\r" in str(text) for text in distinct):
            return True
    return False
