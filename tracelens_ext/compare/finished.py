"""Finished reports, ours and TraceLens's, as measurements; the traces or reports of a history."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compare import finished_tables as stored
from tracelens_ext.compare.finished_tables import plain_name
from tracelens_ext.compare.measurement import KEYS, STAND_INS, TRACELENS, Figures, Measurement
from tracelens_ext.errors import TraceFormatError, TracelensError
from tracelens_ext.lazy import pd
from tracelens_ext.readers import read_trace
from tracelens_ext.report.manifest import GENERATOR, TABLES_VERSION, made_here
from tracelens_ext.text import one_line
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Float64Array, Int64Array
from tracelens_ext.trace_files import traces_in


@dataclass(frozen=True)
class _Sheet:
    """A sheet that is read; columns are found by their plain names (`plain_name`)."""

    name: str  #: of the sheet
    keys: Mapping[str, str]  #: columns that name the rows → what a measurement calls them
    time: str  #: the column of times
    ns: float = NS_PER_MS  #: in their unit
    count: str = ""  #: the column of counts; empty for none
    #: the column of percentages, which add up to 100 if the sheet is whole; empty for none.
    share: str = ""


_TIMELINE = _Sheet("gpu_timeline", {"device": "device", "type": "type"}, "time ms")
_OF_KERNELS = {plain_name(n): n for n in ("cpu_op", "kernel_category", "kernel_name", "kind")}
_OF_OPS = ("total direct kernel time ms", NS_PER_MS, "count", "percentage")
_OF_ALL = (_OF_KERNELS, "total time ms", NS_PER_MS, "count", "of gpu time")
_SUM, _COUNT = (plain_name(f"Kernel duration (µs)_{what}") for what in ("sum", "count"))
_OF_SUMMARY = (_SUM, NS_PER_US, _COUNT, "percent of kernels time")
#: What is read beside the timeline; a table is taken from the first sheet that has its columns.
_SHEETS = (
    _Sheet("kernels_by_category", *_OF_ALL),
    _Sheet("kernel_categories", *_OF_ALL),
    _Sheet("kernel_summary", {"kernel name": "kernel_name"}, *_OF_SUMMARY),
    _Sheet("ops_summary", {"name": "launcher"}, *_OF_OPS),
    _Sheet("ops_summary_by_category", {"op category": "op category"}, *_OF_OPS),
)
_FINDINGS = "findings"
#: Columns of that sheet: the id, and the two that a finding saves.
_SAVINGS = ("finding", "claimed ms", "of judged time")
#: What reports of earlier versions call them.
_BEFORE = {"of wall time": _SAVINGS[2], "saving ms": _SAVINGS[1]}
#: How far from 100 the percentages of a whole sheet may be.
_ABOUT = 0.5
_BEGINNING = 1 << 18  # of a file in which a report's sheets are named
_LEAST = 3  # traces of a history
#: A start before 2001 is none of the calendar: the clock counts since the machine's start.
_FIRST_START = 10**18
_MOST_NS = 2.0**62
_AGAIN = "write the report again"


def is_report(path: Path, *, of_trace: bool = False) -> bool:
    """Whether an argument is a finished report, even a damaged one; `of_trace`: and no comparison.

    What is none is a trace.
    """
    name = _TIMELINE.name
    try:
        if path.is_dir():
            return bool(stored.table_files(path, [name]))
        if path.suffix.lower() == ".xlsx" and not of_trace:
            return True
        with path.open("rb") as file:
            head = file.read(_BEGINNING)
            if not head.startswith(stored.ZIP):
                there = not of_trace or f'"{name}": ['.encode() in head
                return there and head.startswith(b"{") and made_here(path)
            with zipfile.ZipFile(file) as archive, archive.open(stored.WORKBOOK_PART) as part:
                return not of_trace or f'"{name}"'.encode() in part.read(_BEGINNING)
    except Exception:  # noqa: BLE001  # of a damaged archive, any; whoever reads it says what is wrong
        return False


def history_in(folder: Path, last: int, without: Path) -> list[Path]:
    """The last traces of a folder, else the last reports, by recorded start, else by file time."""
    traces = [path for path in traces_in(folder) if not is_report(path)]
    found = traces or [p for p in sorted(folder.iterdir()) if is_report(p, of_trace=True)]
    found = [path for path in found if path.resolve() != without.resolve()]
    if len(found) < _LEAST:
        holds = f"holds {len(found)} traces or reports besides; a history needs {_LEAST}"
        raise TracelensError(f"{folder}: {holds}")
    if len(found) > last:
        found.sort(key=lambda path: (_start(path), path.stat().st_mtime_ns, path))
    return found[-last:]


def _start(path: Path) -> int:
    """When a trace was recorded, ns since 1970."""
    start = 0
    if not is_report(path):
        trace = read_trace(path)
        base = trace.metadata.get("baseTimeNanoseconds")
        start = trace.base_ns + (base if isinstance(base, int) else 0)
    return start if start > _FIRST_START else path.stat().st_mtime_ns


def measure_report(path: Path, max_bytes: int | None = None) -> Measurement:
    """Measure a finished report for a comparison.

    Args:
        path: a workbook, a JSON report, or a folder of CSV or Parquet tables.
        max_bytes: of text that it may have; None for the default.

    Raises:
        TraceError: the report cannot be read, or holds no timeline.
        UsageError: a package is missing.
    """
    sheets = (_TIMELINE, *_SHEETS)
    wanted = {s.name: {*s.keys, s.time, s.count, s.share} - {""} for s in sheets}
    read = stored.read_tables(path, wanted | {_FINDINGS: {*_SAVINGS, *_BEFORE}}, max_bytes)
    if isinstance(read.version, int | float) and read.version > TABLES_VERSION:
        remedy = "update this one, or name the trace"
        raise TraceFormatError(path, "was made by a newer tracelens-ext", remedy)
    if _TIMELINE.name not in read.tables:
        remedy = "name a report of GPU work, or its trace"
        raise TraceFormatError(path, f"holds no sheet {_TIMELINE.name}", remedy)
    tables, notes = _found(path, read.tables)
    table = read.tables[_TIMELINE.name]
    rows = _rows(path, _TIMELINE, table)
    if "type" not in rows or "total_time" not in set(rows["type"]):
        raise TraceFormatError(path, f"the sheet {_TIMELINE.name} has no row total_time", _AGAIN)
    device = _whole(path, _TIMELINE.name, table, "device", 1) if "device" in rows else NONE
    tables["timeline"] = rows.assign(device=device, calls=0)
    named = tables["categories"]["kernel_category"] if "categories" in tables else ()
    findings = _findings(path, read.tables.get(_FINDINGS, pd.DataFrame()))
    return Measurement(
        path=str(path),
        devices="not in the report",
        total=Figures(tables),
        categories=frozenset(named),
        report=GENERATOR if read.ours else TRACELENS,
        notes=tuple(notes),
        findings=findings,
    )


def _findings(path: Path, table: pd.DataFrame) -> dict[str, tuple[float, float]] | None:
    table = table.rename(columns={old: new for old, new in _BEFORE.items() if new not in table})
    if not set(_SAVINGS) <= set(table):
        return None
    ms, shares = (_numbers(path, _FINDINGS, table, name).tolist() for name in _SAVINGS[1:])
    return dict(zip(_texts(table[_SAVINGS[0]]), zip(ms, shares, strict=True), strict=True))


def with_reference(measured: Measurement, analyzer: TreePerfAnalyzer) -> Measurement:
    """The measurement of a trace, with what TraceLens's sheets would hold, as some reports do."""
    from tracelens_ext.analysis.kernels.kernels import reference_kernel_summary

    tables = {"kernel_summary": reference_kernel_summary(analyzer.work)}
    if analyzer.trace.count_of(*analyzer.trace.operation_kinds):
        by_category = analyzer.get_df_kernel_launchers_summary_by_category()
        tables["ops_summary"] = analyzer.get_df_kernel_launchers_summary()
        tables["ops_summary_by_category"] = by_category
    plain = {name: table.rename(columns=plain_name) for name, table in tables.items()}
    found, _ = _found(Path(measured.path), plain)
    total = replace(measured.total, tables={**measured.total.tables, **found})
    return replace(measured, total=total)


