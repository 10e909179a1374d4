"""Measures finished reports of this program and of TraceLens, and finds the files of a history."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compare import report_files
from tracelens_ext.compare.measurement import (
    KEYS,
    STAND_INS,
    TRACELENS,
    Figures,
    Measurement,
    Saving,
)
from tracelens_ext.compare.report_files import plain_name
from tracelens_ext.compare.untrusted_reports import WORKBOOK_PART
from tracelens_ext.compatibility.earlier_names import new_finding_id
from tracelens_ext.errors import TraceFormatError, TracelensError
from tracelens_ext.lazy import pd
from tracelens_ext.readers import read_trace
from tracelens_ext.report.manifest import GENERATOR, TABLES_VERSION, has_own_mark
from tracelens_ext.text import one_line
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Float64Array, Int64Array
from tracelens_ext.trace_files import traces_in


@dataclass(frozen=True)
class _ReportSheet:
    """A sheet of a report, and which of its columns are read.

    Columns are identified by their plain names (`plain_name`).
    """

    name: str
    #: column that identifies rows → name of the key column in a measurement
    keys: Mapping[str, str]
    time: str  #: the column with times
    ns_per_unit: float = NS_PER_MS  #: ns in one unit of the times
    count: str = ""  #: the column with counts; empty if there is none
    #: the column with percentages, which add up to 100 if no rows are missing; empty if there is
    #: none
    share: str = ""

    @property
    def columns(self) -> set[str]:
        """The plain names of all columns that are read."""
        columns = set(self.keys) | {self.time, self.count, self.share}
        columns.discard("")
        return columns


_TIMELINE = _ReportSheet(
    name="gpu_timeline", keys={"device": "device", "type": "type"}, time="time ms"
)
_KERNEL_KEYS = {
    plain_name(column): column
    for column in ("cpu_op", "kernel_category", "kernel_name", "kind")
}
_KERNELS_BY_CATEGORY = _ReportSheet(
    "kernels_by_category",
    _KERNEL_KEYS,
    time="total time ms",
    count="count",
    share="of gpu time",
)
_KERNEL_CATEGORIES = replace(_KERNELS_BY_CATEGORY, name="kernel_categories")
_KERNEL_SUMMARY = _ReportSheet(
    name="kernel_summary",
    keys={"kernel name": "kernel_name"},
    time=plain_name("Kernel duration (µs)_sum"),
    ns_per_unit=NS_PER_US,
    count=plain_name("Kernel duration (µs)_count"),
    share="percent of kernels time",
)
_OPS_SUMMARY = _ReportSheet(
    name="ops_summary",
    keys={"name": "launcher"},
    time="total direct kernel time ms",
    count="count",
    share="percentage",
)
_OPS_SUMMARY_BY_CATEGORY = replace(
    _OPS_SUMMARY, name="ops_summary_by_category", keys={"op category": "op category"}
)
#: The sheets besides the timeline. A table is taken from the first of them that has its columns.
_SHEETS = (
    _KERNELS_BY_CATEGORY,
    _KERNEL_CATEGORIES,
    _KERNEL_SUMMARY,
    _OPS_SUMMARY,
    _OPS_SUMMARY_BY_CATEGORY,
)
_FINDINGS = "findings"
#: Columns of the sheet `findings`.
_FINDING_ID = "finding"
_ATTRIBUTED_MS = "attributed ms"
_ATTRIBUTED_PERCENT = "of analyzed time"
#: Names of these columns in reports of earlier versions, the latest version first.
_EARLIER_NAMES = {
    "claimed ms": _ATTRIBUTED_MS,
    "of judged time": _ATTRIBUTED_PERCENT,
    "saving ms": _ATTRIBUTED_MS,
    "of wall time": _ATTRIBUTED_PERCENT,
}
#: The percentages of a sheet without missing rows may deviate this much from 100.
_PERCENT_TOLERANCE = 0.5
#: The sheets of a report are named within this many bytes at the beginning of the file.
_BEGINNING_BYTES = 1 << 18
#: The fewest traces of a history.
_MIN_HISTORY = 3
#: Times before 2001 are not dates: they come from clocks that count from the start of the machine.
_FIRST_START_NS = 10**18
#: Larger sums of times cannot be right.
_MAX_NS = 2.0**62
_MAX_QUOTED = 40
_WRITE_AGAIN = "write the report again"


def is_report(path: Path, *, of_trace: bool = False) -> bool:
    """Tell whether a path is a finished report, even a damaged one, and not a trace.

    Args:
        path: a file or folder.
        of_trace: True to accept only reports about a trace, not comparisons.
    """
    try:
        if path.is_dir():
            return bool(report_files.table_files(path, [_TIMELINE.name]))
        if path.suffix.lower() == ".xlsx" and not of_trace:
            return True
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
            if not beginning.startswith(report_files.ZIP):
                return _is_json_report(path, beginning, of_trace=of_trace)
            with (
                zipfile.ZipFile(file) as archive,
                archive.open(WORKBOOK_PART) as part,
            ):
                sheet = f'"{_TIMELINE.name}"'.encode()
                return not of_trace or sheet in part.read(_BEGINNING_BYTES)
    except Exception:  # noqa: BLE001  # damaged archives raise many errors; reading reports them
        return False


def _is_json_report(path: Path, beginning: bytes, *, of_trace: bool) -> bool:
    """Tell whether a file is a JSON report that this program wrote."""
    if not beginning.startswith(b"{") or not has_own_mark(path):
        return False
    return not of_trace or f'"{_TIMELINE.name}": ['.encode() in beginning


def history_in(folder: Path, last: int, without: Path) -> list[Path]:
    """Return the latest traces of a folder, or its latest reports if it contains no traces.

    Args:
        folder: the folder with the history.
        last: the most traces or reports that are returned.
        without: the trace that is compared with the history; it is left out.

    Raises:
        TracelensError: the folder contains fewer than three traces or reports.
    """
    paths = [path for path in traces_in(folder) if not is_report(path)]
    if not paths:
        paths = [
            path for path in sorted(folder.iterdir()) if is_report(path, of_trace=True)
        ]
    paths = [path for path in paths if path.resolve() != without.resolve()]
    if len(paths) < _MIN_HISTORY:
        problem = f"contains {len(paths)} other traces or reports"
        raise TracelensError(f"{folder}: {problem}; a history needs {_MIN_HISTORY}")
    if len(paths) > last:
        paths.sort(key=lambda path: (_start(path), path.stat().st_mtime_ns, path))
    return paths[-last:]


def _start(path: Path) -> int:
    """Return when a trace was recorded, or a report was written, ns since 1970.

    If a trace does not record its date, the time of its file is used.
    """
    if not is_report(path):
        trace = read_trace(path)
        start = trace.base_ns
        base_time = trace.metadata.get("baseTimeNanoseconds")
        if isinstance(base_time, int):
            start += base_time
        if start > _FIRST_START_NS:
            return start
    return path.stat().st_mtime_ns


def measure_report(path: Path, max_bytes: int | None = None) -> Measurement:
    """Measure a finished report for a comparison.

    Args:
        path: a workbook, a JSON report, or a folder of CSV or Parquet tables.
        max_bytes: the most bytes of text that the report may have; None for the default.

    Raises:
        TraceError: the report cannot be read, or has no timeline.
        UsageError: a package is missing.
    """
    wanted = {sheet.name: sheet.columns for sheet in (_TIMELINE,) + _SHEETS}
    wanted[_FINDINGS] = {_FINDING_ID, _ATTRIBUTED_MS, _ATTRIBUTED_PERCENT} | set(
        _EARLIER_NAMES
    )
    report = report_files.read_tables(path, wanted, max_bytes)
    if isinstance(report.version, int | float) and report.version > TABLES_VERSION:
        remedy = "update tracelens-ext, or give the trace"
        raise TraceFormatError(path, "was written by a newer tracelens-ext", remedy)
    if _TIMELINE.name not in report.tables:
        remedy = "give a report of GPU work, or its trace"
        raise TraceFormatError(path, f"has no sheet {_TIMELINE.name}", remedy)
    kernel_tables = _kernel_tables(path, report.tables)
    tables = {
        **kernel_tables.tables,
        "timeline": _timeline(path, report.tables[_TIMELINE.name]),
    }
    categories: Sequence[str] = ()
    if "categories" in tables:
        categories = tables["categories"]["kernel_category"].tolist()
    return Measurement(
        path=str(path),
        devices="not in the report",
        total=Figures(tables),
        categories=frozenset(categories),
        report=GENERATOR if report.is_ours else TRACELENS,
        notes=tuple(kernel_tables.notes),
        findings=_findings(path, report.tables.get(_FINDINGS)),
    )


def _timeline(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return the timeline of a report as a table of `Figures`."""
    rows = _rows(path, _TIMELINE, table)
    if "type" not in rows or "total_time" not in set(rows["type"]):
        problem = f"the sheet {_TIMELINE.name} has no row total_time"
        raise TraceFormatError(path, problem, _WRITE_AGAIN)
    device: Int64Array | int = NONE
    if "device" in rows:
        device = _whole_numbers(
            path=path, sheet=_TIMELINE.name, table=table, column="device", per_unit=1
        )
    return rows.assign(device=device, calls=0)


