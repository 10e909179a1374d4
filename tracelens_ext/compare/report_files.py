"""Reads the tables of finished reports: workbooks, JSON, and folders of CSV or Parquet files.

A report may come from an untrusted source, so a workbook is checked before openpyxl reads it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tracelens_ext import errors
from tracelens_ext.compare.untrusted_reports import (
    check_workbook,
    reports_damage,
    too_large,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import (
    GENERATOR,
    TABLES_VERSION_KEY,
    has_own_mark,
    read_manifest,
)
from tracelens_ext.report.writing import OutputFormat, require_format
from tracelens_ext.settings import size_text

#: The first bytes of a zip archive.
ZIP = b"PK\x03\x04"
#: The most unpacked bytes of a report.
_MAX_BYTES = 300 * 10**6
#: The most rows of a table, which is also the limit of Excel.
_MAX_ROWS = 1_048_576
#: Columns after this many are not searched.
_MAX_COLUMNS = 1000
#: Name of a sheet → plain names of the columns to read.
WantedColumns = Mapping[str, Collection[str]]


class ReportTables(NamedTuple):
    """The tables that were read from a report."""

    #: name of the sheet → table; columns have their plain names, values are as stored
    tables: Mapping[str, pd.DataFrame]
    is_ours: bool  #: True if this program wrote the report
    version: object  #: the version of the tables that the report records; None if it does not


def plain_name(column: object) -> str:
    """Return the name of a column in lower case, without underscores and punctuation.

    `time_ms` and `Time (ms)` have the same plain name.
    """
    return re.sub(r"[\W_]+", " ", str(column)).strip().casefold()


def table_files(folder: Path, sheets: Collection[str]) -> list[Path]:
    """Return the CSV and Parquet files of a folder that are named like one of the sheets."""
    names = []
    for sheet in sheets:
        names.append(f"{sheet}{OutputFormat.csv.suffix}")
        names.append(f"{sheet}{OutputFormat.parquet.suffix}")
    paths = [folder / name for name in sorted(set(names))]
    return [path for path in paths if path.is_file()]


def read_tables(
    path: Path, wanted: WantedColumns, max_bytes: int | None = None
) -> ReportTables:
    """Return the wanted tables of a report, without those that it does not contain.

    Args:
        path: the file or folder of the report.
        wanted: the sheets and columns to read.
        max_bytes: the most bytes that the report may have after unpacking; None for the default.

    Raises:
        TraceError: the report cannot be read, is damaged, or is too large.
    """
    most_bytes = max_bytes or _MAX_BYTES
    try:
        if path.is_dir():
            return _read_folder(path, wanted, most_bytes)
        with path.open("rb") as file:
            if file.read(1) == b"{" and has_own_mark(path):
                return _read_json(path, wanted, most_bytes)
            return _read_workbook(
                path=path, file=file, wanted=wanted, most_bytes=most_bytes
            )
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise errors.TraceNotFoundError(path, problem, "check the file") from None


def _column_positions(
    header: Collection[object], columns: Collection[str]
) -> dict[str, int]:
    """Return plain name → position of each wanted column that the header contains.

    A unit in parentheses may follow the name, as in `count (kernels)`. If two columns have the same
    plain name, the first one is used.
    """
    positions: dict[str, int] = {}
    for position, name in enumerate(header):
        text = str(name)
        without_unit = re.sub(r" \([^()]*\)$", "", text)
        for spelling in (plain_name(text), plain_name(without_unit)):
            if spelling in columns:
                positions.setdefault(spelling, position)
    return positions


# Workbooks.


def _read_workbook(
    path: Path, file: BinaryIO, wanted: WantedColumns, most_bytes: int
) -> ReportTables:
    """Read the wanted tables of a workbook."""
    file.seek(0)
    if file.read(len(ZIP)) != ZIP:
        raise errors.TraceFormatError(
            path, "is not a workbook", "name an .xlsx report or a trace"
        )
    check_workbook(path, file, most_bytes)
    import openpyxl

    with reports_damage(path, "the workbook"), warnings.catch_warnings():
        # openpyxl warns of contents that it ignores, such as charts.
        warnings.simplefilter("ignore")
        book = openpyxl.load_workbook(
            file, read_only=True, data_only=True, keep_links=False
        )
        tables: dict[str, pd.DataFrame] = {}
        for sheet in book.worksheets:
            columns = wanted.get(sheet.title)
            if columns and sheet.title not in tables:
                tables[sheet.title] = _sheet_table(path, sheet, columns)
        properties: Any = book.custom_doc_props  # type: ignore[attr-defined]  # since 3.1
        value_of_property = {
            custom_property.name: custom_property.value
            for custom_property in properties.props
        }
    is_ours = book.properties.creator == GENERATOR
    return ReportTables(
        tables=tables,
        is_ours=is_ours,
        version=value_of_property.get(TABLES_VERSION_KEY),
    )


def _sheet_table(path: Path, sheet: Any, columns: Collection[str]) -> pd.DataFrame:  # noqa: ANN401
    """Return the wanted columns of a sheet."""
    # The dimensions that a sheet records may be wrong.
    sheet.reset_dimensions()
    headers = sheet.iter_rows(max_row=1, max_col=_MAX_COLUMNS, values_only=True)
    positions = _column_positions(next(headers, ()), columns)
    last_column = max(positions.values(), default=0) + 1
    rows: list[tuple[object, ...]] = []
    cells = sheet.iter_rows(min_row=2, max_col=last_column, values_only=True)
    for number, row in enumerate(cells, start=2):
        if number > _MAX_ROWS:
            raise too_large(path, f"{_MAX_ROWS:,} rows in the sheet {sheet.title}")
        is_empty = all(value is None for value in row)
        if not is_empty:
            rows.append(tuple(row[position] for position in positions.values()))
    return pd.DataFrame(rows, columns=list(positions), dtype=object)


# JSON.


def _read_json(path: Path, wanted: WantedColumns, most_bytes: int) -> ReportTables:
    """Read the wanted tables of a JSON report."""
    import msgspec

    if path.stat().st_size > most_bytes:
        raise too_large(path, size_text(most_bytes))
    tables = {}
    rows_type = list[dict[str, str | float | int | bool | None]]
    with reports_damage(path, "the JSON"):
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        sheets = msgspec.json.decode(document["tables"], type=dict[str, msgspec.Raw])
        for name in wanted.keys() & sheets.keys():
            rows = msgspec.json.decode(sheets[name], type=rows_type)
            if len(rows) > _MAX_ROWS:
                raise too_large(path, f"{_MAX_ROWS:,} rows in {name}")
            tables[name] = _table_of_rows(rows, wanted[name])
        version: object = document.get(TABLES_VERSION_KEY)
        if version is not None:
            version = msgspec.json.decode(document[TABLES_VERSION_KEY])
    return ReportTables(tables=tables, is_ours=True, version=version)


def _table_of_rows(
    rows: Sequence[Mapping[str, object]], columns: Collection[str]
) -> pd.DataFrame:
    """Return the wanted columns of rows. All rows have the columns of the first one."""
    header = list(rows[0]) if rows else []
    positions = _column_positions(header, columns)
    values = {}
    for name, position in positions.items():
        column = header[position]
        values[name] = [row.get(column) for row in rows]
    return pd.DataFrame(values, columns=list(positions), dtype=object)


# Folders.


def _read_folder(folder: Path, wanted: WantedColumns, most_bytes: int) -> ReportTables:
    """Read the wanted tables of a folder with CSV or Parquet files."""
    files = table_files(folder, wanted)
    suffixes = {path.suffix for path in files}
    if len(suffixes) > 1:
        problem = "contains both CSV and Parquet tables, possibly of two reports"
        raise errors.TraceFormatError(folder, problem, "give a folder with one kind")
    tables = {}
    for path in files:
        if path.stat().st_size > most_bytes:
            raise too_large(path, size_text(most_bytes))
        columns = wanted[path.stem]
        with reports_damage(path, "the table"):
            if path.suffix == OutputFormat.csv.suffix:
                tables[path.stem] = _read_csv(path, columns)
            else:
                tables[path.stem] = _read_parquet(path, columns, most_bytes)
    manifest = read_manifest(folder)
    return ReportTables(
        tables=tables, is_ours=bool(manifest), version=manifest.get(TABLES_VERSION_KEY)
    )


def _read_csv(path: Path, columns: Collection[str]) -> pd.DataFrame:
    """Read the wanted columns of a CSV file; all values are texts.

    Raises:
        TraceError: the file does not end with a line break, or has too many rows.
    """
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        if file.read(1) != b"\n":
            raise errors.TraceFormatError(
                path, "is empty or cut off", "write the report again"
            )
    with warnings.catch_warnings():
        # pandas warns of rows that are too long, which are a sign of damage.
        warnings.simplefilter("error")
        table: pd.DataFrame = pd.read_csv(
            path,
            nrows=_MAX_ROWS + 1,
            encoding="utf-8-sig",
            index_col=False,
            dtype=str,
            keep_default_na=False,
        )
    if len(table) > _MAX_ROWS:
        raise too_large(path, f"{_MAX_ROWS:,} rows")
    positions = _column_positions(table.columns, columns)
    wanted_columns = table.iloc[:, list(positions.values())]
    return wanted_columns.set_axis(list(positions), axis=1)


def _read_parquet(
    path: Path, columns: Collection[str], most_bytes: int
) -> pd.DataFrame:
    """Read the wanted columns of a Parquet file.

    Raises:
        TraceError: the columns have too many rows, or too many bytes after unpacking.
    """
    require_format(OutputFormat.parquet)
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names[:_MAX_COLUMNS]
        metadata = file.metadata
        positions = _column_positions(names, columns)
        unpacked_bytes = 0
        for group_number in range(metadata.num_row_groups):
            group = metadata.row_group(group_number)
            for position in positions.values():
                unpacked_bytes += group.column(position).total_uncompressed_size
        if metadata.num_rows > _MAX_ROWS or unpacked_bytes > most_bytes:
            raise too_large(path, f"{_MAX_ROWS:,} rows, or {size_text(most_bytes)}")
    stored_names = [names[position] for position in positions.values()]
    # With a dictionary, a text that a million rows share is stored once.
    with parquet.ParquetFile(path, read_dictionary=stored_names) as file:
        table = file.read(columns=stored_names, use_threads=False)
    series = {
        name: table.column(stored_name).to_pandas().astype(object)
        for name, stored_name in zip(positions, stored_names, strict=True)
    }
    return pd.DataFrame(series, dtype=object)
