"""Comparisons of traces, or of one with its history, as reports; how traces are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens_ext.analysis.call_tree_chart import NodePath, numbered
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compare.comparison import Comparison
from tracelens_ext.compare.measurement import KEYS, Measurement, measure
from tracelens_ext.compare.verdict import prefixes, time_basis
from tracelens_ext.errors import UsageError
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.summary import shape_text
from tracelens_ext.trace import NS_PER_MS


def compare_findings(comparison: Comparison) -> pd.DataFrame | None:
    """A row a finding, the largest change first; None where some findings are unknown."""
    if comparison.savings is None:
        return None
    letters = comparison.letters
    (ids, cells) = comparison.savings
    lacks = np.isnan(cells[..., 0].T)
    saving, share = np.nan_to_num(cells).transpose(2, 1, 0)
    grown = share - share[0]
    change = saving - saving[0]
    same = np.abs(grown) < LEAST_SHARE_PERCENT
    named = [*enumerate(prefixes(letters).values(), 1)]
    columns: dict[str, object] = {"finding": pd.array(ids, dtype="str")}
    for at, prefix in named:
        cases = [lacks[0] & lacks[at], lacks[0], lacks[at], same[at], grown[at] > 0]
        word = np.select(cases, ["", "new", "gone", "as before", "worse"], "better")
        columns[f"{prefix}change"] = pd.array(word.tolist(), dtype="str")
    columns |= {f"{letter}_saving_ms": saving[at] for at, letter in enumerate(letters)}
    columns |= {f"{prefix}difference_ms": change[at] for at, prefix in named}
    columns |= {f"{letter}_% of judged time": share[at] for at, letter in enumerate(letters)}
    order = np.argsort(-np.abs(grown).max(axis=0), kind="stable")
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


_LOST_KEYS = ["op_name", "shapes"]


def time_lost(roofline: Roofline) -> pd.DataFrame:
    """`time_lost_ms` and `roofline_ms` by operation and shapes (with types), where known."""
    rows = [row for row in roofline.rows if row.lost_ns is not None]
    known = [(r.operation.name, shape_text(r), r.lost_ns, r.roofline_ns or 0.0) for r in rows]
    frame = pd.DataFrame(known, columns=[*_LOST_KEYS, "time_lost_ms", "roofline_ms"])
    frame[["time_lost_ms", "roofline_ms"]] /= NS_PER_MS
    sums: pd.DataFrame = frame.groupby(_LOST_KEYS, sort=False).sum()
    return sums


def compare_time_lost(
    lost: list[pd.DataFrame], letters: list[str], divisors: list[float], *, normalize: bool = False
) -> pd.DataFrame:
    """Time lost by unit, a row for each operation and its shapes; the first is A.

    Columns: `op_name`, `shapes`, `A_time_lost_ms`, `B_time_lost_ms`, `difference_ms` (B - A;
    of more than two traces `B_difference_ms` …), the largest difference first. With `normalize`
    also `A_lost_by_roofline`, the time lost by the time of the best case on the own device, and
    `difference_by_roofline`, which then orders the rows, each by A's best case. Empty where a trace
    has no such operation.
    """
    ms, best = (
        pd.concat([each[name] for each in lost], axis=1, keys=letters, sort=False)
        for name in ("time_lost_ms", "roofline_ms")
    )
    shares = ms / best.mask(best <= 0)
    a = letters[0]
    sizes = {}
    ms /= divisors
    frame = ms.add_suffix("_time_lost_ms")
    filled = ms.fillna(0.0)
    for letter, prefix in prefixes(letters).items():
        sizes[letter] = frame[f"{prefix}difference_ms"] = filled[letter] - filled[a]
        if normalize:
            change = frame[f"{prefix}difference_by_roofline"] = shares[letter] - shares[a]
            sizes[letter] = change * best[a]
    if normalize:
        frame = frame.join(shares.add_suffix("_lost_by_roofline"))
    size = pd.DataFrame(sizes).abs().max(axis=1).fillna(0.0)
    order = size.sort_values(ascending=False, kind="stable").index
    return frame.loc[order].rename_axis(_LOST_KEYS).reset_index()


def lost_by_roofline(lost: Sequence[pd.DataFrame], letters: Sequence[str]) -> str:
    """A sentence: how much longer than its own device's best case each trace takes."""
    sums = [(each["time_lost_ms"].sum(), each["roofline_ms"].sum()) for each in lost]
    both = zip(letters, sums, strict=True)
    told = [f"{letter} loses {ms / best:.2f}" for letter, (ms, best) in both if best > 0]
    return f"{' and '.join(told)} times the best case of its own device, where that is known."


