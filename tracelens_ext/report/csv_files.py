"""Write tables as CSV files: everything at full length, exact numbers, UTF-8."""

from __future__ import annotations

import codecs
import csv
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic import output_error, written_beside

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    import pandas as pd

_NOT_IN_FILE_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
# Names of devices on Windows, with any suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 200  # of the 255 that a file system allows, with room for the suffix
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
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(
            f"{target}: CSV files cannot be written there: it is a file; give a folder"
        ) from error
    except OSError as error:
        raise output_error(str(target), error) from error
    except ValueError as error:  # a NUL in the name
        raise OutputError(f"{target!s:.80}: is no name for a folder; choose another") from error
    paths = [target / f"{name}.csv" for name in unique_file_names(sheets)]
    with ExitStack() as all_written:
        for path, frame in zip(paths, sheets.values(), strict=True):
            beside = all_written.enter_context(written_beside(path))
            try:
                _write(beside, frame)
            except OSError as error:
                raise output_error(str(path), error) from error
    return paths


def unique_file_names(wanted: Iterable[str]) -> list[str]:
    """Turn names of tables into names of files, without suffix, that every system accepts.

    Args:
        wanted: the names.

    Returns:
        A name for each; no two are equal when the case of letters is ignored.
    """
    seen: set[str] = set()
    names = []
    for name in wanted:
        allowed = _NOT_IN_FILE_NAME.sub("_", name).strip().strip(".") or "table"
        if _RESERVED.fullmatch(allowed):
            allowed = f"_{allowed}"
        allowed = allowed.encode()[:_NAME_BYTES].decode(errors="ignore")
        candidate, number = allowed, 2
        while candidate.casefold() in seen:
            candidate, number = f"{allowed}_{number}", number + 1
        seen.add(candidate.casefold())
        names.append(candidate)
    return names


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