def _findings(path: Path, table: pd.DataFrame | None) -> dict[str, Saving] | None:
    """Return id → saving of each finding of a report; None if the report has no findings."""
    if table is None:
        return None
    for old, new in _EARLIER_NAMES.items():
        if old in table and new not in table:
            table = table.rename(columns={old: new})
    if not {_FINDING_ID, _ATTRIBUTED_MS, _ATTRIBUTED_PERCENT} <= set(table):
        return None
    attributed_ms = _numbers(
        path=path, sheet=_FINDINGS, table=table, column=_ATTRIBUTED_MS
    ).tolist()
    attributed_percent = _numbers(
        path=path, sheet=_FINDINGS, table=table, column=_ATTRIBUTED_PERCENT
    ).tolist()
    identifiers = [new_finding_id(text) for text in _texts(table[_FINDING_ID])]
    attributed = zip(attributed_ms, attributed_percent, strict=True)
    return dict(zip(identifiers, attributed, strict=True))


def with_reference(measured: Measurement, analyzer: TreePerfAnalyzer) -> Measurement:
    """Return the measurement of a trace with the tables that TraceLens's sheets would contain.

    This makes the trace comparable with reports that contain no other tables.

    Args:
        measured: the measurement of the trace.
        analyzer: the analyzer of the trace.
    """
    from tracelens_ext.analysis.kernels.kernels import tracelens_kernel_summary

    sheets = {_KERNEL_SUMMARY.name: tracelens_kernel_summary(analyzer.gpu_events)}
    if analyzer.trace.count_of(*analyzer.trace.operation_kinds):
        by_category = analyzer.get_df_kernel_launchers_summary_by_category()
        sheets[_OPS_SUMMARY.name] = analyzer.get_df_kernel_launchers_summary()
        sheets[_OPS_SUMMARY_BY_CATEGORY.name] = by_category
    plain_sheets = {
        name: sheet.rename(columns=plain_name) for name, sheet in sheets.items()
    }
    reference = _kernel_tables(Path(measured.path), plain_sheets)
    tables = dict(measured.total.tables)
    tables.update(reference.tables)
    total = replace(measured.total, tables=tables)
    return replace(measured, total=total)


