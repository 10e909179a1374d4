"""The comparison of traces as a report: how traces are measured, tables, charts, descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.compare.measurement import NO_SAVING, measure
from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.errors import UsageError
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
from tracelens_ext.lazy import pd
from tracelens_ext.modules.modules import numbered
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.roofline.found import shape_text
from tracelens_ext.tables.charts import Chart
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement, Saving
    from tracelens_ext.modules.modules import NodePath
    from tracelens_ext.roofline.found import Roofline


def compare_findings(comparison: Comparison) -> pd.DataFrame | None:
    """A row a finding, the largest change first; None where some findings are unknown."""
    divided = zip(comparison.measurements, comparison.divisors, strict=True)
    known = [
        {name: (saving / units, share) for name, (saving, share) in measured.findings.items()}
        for measured, units in divided
        if measured.findings is not None
    ]
    if len(known) < len(comparison.measurements):
        return None
    letters = comparison.letters
    ids = list(dict.fromkeys(name for savings in known for name in savings))
    both = [[savings.get(name, NO_SAVING) for name in ids] for savings in known]
    saving, share = np.array(both, dtype=np.float64).reshape(len(known), -1, 2).transpose(2, 0, 1)
    columns: dict[str, object] = {"finding": pd.array(ids, dtype="str")}
    for prefix, savings in zip(prefixes(letters).values(), known[1:], strict=True):
        words = [_change(known[0].get(name), savings.get(name)) for name in ids]
        columns[f"{prefix}change"] = pd.array(words, dtype="str")
    columns |= {f"{letter}_saving_ms": saving[at] for at, letter in enumerate(letters)}
    for at, prefix in enumerate(prefixes(letters).values(), start=1):
        columns[f"{prefix}difference_ms"] = saving[at] - saving[0]
    columns |= {f"{letter}_% of judged time": share[at] for at, letter in enumerate(letters)}
    order = np.argsort(-np.abs(share - share[0]).max(axis=0), kind="stable")
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def _change(before: Saving | None, after: Saving | None) -> str:
    if before is None or after is None:
        return "" if before is after else "new" if before is None else "gone"
    grown = after[1] - before[1]
    if abs(grown) < LEAST_SHARE_PERCENT:
        return "as before"
    return "worse" if grown > 0 else "better"


_LOST_KEYS = ["op_name", "shapes"]


def time_lost(roofline: Roofline) -> pd.DataFrame:
    """`time_lost_ms` and `roofline_ms` by operation and shapes (with types), where known."""
    known = [row for row in roofline.rows if row.lost_ns is not None]
    frame = pd.DataFrame(
        {
            "op_name": [row.operation.name for row in known],
            "shapes": [shape_text(row) for row in known],
            "time_lost_ms": [(row.lost_ns or 0.0) / NS_PER_MS for row in known],
            "roofline_ms": [(row.roofline_ns or 0.0) / NS_PER_MS for row in known],
        }
    )
    sums: pd.DataFrame = frame.groupby(_LOST_KEYS, sort=False).sum()
    return sums


def compare_time_lost(
    lost: Sequence[pd.DataFrame],
    letters: Sequence[str],
    divisors: Sequence[float],
    *,
    normalize: bool = False,
) -> pd.DataFrame:
    """Time lost by unit, a row for each operation and its shapes; the first is A.

    Columns: `op_name`, `shapes`, `A_time_lost_ms`, `B_time_lost_ms`, `difference_ms` (B - A;
    of more than two traces `B_difference_ms` …), the largest difference first. With `normalize`
    also `A_lost_by_roofline`, the time lost by the time of the best case on the own device, and
    `difference_by_roofline`, which then orders the rows, each by A's best case. Empty where a trace
    has no such operation.
    """
    names = [f"{letter}_time_lost_ms" for letter in letters]
    ms = [each["time_lost_ms"] / units for each, units in zip(lost, divisors, strict=True)]
    frame = pd.concat(ms, axis=1, keys=names, sort=False)
    best = pd.concat([each["roofline_ms"] for each in lost], axis=1, keys=names, sort=False)
    shares = pd.concat([each["time_lost_ms"] for each in lost], axis=1, keys=names, sort=False)
    shares /= best.mask(best <= 0)
    sizes = {}
    for (letter, prefix), name in zip(prefixes(letters).items(), names[1:], strict=True):
        frame[f"{prefix}difference_ms"] = frame[name].fillna(0.0) - frame[names[0]].fillna(0.0)
        sizes[letter] = frame[f"{prefix}difference_ms"]
        if normalize:
            change = frame[f"{prefix}difference_by_roofline"] = shares[name] - shares[names[0]]
            sizes[letter] = change * best[names[0]]
    if normalize:
        for letter, name in zip(letters, names, strict=True):
            frame[f"{letter}_lost_by_roofline"] = shares[name]
    size = pd.DataFrame(sizes).abs().max(axis=1).fillna(0.0)
    order = size.sort_values(ascending=False, kind="stable").index
    return frame.loc[order].rename_axis(_LOST_KEYS).reset_index()


def lost_by_roofline(lost: Sequence[pd.DataFrame], letters: Sequence[str]) -> str:
    """A sentence: how much longer than its own device's best case each trace takes."""
    sums = [each[["time_lost_ms", "roofline_ms"]].sum() for each in lost]
    told = [
        f"{letter} loses {each['time_lost_ms'] / each['roofline_ms']:.2f}"
        for letter, each in zip(letters, sums, strict=True)
        if each["roofline_ms"] > 0
    ]
    return f"{' and '.join(told)} times the best case of its own device, where that is known."


