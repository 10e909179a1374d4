"""Tables of finished reports read back: of a workbook, JSON, a folder of CSV or Parquet files.

A report may come from anybody, so a workbook is looked through before openpyxl sees it.
"""

from __future__ import annotations

import errno
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn
from xml.parsers import expat

from tracelens_ext import errors
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import (
    GENERATOR,
    TABLES_VERSION_KEY,
    has_own_mark,
    read_manifest,
)
from tracelens_ext.report.writing import OutputFormat, require_format
from tracelens_ext.settings import size_text
from tracelens_ext.text import one_line

ZIP = b"PK\x03\x04"
WORKBOOK_PART = "xl/workbook.xml"
#: Most that a report may have: unpacked bytes, and rows of a table.
_MAX_BYTES = 300 * 10**6
_MAX_ROWS = 1_048_576
#: Columns in which one is looked for, and parts of a workbook.
_MAX_COLUMNS = 1000
_MAX_PARTS = 10_000
#: Elements of a workbook: cells and what is in them; all others, which cost openpyxl more, to the
#: square for some; how deep they nest.
_MAX_CELL_ELEMENTS = 4_000_000
_MAX_OTHER_ELEMENTS = 20_000
_MAX_DEPTH = 100
#: Bytes without the end of a tag, so of one attribute or text; and characters of all attributes
#: but those of cells: openpyxl takes seconds for 10 MB of ranges.
_MAX_ELEMENT_BYTES = 1 << 20
_MAX_ATTRIBUTE_CHARACTERS = 2_000_000
_CELL_ELEMENTS = frozenset({"row", "c", "v", "is", "si", "t"})
_PIECE_BYTES = 1 << 18
_SUPPORTED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NAME_OTHER_FORM = "give the trace, or a folder of CSV or Parquet tables"
_ALLOW_MORE_BYTES = "give the trace, or raise the limit with --max-bytes"
_WRITE_AGAIN = "write the report again"

Wanted = Mapping[str, Collection[str]]  #: sheet → plain names of its columns


class ReportTables(NamedTuple):
    """What was read of a report."""

    #: by name of the sheet; columns by their plain names, values as they were stored
    tables: Mapping[str, pd.DataFrame]
    ours: bool  #: this program made it
    version: object  #: of its tables, as far as it says so


def plain_name(column: object) -> str:
    """Return a column's name without case, underscores and signs.

    `time_ms` and `Time (ms)` are one.
    """
    return re.sub(r"[\W_]+", " ", str(column)).strip().casefold()


def table_files(folder: Path, sheets: Collection[str]) -> list[Path]:
    """Return the files of a folder that have one of these sheets, as CSV or Parquet."""
    names = []
    for sheet in sheets:
        names.append(f"{sheet}{OutputFormat.csv.suffix}")
        names.append(f"{sheet}{OutputFormat.parquet.suffix}")
    paths = [folder / name for name in sorted(set(names))]
    return [path for path in paths if path.is_file()]