class _KernelTables(NamedTuple):
    """The tables of a report besides the timeline."""

    tables: dict[str, pd.DataFrame]  #: tables of `Figures`
    notes: list[str]  #: a clause for each sheet that is left out


def _kernel_tables(path: Path, sheets: Mapping[str, pd.DataFrame]) -> _KernelTables:
    """Return the tables in the sheets of a report, without sheets that lack rows."""
    tables: dict[str, pd.DataFrame] = {}
    notes = []
    for sheet in _SHEETS:
        table = sheets.get(sheet.name)
        if table is None or not len(table) or sheet.time not in table:
            continue
        rows = _rows(path, sheet, table)
        covered_percent = _covered_percent(path, sheet, table)
        has_all_rows = abs(covered_percent - 100) <= _PERCENT_TOLERANCE
        if rows["ns"].any() and not has_all_rows:
            problem = f"covers {covered_percent:.1f} % of the time and is left out"
            notes.append(f"the sheet {sheet.name} {problem}")
            continue
        for name, grouped in _tables_of_sheet(sheet, rows).items():
            tables.setdefault(name, grouped)
    return _KernelTables(tables, notes)


def _covered_percent(path: Path, sheet: _ReportSheet, table: pd.DataFrame) -> float:
    """Return the sum of a sheet's percentages, which is below 100 if rows are missing.

    The result is 100 if the sheet has no percentages.
    """
    if sheet.share not in table:
        return 100.0
    return float(
        _numbers(path=path, sheet=sheet.name, table=table, column=sheet.share).sum()
    )


