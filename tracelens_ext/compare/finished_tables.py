"""Tables of finished reports read back: of a workbook, JSON, a folder of CSV or Parquet files.

A report may come from anybody, so a workbook is looked through before openpyxl sees it.
"""

from __future__ import annotations

import errno
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from xml.parsers import expat

from tracelens_ext import errors
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import GENERATOR, TABLES_VERSION_KEY, made_here, read_manifest
from tracelens_ext.report.writing import OutputFormat, require_format
from tracelens_ext.settings import size_text
from tracelens_ext.text import one_line

ZIP = b"PK\x03\x04"
WORKBOOK_PART = "xl/workbook.xml"
#: Most that a report may hold: unpacked bytes, and rows of a table.
_MOST_BYTES = 300 * 10**6
_MOST_ROWS = 1_048_576
#: Columns in which one is looked for, and parts of a workbook.
_MOST_COLUMNS = 1000
_MOST_PARTS = 10_000
#: Elements of a workbook: cells and what is in them; all others, which cost openpyxl more, to the
#: square for some; how deep they nest.
_MOST_CELLS = 4_000_000
_MOST_OTHERS = 20_000
_DEEPEST = 100
#: Bytes without the end of a tag, so of one attribute or text; and characters of all attributes
#: but those of cells: openpyxl takes seconds for 10 MB of ranges.
_MOST_HELD = 1 << 20
_MOST_ATTRIBUTES = 2_000_000
_OF_CELLS = frozenset({"row", "c", "v", "is", "si", "t"})
_OTHER_FORM = "name the trace, or a folder of CSV or Parquet tables"
_PIECE = 1 << 18


Wanted = Mapping[str, Collection[str]]  #: sheet → plain names of its columns


class Tables(NamedTuple):
    """What was read of a report."""

    #: by name of the sheet; columns by their plain names, values as they were stored
    tables: Mapping[str, pd.DataFrame]
    ours: bool  #: whether this program made it
    version: object  #: of its tables, as far as it says so


def plain_name(column: object) -> str:
    """A column's name without case, underlines and signs: `time_ms` and `Time (ms)` are one."""
    return re.sub(r"[\W_]+", " ", str(column)).strip().casefold()


def table_files(folder: Path, sheets: Collection[str]) -> list[Path]:
    """The files of a folder that hold one of these sheets, as CSV or Parquet."""
    names = {
        f"{sheet}{kind.suffix}"
        for sheet in sheets
        for kind in (OutputFormat.csv, OutputFormat.parquet)
    }
    return [path for name in sorted(names) if (path := folder / name).is_file()]


def read_tables(path: Path, wanted: Wanted, max_bytes: int | None = None) -> Tables:
    """The tables of a report that are there; `wanted`: sheet → plain names of its columns."""
    most = max_bytes or _MOST_BYTES
    try:
        if path.is_dir():
            return _read_folder(path, wanted, most)
        with path.open("rb") as file:
            if file.read(1) == b"{" and made_here(path):
                return _read_json(path, wanted, most)
            return _read_workbook(path, file, wanted, most)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise errors.TraceNotFoundError(path, problem, "check the file") from None


@contextmanager
def _damage_told(path: Path, what: str) -> Iterator[None]:
    """Say of whatever a reader stumbles over that the file is damaged."""
    try:
        yield
    except errors.TracelensError:
        raise
    except Exception as error:  # openpyxl, zipfile, pandas, pyarrow: any kind
        # Those about damage: zipfile looks before the file's beginning; pyarrow's have no number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        problem = f"{what} is damaged ({one_line(str(error)) or type(error).__name__})"
        raise errors.TraceFormatError(path, problem, "write it again") from None


def _too_large(
    path: Path, what: str, remedy: str = "name the trace, or allow more bytes with --max-bytes"
) -> errors.TraceTooLargeError:
    return errors.TraceTooLargeError(path, f"holds more than {what}", remedy)


# Workbooks.