_MOST_ROWS = 300  # each with its path: what a page can draw
_OTHER: NodePath = (("operation", "other"),)
_SAME = (232, 234, 238)
_SLOWER = (214, 69, 65)
_FASTER = (52, 120, 190)
_FULL = 0.5  # change, of the longer time, that has the full colour


def place_tree(places: pd.DataFrame, letters: Sequence[str]) -> pd.DataFrame:
    """Nodes with the times of both traces, parents before children; small ones as `other`.

    Columns as the call tree's, `A_time_ms`, `B_time_ms`, `difference_ms`, `colour` and `hover`.
    """
    a, b = letters
    sides = [f"{a}_time_ms", f"{b}_time_ms"]
    sums = dict[NodePath, tuple[float, float, int]]()
    places = places.fillna(dict.fromkeys(sides, 0.0))
    order = places[sides].max(axis=1).sort_values(ascending=False, kind="stable").index
    records: list[dict[Any, Any]] = places.loc[order].to_dict("records")
    for at, row in enumerate(records):
        names = dict.fromkeys(filter(None, (row[f"{a}_operation"], row[f"{b}_operation"])))
        operation = " → ".join(names) + " (backward)" * bool(row["backward"])
        above = [("module", part) for part in row["path"].split("/") if part]
        path = (*above, ("operation", operation)) if at < _MOST_ROWS else _OTHER
        # A node is as wide as those below together, so each place is rounded once.
        own = row[sides[0]], row[sides[1]], round((row[sides[0]] + row[sides[1]]) * NS_PER_MS)
        for key in (path[:depth] for depth in range(1, len(path) + 1)):
            before, after, ns = sums.get(key, (0.0, 0.0, 0))
            sums[key] = before + own[0], after + own[1], ns + own[2]
    nodes = {path: sums[path] for path in sorted(sums, key=len)}
    rows = []
    for before, after, ns in nodes.values():
        change = after - before
        hover = f"{a} {before:,.3f} ms, {b} {after:,.3f} ms ({change:+,.3f} ms)"
        rows.append(("", ns, before, after, change, _colour(before, after), hover))
    columns = ["category", "gpu_time_ns", *sides, "difference_ms", "colour", "hover"]
    frame = pd.DataFrame(rows, columns=columns)
    return pd.concat([pd.DataFrame(numbered(nodes)), frame], axis=1)


