"""Write tables as files of a folder, a file a table: CSV, or Parquet.

CSV has everything at full length, exact numbers, UTF-8. Parquet keeps types and all digits, for
pandas, DuckDB, Spark and others; it needs pyarrow, which the extra `parquet` installs.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.json_text import plain_column, plain_headers
from tracelens_ext.report.manifest import GENERATOR, write_folder
from tracelens_ext.text import unique

_NOT_IN_FILE_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
# Names of devices on Windows, with any suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 200  # of the 255 that a file system allows, with room for the suffix


def file_names(wanted: Iterable[str], suffix: str) -> list[str]:
    """Names of files for tables that every system accepts, no two equal in any case of letters."""
    names = []
    for name in wanted:
        allowed = _NOT_IN_FILE_NAME.sub("_", name).strip().strip(".") or "table"
        if _RESERVED.fullmatch(allowed):
            allowed = f"_{allowed}"
        names.append(allowed.encode()[:_NAME_BYTES].decode(errors="ignore"))
    return [f"{name}{suffix}" for name in unique(names, "{}_{}".format)]


def write_tables(
    folder: str | os.PathLike[str], sheets: Mapping[str, pd.DataFrame], suffix: str = ".csv"
) -> list[Path]:
    """Write each table to a `.csv` or `.parquet` file, as `write_folder` says; no index."""
    write = write_csv if suffix == ".csv" else write_parquet
    tables = zip(file_names(sheets, suffix), sheets.values(), strict=True)
    return write_folder(folder, {name: partial(write, frame=frame) for name, frame in tables})


_REPLACE_SURROGATES = "tracelens_ext.replace"


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a table: numbers have all their digits, and lines end with a line feed.

    None, NaN and NaT become empty fields, lone surrogates U+FFFD.
    """
    codecs.register_error(_REPLACE_SURROGATES, _replace_surrogates)
    # The csv module does not quote a bare carriage return, which readers take for a line's end.
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC):
        with path.open("w", encoding="utf-8", errors=_REPLACE_SURROGATES, newline="") as stream:
            frame.to_csv(stream, index=False, lineterminator="\n", quoting=quoting)
        with path.open("rb") as written:
            if not any(b"\r" in line for line in written):
                break


def _replace_surrogates(error: UnicodeError) -> tuple[bytes, int]:
    """Encode what UTF-8 has no bytes for as U+FFFD, one for one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a table: what is missing, not a number or infinite is null."""
    from pyarrow import parquet

    parquet.write_table(arrow_table(frame), path)


def arrow_table(frame: pd.DataFrame) -> Any:  # noqa: ANN401  # pyarrow has no type hints
    """A table as pyarrow has it; a column of several types is one of texts."""
    import pyarrow

    arrays = [_arrow_array(frame.iloc[:, place]) for place in range(frame.shape[1])]
    table = pyarrow.Table.from_arrays(arrays, names=plain_headers(frame))
    return table.replace_schema_metadata({"generator": GENERATOR})


def _arrow_array(series: pd.Series) -> Any:  # noqa: ANN401
    """A column of one type: of its own where all values agree, else of texts."""
    import pyarrow

    values = plain_column(series)
    types = {type(value) for value in values if value is not None}
    if not types:  # an empty column still has the type that its table gives it
        names = {"b": "bool", "i": "int64", "u": "uint64", "f": "float64"}
        kind = getattr(series.dtype, "kind", "O")
        return pyarrow.array(values, type=pyarrow.type_for_alias(names.get(kind, "string")))
    try:
        if types == {int, float}:
            return pyarrow.array(values, type=pyarrow.float64())
        if len(types) == 1:
            return pyarrow.array(values)
    except OverflowError:  # a whole number of more than 64 bits
        pass
    return pyarrow.array([None if value is None else str(value) for value in values])