def _read_workbook(path: Path, file: BinaryIO, wanted: Wanted, most_bytes: int) -> Tables:
    file.seek(0)
    if file.read(len(ZIP)) != ZIP:
        raise errors.TraceFormatError(path, "is no workbook", "name an .xlsx report or a trace")
    _look_through(path, file, most_bytes)
    import openpyxl

    with _damage_told(path, "the workbook"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it does not keep, such as charts
        book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
        tables = {}
        for sheet in book.worksheets:
            columns = wanted.get(sheet.title)
            if columns and sheet.title not in tables:
                tables[sheet.title] = _sheet_table(path, sheet, columns)
        properties: Any = book.custom_doc_props  # type: ignore[attr-defined]  # since 3.1
        told = {each.name: each.value for each in properties.props}
    return Tables(tables, book.properties.creator == GENERATOR, told.get(TABLES_VERSION_KEY))


def _sheet_table(path: Path, sheet: Any, columns: Collection[str]) -> pd.DataFrame:  # noqa: ANN401
    sheet.reset_dimensions()  # a claim that may be wrong
    header = next(sheet.iter_rows(max_row=1, max_col=_MOST_COLUMNS, values_only=True), ())
    places = _places(header, columns)
    rows = list[tuple[object, ...]]()
    last = max(places.values(), default=0) + 1
    cells = sheet.iter_rows(min_row=2, max_col=last, values_only=True)
    for number, row in enumerate(cells, 2):  # a gap between rows is given as empty ones
        if number > _MOST_ROWS:
            raise _too_large(path, f"{_MOST_ROWS:,} rows in the sheet {sheet.title}")
        if any(value is not None for value in row):
            rows.append(tuple(row[place] for place in places.values()))
    return pd.DataFrame(rows, columns=list(places), dtype=object)


def _places(header: Collection[object], columns: Collection[str]) -> dict[str, int]:
    """Plain name of each wanted column that is there → its place; the first of two alike.

    A unit in brackets may follow the name: `count (kernels)`.
    """
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        for spelling in (str(name), re.sub(r" \([^()]*\)$", "", str(name))):
            if (plain := plain_name(spelling)) in columns:
                places.setdefault(plain, place)
    return places


def _look_through(path: Path, file: BinaryIO, most_bytes: int) -> None:
    """Refuse a workbook that would take too much memory or time, or that declares entities."""
    used = Counter[str]()
    with _damage_told(path, "the workbook"), zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) > _MOST_PARTS:
            raise _too_large(path, f"{_MOST_PARTS:,} parts")
        if WORKBOOK_PART not in archive.namelist():
            raise errors.TraceFormatError(path, "is a zip archive, no workbook", "name a workbook")
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"{info.filename}: packed as no workbook is")
            with archive.open(info) as part:
                _count(path, iter(partial(part.read, _PIECE), b""), used, most_bytes)
    file.seek(0)


def _count(path: Path, pieces: Iterator[bytes], used: Counter[str], most_bytes: int) -> None:
    """Count one part; what is no XML by its bytes alone, as openpyxl will not read it."""

    def declares(*_: object) -> None:
        problem = "declares XML entities, as no workbook does"
        raise errors.TraceFormatError(path, problem, "do not trust it")

    def begins(name: str, attributes: dict[str, str]) -> None:
        of_cells = name.rpartition(":")[2] in _OF_CELLS
        used["deep"] += 1
        used["cells" if of_cells else "others"] += 1
        used["attributes"] += 0 if of_cells else sum(map(len, attributes.values()))
        if used["deep"] > _DEEPEST:
            problem = f"nests XML over {_DEEPEST} deep, as no workbook does"
            raise errors.TraceFormatError(path, problem, "name another")
        if used["attributes"] > _MOST_ATTRIBUTES:
            raise _too_large(path, f"{size_text(_MOST_ATTRIBUTES)} of attributes", _OTHER_FORM)
        if used["cells"] > _MOST_CELLS or used["others"] > _MOST_OTHERS:
            what = f"{_MOST_CELLS // 2:,} cells, or {_MOST_OTHERS:,} other elements"
            raise _too_large(path, what, _OTHER_FORM)

    def ends(_: str) -> None:
        used["deep"] -= 1

    parser, is_xml, held, used["deep"] = expat.ParserCreate(), True, 0, 0
    parser.StartDoctypeDeclHandler = declares
    parser.StartElementHandler = begins
    parser.EndElementHandler = ends
    for piece in pieces:
        used["bytes"] += len(piece)
        if used["bytes"] > most_bytes:
            raise _too_large(path, f"{size_text(most_bytes)}, unpacked")
        before = used["cells"] + used["others"]
        try:
            if is_xml:
                parser.Parse(piece, False)
        except (expat.ExpatError, ValueError):
            is_xml = False
        held = held + len(piece) if used["cells"] + used["others"] == before else 0
        if is_xml and held > _MOST_HELD:
            raise _too_large(path, f"{size_text(_MOST_HELD)} in one element", _OTHER_FORM)