_MOST_ROWS = 300  # each with its path: what a page can draw
_OTHER: NodePath = (("operation", "other"),)
_SAME, _SLOWER, _FASTER = (232, 234, 238), (214, 69, 65), (52, 120, 190)
_FULL = 0.5  # change, of the longer time, that has the full colour


def place_tree(places: pd.DataFrame, letters: Sequence[str]) -> pd.DataFrame:
    """Nodes with the times of both traces, parents before children; small ones as `other`.

    Columns as the call tree's (`gpu_time_ns` of both together, which is its width), `A_time_ms`,
    `B_time_ms`, `difference_ms`, and `colour` and `hover` for the page.
    """
    a, b = letters
    times = places[[f"{a}_time_ms", f"{b}_time_ms"]].fillna(0.0)
    sums: dict[NodePath, tuple[float, float, int]] = {}
    order = times.max(axis=1).sort_values(ascending=False, kind="stable").index
    records: list[dict[Any, Any]] = places.loc[order].to_dict("records")
    shown = times.loc[order].to_numpy().tolist()
    for at, (row, own) in enumerate(zip(records, shown, strict=True)):
        names = dict.fromkeys(filter(None, (row[f"{a}_operation"], row[f"{b}_operation"])))
        operation = " → ".join(names) + " (backward)" * bool(row["backward"])
        above = [("module", part) for part in row["path"].split("/") if part]
        path = (*above, ("operation", operation)) if at < _MOST_ROWS else _OTHER
        for depth in range(1, len(path) + 1):
            key = path[:depth]
            a_ms, b_ms, ns = sums.get(key, (0.0, 0.0, 0))
            # A node is as wide as those below together, so each place is rounded once.
            sums[key] = a_ms + own[0], b_ms + own[1], ns + round(sum(own) * NS_PER_MS)
    nodes = {path: sums[path] for path in sorted(sums, key=len)}
    rows = [
        {
            "category": "",
            "gpu_time_ns": ns,
            f"{a}_time_ms": a_ms,
            f"{b}_time_ms": b_ms,
            "difference_ms": b_ms - a_ms,
            "colour": _colour(a_ms, b_ms),
            "hover": f"{a} {a_ms:,.3f} ms, {b} {b_ms:,.3f} ms ({b_ms - a_ms:+,.3f} ms)",
        }
        for a_ms, b_ms, ns in nodes.values()
    ]
    return pd.concat([pd.DataFrame(numbered(nodes)), pd.DataFrame(rows)], axis=1)