def read_tables(
    path: Path, wanted: Wanted, max_bytes: int | None = None
) -> ReportTables:
    """Return the tables of a report that are there.

    Args:
        path: of the report.
        wanted: the sheets and columns that are read.
        max_bytes: that it may have, unpacked; None for the default.

    Raises:
        TraceError: it cannot be read, is damaged, or is too large.
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


@contextmanager
def _reports_damage(path: Path, what: str) -> Iterator[None]:
    """Say of whatever a reader fails on that the file is damaged."""
    try:
        yield
    except errors.TracelensError:
        raise
    except Exception as error:  # openpyxl, zipfile, pandas, pyarrow: any kind
        # Those about damage: zipfile looks before the file's beginning; pyarrow's have no number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        detail = one_line(str(error)) or type(error).__name__
        problem = f"{what} is damaged ({detail})"
        raise errors.TraceFormatError(path, problem, _WRITE_AGAIN) from None


def _too_large(
    path: Path, what: str, remedy: str = _ALLOW_MORE_BYTES
) -> errors.TraceTooLargeError:
    """Return the error about a report that has more than it may."""
    return errors.TraceTooLargeError(path, f"has more than {what}", remedy)


def _places(header: Collection[object], columns: Collection[str]) -> dict[str, int]:
    """Return plain name → place of each wanted column that is there; the first of two alike.

    A unit in brackets may follow the name: `count (kernels)`.
    """
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        text = str(name)
        without_unit = re.sub(r" \([^()]*\)$", "", text)
        for spelling in (plain_name(text), plain_name(without_unit)):
            if spelling in columns:
                places.setdefault(spelling, place)
    return places


# Workbooks.


def _read_workbook(
    path: Path, file: BinaryIO, wanted: Wanted, most_bytes: int
) -> ReportTables:
    """Read a workbook."""
    file.seek(0)
    if file.read(len(ZIP)) != ZIP:
        raise errors.TraceFormatError(
            path, "is not a workbook", "name an .xlsx report or a trace"
        )
    _check_workbook(path, file, most_bytes)
    import openpyxl

    with _reports_damage(path, "the workbook"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it does not keep, such as charts
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
        tables=tables, ours=is_ours, version=value_of_property.get(TABLES_VERSION_KEY)
    )


def _sheet_table(path: Path, sheet: Any, columns: Collection[str]) -> pd.DataFrame:  # noqa: ANN401
    """Return the wanted columns of a sheet."""
    sheet.reset_dimensions()  # a claim that may be wrong
    headers = sheet.iter_rows(max_row=1, max_col=_MAX_COLUMNS, values_only=True)
    places = _places(next(headers, ()), columns)
    last_column = max(places.values(), default=0) + 1
    rows: list[tuple[object, ...]] = []
    cells = sheet.iter_rows(min_row=2, max_col=last_column, values_only=True)
    for number, row in enumerate(cells, start=2):
        if number > _MAX_ROWS:
            raise _too_large(path, f"{_MAX_ROWS:,} rows in the sheet {sheet.title}")
        is_gap = all(value is None for value in row)  # between rows that are there
        if not is_gap:
            rows.append(tuple(row[place] for place in places.values()))
    return pd.DataFrame(rows, columns=list(places), dtype=object)


def _check_workbook(path: Path, file: BinaryIO, most_bytes: int) -> None:
    """Refuse a workbook that would take too much memory or time, or that declares entities."""
    used = _UsedByWorkbook(path, most_bytes)
    with _reports_damage(path, "the workbook"), zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) > _MAX_PARTS:
            raise _too_large(path, f"{_MAX_PARTS:,} parts")
        if WORKBOOK_PART not in archive.namelist():
            raise errors.TraceFormatError(
                path, "is a zip archive, but not a workbook", "name a workbook"
            )
        for info in archive.infolist():
            if info.compress_type not in _SUPPORTED_COMPRESSION:
                raise zipfile.BadZipFile(
                    f"{info.filename}: is packed in a way that no workbook uses"
                )
            with archive.open(info) as part:
                pieces = iter(partial(part.read, _PIECE_BYTES), b"")
                _PartCheck(used).run(pieces)
    file.seek(0)


class _UsedByWorkbook:
    """What the parts of a workbook have used so far."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._bytes = 0
        self._attribute_characters = 0
        self._cell_elements = 0
        self._other_elements = 0

    @property
    def elements(self) -> int:
        """How many elements there were."""
        return self._cell_elements + self._other_elements

    def add_bytes(self, count: int) -> None:
        """Count unpacked bytes."""
        self._bytes += count
        if self._bytes > self._most_bytes:
            raise _too_large(self.path, f"{size_text(self._most_bytes)}, unpacked")

    def add_element(self, name: str, attributes: Mapping[str, str]) -> None:
        """Count an element and its attributes."""
        if name.rpartition(":")[2] in _CELL_ELEMENTS:
            self._cell_elements += 1
        else:
            self._other_elements += 1
            self._attribute_characters += sum(
                len(value) for value in attributes.values()
            )
        if self._attribute_characters > _MAX_ATTRIBUTE_CHARACTERS:
            what = f"{size_text(_MAX_ATTRIBUTE_CHARACTERS)} of attributes"
            raise _too_large(self.path, what, _NAME_OTHER_FORM)
        has_too_many_cells = self._cell_elements > _MAX_CELL_ELEMENTS
        if has_too_many_cells or self._other_elements > _MAX_OTHER_ELEMENTS:
            # a cell has an element for itself and its value
            cells = _MAX_CELL_ELEMENTS // 2
            what = f"{cells:,} cells, or {_MAX_OTHER_ELEMENTS:,} other elements"
            raise _too_large(self.path, what, _NAME_OTHER_FORM)


class _PartCheck:
    """Counts one part; what is not XML by its bytes alone, as openpyxl will not read it."""

    def __init__(self, used: _UsedByWorkbook) -> None:
        self._used = used
        self._depth = 0
        self._is_xml = True
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._refuse_declaration
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end

    def run(self, pieces: Iterator[bytes]) -> None:
        """Count the pieces of the part."""
        bytes_in_element = 0
        for piece in pieces:
            self._used.add_bytes(len(piece))
            elements_before = self._used.elements
            self._parse(piece)
            if self._used.elements == elements_before:
                bytes_in_element += len(piece)
            else:
                bytes_in_element = 0
            if self._is_xml and bytes_in_element > _MAX_ELEMENT_BYTES:
                what = f"{size_text(_MAX_ELEMENT_BYTES)} in one element"
                raise _too_large(self._used.path, what, _NAME_OTHER_FORM)

    def _parse(self, piece: bytes) -> None:
        """Parse a piece, as long as all of the part so far is XML."""
        if not self._is_xml:
            return
        try:
            self._parser.Parse(piece, False)
        except (expat.ExpatError, ValueError):
            self._is_xml = False

    def _refuse_declaration(self, *_: object) -> NoReturn:
        problem = "declares XML entities, which no workbook does"
        raise errors.TraceFormatError(self._used.path, problem, "do not trust the file")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            problem = (
                f"nests XML more than {_MAX_DEPTH} levels deep, which no workbook does"
            )
            raise errors.TraceFormatError(self._used.path, problem, "name another")
        self._used.add_element(name, attributes)

    def _end(self, _name: str) -> None:
        self._depth -= 1


