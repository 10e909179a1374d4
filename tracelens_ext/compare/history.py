"""A trace against those before it: the median of each figure, and how far values lie from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.compare.finished import is_report, reports_among
from tracelens_ext.compare.verdict import time_basis
from tracelens_ext.errors import TracelensError
from tracelens_ext.lazy import pd
from tracelens_ext.readers import read_trace
from tracelens_ext.report.report import Report
from tracelens_ext.trace_files import traces_in

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import TableName
    from tracelens_ext.trace import Float64Array

LEAST = 3
_TITLE = "GPU performance against its history"
_TABLES: tuple[TableName, ...] = ("timeline", "categories", "operations", "kernels")
#: A start before 2001 is none of the calendar: the clock counts since the machine's start.
_FIRST_START = 10**18
_ROUNDING = 1e-6  # ms, of a division
_FAR = 3  # median absolute deviations that deserve a word


def history_in(folder: Path, last: int, without: Path) -> list[Path]:
    """The last traces of a folder, else the last reports, by recorded start, else by file time."""
    traces = [path for path in traces_in(folder) if not is_report(path)]
    found = traces or reports_among(sorted(folder.iterdir()))
    found = [path for path in found if path.resolve() != without.resolve()]
    if len(found) < LEAST:
        raise TracelensError(
            f"{folder}: holds {len(found)} traces or reports besides; a history needs {LEAST}"
        )
    if len(found) > last:
        found.sort(key=lambda path: (_start(path), path.stat().st_mtime_ns, path))
    return found[-last:]


def _start(path: Path) -> int:
    """When a trace was recorded, ns since 1970."""
    if not is_report(path):
        trace = read_trace(path)
        base = trace.metadata.get("baseTimeNanoseconds")
        start = trace.base_ns + (base if isinstance(base, int) else 0)
        if start > _FIRST_START:
            return start
    return path.stat().st_mtime_ns


def history_table(comparison: Comparison) -> pd.DataFrame:
    """A row a figure: its median, its median absolute deviation, and the trace's own value.

    Columns `table`, `figure`, `median_ms`, `mad_ms`, `time_ms`, `difference_ms` (from the median)
    and `difference_mads` (empty where the history does not vary). The farthest come first.
    """
    parts: list[tuple[str, list[str], Float64Array]] = []
    for name in _TABLES:
        if (aligned := comparison.aligned.get(name)) is not None:
            keys = aligned.keys.drop(columns="device", errors="ignore").astype(str)
            parts.append((name, keys.iloc[:, -1].tolist(), comparison.times_ms(name)))
    savings = [m.findings for m in comparison.measurements if m.findings is not None]
    if len(savings) == len(comparison.measurements):
        ids = list(dict.fromkeys(each for known in savings for each in known))
        found = [[known.get(each, (0.0, 0.0))[0] for known in savings] for each in ids]
        times = np.array(found).reshape(len(ids), len(savings)) / np.array(comparison.divisors)
        parts.append(("findings", ids, times))
    frames, surprise = [], []
    for table, figures, times in parts:
        median = np.median(times[:, :-1], axis=1)
        mad = np.median(np.abs(times[:, :-1] - median[:, None]), axis=1)
        change = times[:, -1] - median
        mads = np.divide(change, mad, out=np.full(len(mad), np.nan), where=mad > 0)
        surprise.append(np.where(mad > 0, np.abs(mads), np.where(change == 0, 0.0, np.inf)))
        columns = {"median_ms": median, "mad_ms": mad, "time_ms": times[:, -1]}
        columns |= {"difference_ms": change, "difference_mads": mads}
        frames.append(pd.DataFrame({"table": table, "figure": figures, **columns}))
    frame = pd.concat(frames, ignore_index=True)
    order = np.lexsort((-frame["difference_ms"].abs(), -np.concatenate(surprise)))
    return frame.iloc[order].reset_index(drop=True)


def history_report(comparison: Comparison) -> Report:
    """The comparison with a history, ready for any format."""
    table, count = history_table(comparison), len(comparison.measurements) - 1
    far = table[table["difference_ms"].abs() > _FAR * table["mad_ms"] + _ROUNDING]
    of = far[far["table"].isin(["timeline", "categories"])].to_dict("records")
    named = [f"{row['figure']} {row['difference_ms']:+,.3f} ms" for row in of[:_FAR]]
    text = f"Of {len(table):,} figures {len(far):,} are more than {_FAR} MAD from the median of"
    text += f" {count} before{': ' if named else ''}{', '.join(named)}."
    facts: list[tuple[str, object]] = [("Verdict", text)]
    for letter, each in comparison.named:
        facts.append((letter if each is not comparison.measurements[-1] else "Trace", each.path))
    return Report(
        title=_TITLE,
        sheets={"history": table},
        facts=[*facts, ("Times", time_basis(comparison))],
        descriptions={"history": "Each figure against the median of those before it"},
        members={"unit": comparison.unit.document(comparison.letters), "verdict": {"text": text}},
    )