def _tables_of_sheet(
    sheet: _ReportSheet, rows: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Return the tables, and their stand-ins, whose key columns a sheet has."""
    tables = {}
    for name in STAND_INS:
        tables[name] = _times_by_keys(rows, KEYS[name])
    # Stand-ins contain no copies. A sheet with copies needs the column `kind` to leave them out.
    has_copies = sheet.keys is _KERNEL_KEYS
    has_kind = "kind" in rows
    if has_kind or not has_copies:
        kernels = rows[rows["kind"] == "kernel"] if has_kind else rows
        for stand_in in STAND_INS.values():
            tables[stand_in] = _times_by_keys(kernels, (stand_in,))
    return {name: table for name, table in tables.items() if table is not None}


def _times_by_keys(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame | None:
    """Return times and counts grouped by key columns; None if a key column is missing."""
    if not set(keys) <= set(rows):
        return None
    sums = rows.groupby(list(keys), sort=False)[["ns", "count"]].sum().reset_index()
    return sums.assign(calls=sums["count"])


def _rows(path: Path, sheet: _ReportSheet, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a sheet with the key columns of a measurement, `ns` and `count`."""
    columns: dict[str, object] = {}
    for name, key in sheet.keys.items():
        if name in table:
            columns[key] = _texts(table[name])
    columns["ns"] = _whole_numbers(
        path=path,
        sheet=sheet.name,
        table=table,
        column=sheet.time,
        per_unit=sheet.ns_per_unit,
    )
    columns["count"] = 0
    if sheet.count:
        columns["count"] = _whole_numbers(
            path=path, sheet=sheet.name, table=table, column=sheet.count, per_unit=1
        )
    return pd.DataFrame(columns)


def _texts(column: pd.Series) -> list[str]:
    """Return a column of names. Workbooks have empty cells in place of empty names."""
    return ["" if pd.isna(value) else str(value) for value in column.tolist()]


def _numbers(path: Path, sheet: str, table: pd.DataFrame, column: str) -> Float64Array:
    """Return a column of numbers.

    Raises:
        TraceFormatError: a number is missing or negative, or the column does not exist.
    """
    if column not in table:
        problem = f"the sheet {sheet} has no column {column!r}"
        raise TraceFormatError(path, problem, _WRITE_AGAIN)
    # pandas would convert other types, such as dates, to numbers.
    values = [
        value if isinstance(value, int | float | str) else None
        for value in table[column]
    ]
    series = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    numbers: Float64Array = series.to_numpy(dtype=np.float64)
    is_valid = (numbers >= 0) & np.isfinite(numbers)
    if not is_valid.all():
        row = int(np.flatnonzero(~is_valid)[0])
        quoted = one_line(repr(values[row]))[:_MAX_QUOTED]
        # The first row of a sheet is the header, and rows count from 1.
        problem = (
            f"row {row + 2} of the sheet {sheet} has {quoted} in the column {column!r}"
        )
        raise TraceFormatError(path, problem, f"expected a number; {_WRITE_AGAIN}")
    return numbers


def _whole_numbers(
    path: Path, sheet: str, table: pd.DataFrame, column: str, per_unit: float
) -> Int64Array:
    """Return a column of numbers, multiplied by `per_unit` and rounded to whole numbers.

    Raises:
        TraceFormatError: a number is missing or negative, or the sum is impossibly large.
    """
    values = np.rint(
        _numbers(path=path, sheet=sheet, table=table, column=column) * per_unit
    )
    if values.sum() >= _MAX_NS:
        problem = f"the sheet {sheet} has impossible numbers in {column!r}"
        raise TraceFormatError(path, problem, _WRITE_AGAIN)
    return values.astype(np.int64)