def _colour(before: float, after: float) -> str:
    """Red where the other trace takes longer, blue where it takes less."""
    change = (after - before) / (max(before, after) or 1.0)
    share = min(abs(change) / _FULL, 1.0)
    end = _SLOWER if change > 0 else _FASTER
    mixed = (round(x + (y - x) * share) for x, y in zip(_SAME, end, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


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
    found = analyzer.findings(device_peaks).findings
    roofline = analyzer.roofline(device_peaks)
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
    charts = []
    if (categories := comparison.tables.get("categories")) is not None:
        label = str(categories.columns[0])
        for letter, prefix in prefixes(letters).items():
            title = f"Change of GPU time by category, {letter} against {letters[0]}"
            charts.append(Chart(title, "categories", label, f"{prefix}difference_ms"))
    findings = compare_findings(comparison)
    lost = [m.lost for m in comparison.measurements if m.lost is not None and len(m.lost)]
    table = None
    told = []
    if len(lost) == len(letters):
        table = compare_time_lost(lost, letters, comparison.divisors, normalize=normalize)
        told = [lost_by_roofline(lost, letters)] if normalize else []
    elif normalize:
        needs = "--normalize roofline needs recorded shapes and known devices in all traces"
        raise UsageError(f"{needs}; give the peaks with --device-peaks")
    trees = {}
    if (places := comparison.tables.get("places")) is not None and len(places):
        own = places if len(letters) == 2 else places[places["trace"] == letters[1]]
        trees["call_tree"] = place_tree(own, letters[:2])
        title = f"GPU time of {letters[0]} and {letters[1]} by place"
        charts.append(Chart(title, "call_tree", "label", "gpu_time_ns", "call_tree", on="page"))
    each = zip(letters[1:], comparison.verdicts, strict=True)
    said = [(letter, v.text, v.work_ratio, v.speed_ratio) for letter, v in each]
    verdict = pd.DataFrame(said, columns=["trace", "verdict", "work_ratio", "speed_ratio"])
    every = {"verdict": verdict, "findings": findings, **comparison.tables, "roofline": table}
    sheets = {name: sheet for name, sheet in every.items() if sheet is not None}
    return Report(
        "GPU performance comparison",
        sheets,
        facts=comparison.facts,
        notes=[*told, *comparison.notes],
        descriptions=_DESCRIPTIONS,
        charts=charts,
        page_sheets=trees,
        units={"verdict": {}},
        answers=[Answer("Verdict", "verdict", list(map(str, verdict)))],
        members=comparison.members,
    )


_ROUNDING = 1e-6  # ms, of a division
_FAR = 3  # median absolute deviations that deserve a word


def history_table(comparison: Comparison) -> pd.DataFrame:
    """A row a figure: its median, its median absolute deviation, and the trace's own value.

    Columns `table`, `figure`, `median_ms`, `mad_ms`, `time_ms`, `difference_ms` (from the median)
    and `difference_mads` (empty where the history does not vary). The farthest come first.
    """
    held = ((name, comparison.aligned.get(name)) for name in KEYS)
    parts = [(name, each.names, comparison.times_ms(name)) for name, each in held if each]
    if comparison.savings is not None:
        ids, cells = comparison.savings
        parts.append(("findings", ids, np.nan_to_num(cells[..., 0])))
    named = [(table, figure) for table, figures, _ in parts for figure in figures]
    times = np.concatenate([part for *_, part in parts])
    median = np.median(times[:, :-1], axis=1)
    mad = np.median(np.abs(times[:, :-1] - median[:, None]), axis=1)
    change = times[:, -1] - median
    mads = np.divide(change, mad, out=np.full(len(mad), np.nan), where=mad > 0)
    frame = pd.DataFrame(named, columns=["table", "figure"])
    frame = frame.assign(median_ms=median, mad_ms=mad, time_ms=times[:, -1])
    frame = frame.assign(difference_ms=change, difference_mads=mads)
    surprise = np.where(mad > 0, np.abs(mads), np.where(change == 0, 0.0, np.inf))
    order = np.lexsort((-np.abs(change), -surprise))
    return frame.iloc[order].reset_index(drop=True)


def history_report(comparison: Comparison) -> Report:
    """The comparison with a history, ready for any format."""
    table = history_table(comparison)
    count = len(comparison.measurements) - 1
    far = table[table["difference_ms"].abs() > _FAR * table["mad_ms"] + _ROUNDING]
    of = far[far["table"].isin(["timeline", "categories"])].to_dict("records")
    named = [f"{row['figure']} {row['difference_ms']:+,.3f} ms" for row in of[:_FAR]]
    text = f"Of {len(table):,} figures {len(far):,} are more than {_FAR} MAD from the median of"
    text += f" {count} before{': ' if named else ''}{', '.join(named)}."
    called = [*comparison.letters[:-1], "Trace"]
    paths = ((name, m.path) for name, m in zip(called, comparison.measurements, strict=True))
    facts = [("Verdict", text), *paths, ("Times", time_basis(comparison))]
    words = {"history": "Each figure against the median of those before it"}
    members = {"unit": comparison.unit_told, "verdict": {"text": text}}
    title = "GPU performance against its history"
    return Report(title, {"history": table}, facts, descriptions=words, members=members)
