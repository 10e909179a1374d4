"""Write tables as Parquet files: types and all digits kept, for pandas, DuckDB, Spark and others.

Needs pyarrow, which the extra `parquet` installs.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.folder import write_folder
from tracelens_ext.report.manifest import GENERATOR
from tracelens_ext.report.plain_tables import plain_column, plain_headers
from tracelens_ext.report.table_files import unique_file_names

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path


def write_parquets(
    folder: str | os.PathLike[str], sheets: Mapping[str, pd.DataFrame]
) -> list[Path]:
    """Write each table to a file of its own, `NAME.parquet`.

    The files take their places as `write_folder` says. The index of a DataFrame is not written;
    what is missing, not a number or infinite is null; a column of several types is one of texts.
    """
    parquet = _pyarrow("pyarrow.parquet")

    def write_one(path: Path, frame: pd.DataFrame) -> None:
        parquet.write_table(arrow_table(frame), path)

    names = [f"{name}.parquet" for name in unique_file_names(sheets)]
    tables = zip(names, sheets.values(), strict=True)
    return write_folder(folder, {name: partial(write_one, frame=frame) for name, frame in tables})


def _pyarrow(module: str = "pyarrow") -> Any:  # noqa: ANN401  # it has no type hints
    return importlib.import_module(module)


def arrow_table(frame: pd.DataFrame) -> Any:  # noqa: ANN401
    """A table as pyarrow has it; see `write_parquets`."""
    pyarrow = _pyarrow()
    arrays = [_arrow_array(frame.iloc[:, place]) for place in range(frame.shape[1])]
    table = pyarrow.Table.from_arrays(arrays, names=plain_headers(frame))
    return table.replace_schema_metadata({"generator": GENERATOR})


def _arrow_array(series: pd.Series) -> Any:  # noqa: ANN401
    """A column of one type: of its own where all values agree, else of texts."""
    pyarrow = _pyarrow()
    values = plain_column(series)
    types = {type(value) for value in values if value is not None}
    if types <= {int, float} and len(types) == 2:
        values = [None if value is None else float(value) for value in values]
    elif len(types) > 1:
        values = [None if value is None else str(value) for value in values]
    if not types:  # an empty column still has the type that its table gives it
        return pyarrow.array(values, type=_declared_type(series))
    try:
        return pyarrow.array(values)
    except OverflowError:  # a whole number of more than 64 bits
        return pyarrow.array([None if value is None else str(value) for value in values])


def _declared_type(series: pd.Series) -> Any:  # noqa: ANN401
    pyarrow = _pyarrow()
    kind = getattr(series.dtype, "kind", "O")
    by_kind = {"b": pyarrow.bool_(), "i": pyarrow.int64(), "u": pyarrow.uint64()}
    return pyarrow.float64() if kind == "f" else by_kind.get(kind, pyarrow.string())
