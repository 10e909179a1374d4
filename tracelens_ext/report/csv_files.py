"""Write tables as CSV files: everything at full length, exact numbers, UTF-8."""

from __future__ import annotations

import codecs
import csv
from functools import partial
from typing import TYPE_CHECKING, Literal

from tracelens_ext.lazy import pd
from tracelens_ext.report.folder import write_folder
from tracelens_ext.report.table_files import unique_file_names

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path


_REPLACE_SURROGATES = "tracelens_ext.replace"


def write_csvs(folder: str | os.PathLike[str], sheets: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write each table to a file of its own, `NAME.csv`.

    The files take their places as `write_folder` says. The index of a DataFrame is not written;
    None, NaN and NaT become empty fields, lone surrogates U+FFFD.
    Numbers have all their digits, and lines end with a line feed.
    """
    names = [f"{name}.csv" for name in unique_file_names(sheets)]
    tables = zip(names, sheets.values(), strict=True)
    return write_folder(folder, {name: partial(write_csv, frame=frame) for name, frame in tables})


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write one table to a file, as `write_csvs` says."""
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