# JSON.


def _read_json(path: Path, wanted: Wanted, most_bytes: int) -> ReportTables:
    """Read a JSON report."""
    import msgspec

    if path.stat().st_size > most_bytes:
        raise _too_large(path, size_text(most_bytes))
    tables = {}
    rows_type = list[dict[str, str | float | int | bool | None]]
    with _reports_damage(path, "the JSON"):
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        sheets = msgspec.json.decode(document["tables"], type=dict[str, msgspec.Raw])
        for name in wanted.keys() & sheets.keys():
            rows = msgspec.json.decode(sheets[name], type=rows_type)
            if len(rows) > _MAX_ROWS:
                raise _too_large(path, f"{_MAX_ROWS:,} rows in {name}")
            tables[name] = _table_of_rows(rows, wanted[name])
        version: object = document.get(TABLES_VERSION_KEY)
        if version is not None:
            version = msgspec.json.decode(document[TABLES_VERSION_KEY])
    return ReportTables(tables=tables, ours=True, version=version)


def _table_of_rows(
    rows: Sequence[Mapping[str, object]], columns: Collection[str]
) -> pd.DataFrame:
    """Return the wanted columns of rows, which all have the columns of the first one."""
    header = list(rows[0]) if rows else []
    places = _places(header, columns)
    values = {}
    for plain, place in places.items():
        column = header[place]
        values[plain] = [row.get(column) for row in rows]
    return pd.DataFrame(values, columns=list(places), dtype=object)


# Folders.


def _read_folder(folder: Path, wanted: Wanted, most_bytes: int) -> ReportTables:
    """Read a folder of tables."""
    files = table_files(folder, wanted)
    suffixes = {path.suffix for path in files}
    if len(suffixes) > 1:
        problem = "contains both CSV and Parquet tables, possibly of two reports"
        raise errors.TraceFormatError(folder, problem, "give a folder with one kind")
    tables = {}
    for path in files:
        if path.stat().st_size > most_bytes:
            raise _too_large(path, size_text(most_bytes))
        columns = wanted[path.stem]
        with _reports_damage(path, "the table"):
            if path.suffix == OutputFormat.csv.suffix:
                tables[path.stem] = _read_csv(path, columns)
            else:
                tables[path.stem] = _read_parquet(path, columns, most_bytes)
    manifest = read_manifest(folder)
    return ReportTables(
        tables=tables, ours=bool(manifest), version=manifest.get(TABLES_VERSION_KEY)
    )


def _read_csv(path: Path, columns: Collection[str]) -> pd.DataFrame:
    """Read a CSV file, all values as texts."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        if file.read(1) != b"\n":
            raise errors.TraceFormatError(
                path, "is empty or cut off", "write the report again"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as for a row that is too long
        table: pd.DataFrame = pd.read_csv(
            path,
            nrows=_MAX_ROWS + 1,
            encoding="utf-8-sig",
            index_col=False,
            dtype=str,
            keep_default_na=False,
        )
    if len(table) > _MAX_ROWS:
        raise _too_large(path, f"{_MAX_ROWS:,} rows")
    places = _places(table.columns, columns)
    return table.iloc[:, list(places.values())].set_axis(list(places), axis=1)


def _read_parquet(
    path: Path, columns: Collection[str], most_bytes: int
) -> pd.DataFrame:
    """Read a Parquet file."""
    require_format(OutputFormat.parquet)
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names[:_MAX_COLUMNS]
        metadata = file.metadata
        places = _places(names, columns)
        unpacked_bytes = 0
        for group_number in range(metadata.num_row_groups):
            group = metadata.row_group(group_number)
            for place in places.values():
                unpacked_bytes += group.column(place).total_uncompressed_size
        if metadata.num_rows > _MAX_ROWS or unpacked_bytes > most_bytes:
            raise _too_large(path, f"{_MAX_ROWS:,} rows, or {size_text(most_bytes)}")
    chosen = [names[place] for place in places.values()]
    # A name that a million rows share is then kept once.
    with parquet.ParquetFile(path, read_dictionary=chosen) as file:
        table = file.read(columns=chosen, use_threads=False)
    series = {
        plain: table.column(name).to_pandas().astype(object)
        for plain, name in zip(places, chosen, strict=True)
    }
    return pd.DataFrame(series, dtype=object)