def _colour(before: float, after: float) -> str:
    """Red where the other trace takes longer, blue where it takes less."""
    longer = max(before, after)
    change = (after - before) / longer if longer else 0.0
    share = min(abs(change) / _FULL, 1.0)
    end = _SLOWER if change > 0 else _FASTER
    mixed = (round(x + (y - x) * share) for x, y in zip(_SAME, end, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


TITLE = "GPU performance comparison"

_DESCRIPTIONS = {
    "verdict": "How much work each trace did, and how fast, compared with the first",
    "findings": "What would save time, the largest change of the share first",
    "timeline": "How the GPU spent its time; overlaps counted once",
    "phases": "GPU time by phase of serving; counts are steps",
    "categories": "GPU time by category, the largest change first",
    "operations": "GPU time by CPU operation, the largest change first",
    "kernels": "GPU time by kernel, the largest change first",
    "places": "GPU time by place in the program, the largest change first",
    "call_tree": "The places of both traces as a tree, as it is drawn",
    "roofline": "Time lost against the best case, the largest change first",
}


def measured_for_comparison(
    analyzer: TreePerfAnalyzer,
    micro_idle_thresh_us: float | None = None,
    device_peaks: str | None = None,
) -> Measurement:
    """Measure a trace, its findings and the time that it loses."""
    measured = measure(analyzer.work, micro_idle_thresh_us=micro_idle_thresh_us)
    found, roofline = analyzer.findings(device_peaks).findings, analyzer.roofline(device_peaks)
    savings = {each.id: (each.claimed_ms, each.share_percent) for each in found}
    lost = time_lost(roofline) if roofline.has_shapes else None
    return replace(measured, findings=savings, lost=lost)


def comparison_report(comparison: Comparison, *, normalize: bool = False) -> Report:
    """A comparison, ready for any format.

    Args:
        comparison: the traces.
        normalize: whether time lost is also told by the best case of each device.

    Raises:
        UsageError: that is not known.
    """
    letters = comparison.letters
    charts = [
        Chart(
            title=f"Change of GPU time by category, {letter} against {letters[0]}",
            sheet="categories",
            label_column=str(categories.columns[0]),
            value_column=f"{prefix}difference_ms",
        )
        for letter, prefix in prefixes(letters).items()
        if (categories := comparison.tables.get("categories")) is not None
    ]
    findings = compare_findings(comparison)
    lost = [m.lost for m in comparison.measurements if m.lost is not None and len(m.lost)]
    table, told = None, []
    if len(lost) == len(letters):
        table = compare_time_lost(lost, letters, comparison.divisors, normalize=normalize)
        told = [lost_by_roofline(lost, letters)] if normalize else []
    elif normalize:
        raise UsageError(
            "--normalize roofline needs recorded shapes and known devices in all traces;"
            " give the peaks with --device-peaks"
        )
    trees = {}
    if (places := comparison.tables.get("places")) is not None and len(places):
        own = places if len(letters) == 2 else places[places["trace"] == letters[1]]
        trees["call_tree"] = place_tree(own, letters[:2])
        title = f"GPU time of {letters[0]} and {letters[1]} by place"
        charts.append(Chart(title, "call_tree", "label", "gpu_time_ns", "call_tree", on="page"))
    verdicts = comparison.verdicts
    columns = {
        "trace": letters[1:],
        "verdict": [each.text for each in verdicts],
        "work_ratio": [each.work_ratio for each in verdicts],
        "speed_ratio": [each.speed_ratio for each in verdicts],
    }
    return Report(
        title=TITLE,
        sheets={"verdict": pd.DataFrame(columns)}
        | ({} if findings is None else {"findings": findings})
        | comparison.tables
        | ({} if table is None else {"roofline": table}),
        facts=comparison.facts,
        notes=[*told, *comparison.notes],
        descriptions=_DESCRIPTIONS,
        charts=charts,
        page_sheets=trees,
        units={"verdict": {}},
        answers=[Answer("Verdict", "verdict", list(columns))],
        members=comparison.members,
    )