# JSON.


def _read_json(path: Path, wanted: Wanted, most_bytes: int) -> Tables:
    import msgspec

    if path.stat().st_size > most_bytes:
        raise _too_large(path, size_text(most_bytes))
    tables = {}
    rows_type = list[dict[str, str | float | int | bool | None]]
    with _damage_told(path, "the JSON"):
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        sheets = msgspec.json.decode(document["tables"], type=dict[str, msgspec.Raw])
        for name in wanted.keys() & sheets.keys():
            rows = msgspec.json.decode(sheets[name], type=rows_type)
            if len(rows) > _MOST_ROWS:
                raise _too_large(path, f"{_MOST_ROWS:,} rows in {name}")
            header = list(rows[0] if rows else ())
            places = _places(header, wanted[name])
            values = [tuple(row.get(header[p]) for p in places.values()) for row in rows]
            tables[name] = pd.DataFrame(values, columns=list(places), dtype=object)
        version = document.get(TABLES_VERSION_KEY)
    return Tables(tables, True, version and msgspec.json.decode(version))


# Folders.


def _read_folder(folder: Path, wanted: Wanted, most_bytes: int) -> Tables:
    files = table_files(folder, wanted)
    if len({path.suffix for path in files}) > 1:
        problem = "holds CSV and Parquet tables, maybe of two reports"
        raise errors.TraceFormatError(folder, problem, "name a folder with one")
    tables = {}
    for path in files:
        if path.stat().st_size > most_bytes:
            raise _too_large(path, size_text(most_bytes))
        columns = wanted[path.stem]
        is_csv = path.suffix == OutputFormat.csv.suffix
        with _damage_told(path, "the table"):
            read = _read_csv(path, columns) if is_csv else _read_parquet(path, columns, most_bytes)
        tables[path.stem] = read
    manifest = read_manifest(folder)
    return Tables(tables, bool(manifest), manifest.get(TABLES_VERSION_KEY))


def _read_csv(path: Path, columns: Collection[str]) -> pd.DataFrame:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        if file.read(1) != b"\n":
            raise errors.TraceFormatError(path, "is empty or cut off", "write the report again")
    as_is: dict[str, Any] = {"index_col": False, "dtype": str, "keep_default_na": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as for a row that is too long
        frame: pd.DataFrame = pd.read_csv(path, nrows=_MOST_ROWS + 1, encoding="utf-8-sig", **as_is)
    if len(frame) > _MOST_ROWS:
        raise _too_large(path, f"{_MOST_ROWS:,} rows")
    places = _places(frame.columns, columns)
    return frame.iloc[:, list(places.values())].set_axis(list(places), axis=1)


def _read_parquet(path: Path, columns: Collection[str], most_bytes: int) -> pd.DataFrame:
    require_format(OutputFormat.parquet)
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names[:_MOST_COLUMNS]
        metadata = file.metadata
        places = _places(names, columns)
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        parts = (group.column(place) for group in groups for place in places.values())
        unpacked = sum(part.total_uncompressed_size for part in parts)
        if metadata.num_rows > _MOST_ROWS or unpacked > most_bytes:
            raise _too_large(path, f"{_MOST_ROWS:,} rows, or {size_text(most_bytes)}")
    chosen = [names[place] for place in places.values()]
    # A name that a million rows share is then kept once.
    with parquet.ParquetFile(path, read_dictionary=chosen) as file:
        table = file.read(columns=chosen, use_threads=False)
    series = [table.column(name).to_pandas().astype(object) for name in chosen]
    return pd.DataFrame(dict(zip(places, series, strict=True)), dtype=object)