def _found(
    path: Path, tables: Mapping[str, pd.DataFrame]
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """What is in a report but for the timeline: `tables` of `Figures`, and notes."""
    found: dict[str, pd.DataFrame] = {}
    notes: list[str] = []
    for sheet in _SHEETS:
        table = tables.get(sheet.name)
        if table is None or not len(table) or sheet.time not in table:
            continue
        rows = _rows(path, sheet, table)
        shares = _numbers(path, sheet.name, table, sheet.share) if sheet.share in table else None
        if shares is not None and rows["ns"].any() and abs(shares.sum() - 100) > _ABOUT:
            holds = f"holds {shares.sum():.1f} % of the time and is left out"
            notes.append(f"the sheet {sheet.name} {holds}")
        else:
            found = _tables(sheet, rows) | found  # earlier sheets come first
    return found, notes


def _tables(sheet: _Sheet, rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables whose columns are there."""
    wanted = [(name, [*KEYS[name]], rows) for name in STAND_INS]
    if sheet.keys is not _OF_KERNELS or "kind" in rows:  # copies do not count there
        kernels = rows[rows["kind"] == "kernel"] if "kind" in rows else rows
        wanted += [(key, [key], kernels) for key in STAND_INS.values()]
    tables = {}
    for name, keys, part in wanted:
        if {*keys} <= {*part}:
            grouped = part.groupby(keys, sort=False)[["ns", "count"]].sum().reset_index()
            tables[name] = grouped.assign(calls=grouped["count"])
    return tables


def _rows(path: Path, sheet: _Sheet, table: pd.DataFrame) -> pd.DataFrame:
    """A table as a measurement has it: its keys, `ns`, `count`."""
    keys = {key: _texts(table[name]) for name, key in sheet.keys.items() if name in table}
    ns = _whole(path, sheet.name, table, sheet.time, sheet.ns)
    counts = _whole(path, sheet.name, table, sheet.count, 1) if sheet.count else 0
    return pd.DataFrame({**keys, "ns": ns, "count": counts})


def _texts(column: pd.Series) -> list[str]:
    """A column of names; an empty name is an empty cell in a workbook."""
    return ["" if each is None or each != each else str(each) for each in column.tolist()]


def _numbers(path: Path, sheet: str, table: pd.DataFrame, column: str) -> Float64Array:
    """A column of numbers, none of which is missing or below 0."""
    if column not in table:
        raise TraceFormatError(path, f"the sheet {sheet} has no column {column!r}", _AGAIN)
    # Of a date, say, nothing is made.
    plain = [value if isinstance(value, int | float | str) else None for value in table[column]]
    numbers = pd.to_numeric(pd.Series(plain, dtype=object), errors="coerce")
    values: Float64Array = numbers.to_numpy(dtype=np.float64)
    if len(wrong := np.flatnonzero(~((values >= 0) & np.isfinite(values)))):
        at = int(wrong[0])
        said = one_line(repr(plain[at]))[:40]
        problem = f"row {at + 2} of the sheet {sheet} has {said} in the column {column!r}"
        raise TraceFormatError(path, problem, f"expected a number; {_AGAIN}")
    return values


def _whole(path: Path, sheet: str, table: pd.DataFrame, column: str, per_unit: float) -> Int64Array:
    """A column in a smaller unit, as whole numbers: exact where a time was of whole ns."""
    values = np.rint(_numbers(path, sheet, table, column) * per_unit)
    if values.sum() >= _MOST_NS:
        raise TraceFormatError(path, f"the sheet {sheet} has absurd numbers in {column!r}", _AGAIN)
    return values.astype(np.int64)
