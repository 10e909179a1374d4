"""All ranks together, made anew on every run: reductions over their parts, and their calls.

Of the calls a process group is one task for a Dask worker, then all groups together are one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from tracelens_ext.distributed.aggregate import job_tables
from tracelens_ext.distributed.calls import GroupCalls, group_calls, unnamed_calls
from tracelens_ext.distributed.storage import Done, ResultStore
from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import ONE_COLOUR
from tracelens_ext.report.html import write_html
from tracelens_ext.report.html_figures import (
    Figure,
    bytes_text,
    duration_text,
    elided,
    plotly_text,
    spec_of,
    trace,
)
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from distributed import Client

#: Reduction → the folder of parts, what makes a row, its time, and `device` where each counts.
_SPREADS: dict[str, tuple[Any, ...]] = {
    "finding_spread": ("findings", ["finding"], "claimed_ms"),
    "timeline_spread": ("timeline", ["type"], "time ms", "device"),
    "category_spread": ("categories", ["kernel_category"], "total_time_ms", "device"),
    "op_spread": ("ops", ["name"], "total_direct_kernel_time_ms"),
    "kernel_spread": ("kernels", ["kernel_category", "kernel_name"], "total_time_ms"),
}
#: All reductions, in the order in which they are shown.
REDUCTIONS = ("finding_spread", "ranks", *[*_SPREADS][1:])
# of parts; ranks that are named
_ROWS_TOGETHER = 100_000
_TOP = 5
#: Rows of the timeline that are columns of `ranks`.
_TIMES = (
    "total_time",
    "busy_time",
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "idle_time",
    "total_comm_time",
    "total_memcpy_time",
)


def reductions(store: ResultStore, done: Done) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The tables over all ranks by their names in `REDUCTIONS`, and notes."""
    tables: dict[str, pd.DataFrame] = {}
    for name, (folder, keys, value, *device) in _SPREADS.items():
        parts = _parts(store, done, folder, ["rank", *device, *keys, value])
        tables[name] = spread(parts, keys, value, per_device=bool(device))
    columns = ["trace", "rank", "device", "type", "time ms"]
    tables["ranks"] = _ranks(_parts(store, done, "timeline", columns))
    found = tables["finding_spread"]
    alone = found[found["ranks"] == 1][["max_rank", "finding", "max_ms"]].itertuples(index=False)
    told = [f"rank {rank} has {finding} ({ms_text(ms)})" for rank, finding, ms in alone]
    notes = [f"What no other rank has: {'; '.join(told)}."] if told and len(done) > 1 else []
    return {name: tables[name] for name in REDUCTIONS}, notes


def _parts(
    store: ResultStore, done: Done, folder: str, columns: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """The parts of one table, some together, each with a number of its own in `part`."""
    import pyarrow as pa

    together: list[Any] = []
    for number, stem in enumerate(done):
        table = store.get_table(f"{folder}/{stem}", columns)
        numbers = pa.array([number] * len(table), type=pa.int64())
        together.append(table.append_column("part", numbers))
        if sum(map(len, together)) > _ROWS_TOGETHER:
            yield pa.concat_tables(together).to_pandas()
            together = []
    if together:
        yield pa.concat_tables(together).to_pandas()


def _ranks(timelines: Iterator[pd.DataFrame]) -> pd.DataFrame:
    """A row a rank and GPU: its timeline; the longest computation first."""
    frame = pd.concat(timelines, ignore_index=True)
    keys = ["trace", "rank", "device"]
    wide = frame.pivot_table(index=keys, columns="type", values="time ms", aggfunc="first")
    times = wide.reindex(columns=list(_TIMES)).astype("float64").add_suffix("_ms")
    result = times.rename_axis(columns=None).reset_index()
    total = result["total_time_ms"]
    computing = result["computation_time_ms"]
    result["busy (%)"] = 100.0 * result["busy_time_ms"] / total.where(total > 0)
    mean = computing.mean()
    result["computation over mean (%)"] = 100.0 * (computing - mean) / mean if mean else 0.0
    by = ["computation_time_ms", "rank", "device"]
    return result.sort_values(by, ascending=[False, True, True], ignore_index=True)


def spread(
    parts: Iterable[pd.DataFrame], keys: Sequence[str], value: str, *, per_device: bool = True
) -> pd.DataFrame:
    """How a time (ms) differs between ranks, the longest mean first; of equal ranks the lowest.

    Parts have `part` (a number for each trace), `rank`, `keys` and `value`, and `device` where each
    GPU of a rank counts by itself. Ranks that lack a key do not count.
    """
    numbers: dict[tuple[object, ...], int] = {}  # of the distinct keys
    by = [*keys, "part", "rank", *["device"] * per_device]
    pieces = []
    for part in parts:
        sums = part.groupby(by, sort=False, dropna=False)[value].sum().rename("ms").reset_index()
        here = sums.groupby([*keys], sort=False, dropna=False).ngroup().to_numpy()
        distinct = sums[[*keys]].drop_duplicates().itertuples(index=False, name=None)
        codes = [numbers.setdefault(key, len(numbers)) for key in distinct]
        pieces.append(sums[["rank", "ms"]].assign(key=np.array(codes, dtype=np.int64)[here]))
    times = pd.concat(pieces, ignore_index=True)
    shortest = times.sort_values(["ms", "rank"], kind="stable")
    longest = times.sort_values(["ms", "rank"], ascending=[False, True], kind="stable")
    grouped, by_longest = (each.groupby("key", sort=False) for each in (shortest, longest))
    names = {"size": "ranks"} | {name: f"{name}_ms" for name in ("mean", "min", "max")}
    found = grouped["ms"].agg([*names]).rename(columns=names)
    found["squares"] = grouped["ms"].var(ddof=0) * found["ranks"]
    found["min_rank"], found["max_rank"] = grouped["rank"].first(), by_longest["rank"].first()
    top = by_longest.head(_TOP)
    shown = [f"{rank} ({ms:.3f})" for rank, ms in zip(top["rank"], top["ms"], strict=True)]
    found["top_ranks"] = top.assign(shown=shown).groupby("key")["shown"].agg(", ".join)
    found = found.sort_values("mean_ms", ascending=False, kind="stable")
    mean = found["mean_ms"]
    more = found["max_ms"] - found["mean_ms"]
    # Of equal times the mean is not always the same to the last digit.
    found["max over mean (%)"] = (100.0 * more.clip(lower=0.0) / mean).where(mean > 0)
    others = found["ranks"] - 1
    found["std_ms"] = np.sqrt(found["squares"] / others.where(others > 0))
    columns = ["ranks", "mean_ms", "std_ms", "min_ms", "max_ms", "min_rank", "max_rank"]
    columns += ["max over mean (%)", "top_ranks"]
    rows = pd.DataFrame([*numbers], columns=[*keys]).loc[found.index]
    return rows.join(found[columns]).reset_index(drop=True)


_SMALL = ("verdicts", "collective_groups", "wait_origins", "clocks", "overlap")
#: The tables, in the order in which they are shown; those that grow with the calls come last.
TABLES = (*_SMALL, "collective_sync", "collective_waits")
PAGE = "ranks.html"


def ranks_together(
    client: Client | None,
    store: ResultStore,
    done: Done,
    failed: Sequence[int],
    ranks_per_node: int | None,
) -> dict[str, pd.DataFrame]:
    """Match the calls of all ranks; write `TABLES` and the page, answer the smaller tables."""
    abouts = {stem: about["communication"] for stem, about in done.items()}
    stems: dict[str, list[str]] = {}
    for stem, about in abouts.items():
        for key in about["groups"]:
            stems.setdefault(key, []).append(stem)
    sets = {each for about in abouts.values() for each in about["sets"]}
    ranks = sum(len(about["ranks"]) for about in abouts.values())
    world = max((about["world_size"] or 0 for about in done.values()), default=0) or None
    options = {"world": world, "failed": failed, "ranks_per_node": ranks_per_node}
    links = _reports(store, done)
    work = [(store, key, stems[key], len(sets) < 2, ranks) for key in sorted(stems)]
    if client is not None:
        from distributed import CancelledError
        from distributed.scheduler import KilledWorker

        try:
            groups = [client.submit(_group, *each, pure=False) for each in work]
            return client.submit(_all, store, groups, abouts, options, links, pure=False).result()  # type: ignore[no-any-return]
        except (KilledWorker, CancelledError, OSError):
            pass  # the workers are gone; what they would have done is done here
    return _all(store, [_group(*each) for each in work], abouts, options, links)


def _reports(store: ResultStore, done: Done) -> list[tuple[str, str]]:
    """Name and address of the ranks' report pages, in the folder of the results or by the trace."""
    if not store.is_local:
        return []
    from tracelens_ext.perf_report import default_report_path

    out = Path(store.path_of(PAGE)).resolve().parent
    pages = []
    links = []
    for about in done.values():
        page = default_report_path(Path(about["url"])).with_suffix(".html").resolve()
        pages.append((int(about["rank"]), page.name, page))
    names = Counter(name for _, name, _ in pages)
    for rank, name, page in sorted(pages):
        # Of several traces with one name, it is not known whose page lies there.
        beside = [out / name, page][names[name] > 1 :]
        if there := next(filter(Path.is_file, beside), None):
            address = quote(os.path.relpath(there, out).replace(os.sep, "/"))
            links.append((f"Report of rank {rank}", address))
    return links


def _group(
    store: ResultStore, key: str, stems: Sequence[str], one_group: bool, ranks: int
) -> GroupCalls:
    frames = (store.get_table(f"rank_calls/{stem}").to_pandas() for stem in stems)
    rows = pd.concat((frame[frame["key"] == key] for frame in frames), ignore_index=True)
    rows = rows.drop_duplicates(["rank", "launch", "start", "dur", "kernel_name"])
    return group_calls(rows) if key else unnamed_calls(rows, one_group=one_group, ranks=ranks)


def _all(
    store: ResultStore,
    groups: Sequence[GroupCalls],
    abouts: Done,
    options: Mapping[str, Any],
    links: Sequence[tuple[str, str]],
) -> dict[str, pd.DataFrame]:
    tables = {}
    for name in ("rank_iterations", "overlap"):
        frames = [store.get_table(f"{name}/{stem}").to_pandas() for stem in abouts]
        tables[name] = pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)
    iterations = tables.pop("rank_iterations")
    if groups:
        tables |= job_tables(groups, iterations, list(abouts.values()), **options)
    for name, frame in tables.items():
        store.put_table(name, frame)
    if "verdicts" in tables and store.is_local and all(map(find_spec, ("jinja2", "plotly"))):
        write_page(Path(store.path_of(PAGE)), tables, links)
    return {name: tables[name] for name in _SMALL if name in tables}


_BY_RANK = "Waits by the rank they come from"
_ORIGINS = Chart(_BY_RANK, "origins", "rank", "wait_ms", "stacked", 64, "cause")
_MOST_COLUMNS = 300
_MOST_POINTS = 2000
_MOST_LEGEND = 6
_MOST_VERDICTS = 10
_PALETTE = (ONE_COLOUR, "#e58a2b", "#2f9e73", "#d1495b", "#8d6bc7", "#17a2b8", "#8b93a1")


def write_page(
    path: Path, tables: Mapping[str, pd.DataFrame], links: Sequence[tuple[str, str]]
) -> None:
    """Write the page of the tables over all ranks."""
    sync = tables["collective_sync"]
    waits = tables["collective_waits"]
    iteration = waits["call"].map(sync.set_index("call")["iteration"])
    waits = waits.assign(wait_ms=waits["wait_us"] / 1e3, iteration=iteration)
    known = sync[sync["bus_bandwidth_gb_s"].notna() & (sync["bytes"] > 0)]
    keys = ["collective", "process_group", "ranks", "span", "bytes"]
    rates = known.groupby(keys, dropna=False)["bus_bandwidth_gb_s"]
    sheets = {
        "verdicts": tables["verdicts"],
        "waits": waits.groupby(["rank", "iteration"])["wait_ms"].sum(min_count=1).reset_index(),
        "origins": tables["wait_origins"].astype({"rank": "Int64"}),
        "bandwidths": rates.agg(calls="size", median_gb_s="median", best_gb_s="max").reset_index(),
        "not_matched": sync[sync["state"] != "complete"],
        **{name: tables[name] for name in ("collective_groups", "clocks", "overlap")},
    }
    charts = [_ORIGINS] if _ORIGINS.fits(sheets["origins"]) else []
    first = tables["verdicts"].head(_MOST_VERDICTS)  # in words; the table has all
    said = [
        f"{verdict}{'' if pd.isna(rank) else f', rank {rank:.0f}'}: {evidence}"
        for verdict, rank, evidence in first[["verdict", "rank", "evidence"]].to_numpy().tolist()
    ]
    facts = [("Verdict", text) for text in said or ["none: no rank and no link stands out"]]
    report = Report("The ranks of a job", sheets, facts=facts, charts=charts)
    figures = [*_heat_map(sheets["waits"].dropna()), *_bandwidths(sheets["bandwidths"])]
    write_html(path, report, figures=figures, links=links)


def _heat_map(waits: pd.DataFrame) -> list[Figure]:
    """Ranks down, iterations across; many iterations share a column."""
    if waits.empty:
        return []
    names = sorted(set(waits["iteration"]), key=lambda name: (len(name), name))
    column = np.arange(len(names)) * min(len(names), _MOST_COLUMNS) // len(names)
    parts = np.split(np.array(names, dtype=object), np.flatnonzero(np.diff(column)) + 1)
    across = [" to ".join(dict.fromkeys((part[0] or "outside", part[-1]))) for part in parts]
    at = waits["iteration"].map(dict(zip(names, column.tolist(), strict=True)))
    cells = waits.groupby([waits["rank"], at])["wait_ms"].sum().unstack()
    cells = cells.reindex(range(int(cells.index.min()), int(cells.index.max()) + 1))
    rows = [[None if np.isnan(ms) else ms for ms in row] for row in cells.to_numpy().tolist()]
    drawn: dict[str, object] = {"x": [*map(plotly_text, across)], "y": cells.index.tolist()}
    drawn |= {"z": rows, "zmin": 0, "colorscale": [[0, "rgba(139,147,161,0.15)"], [1, "#d1495b"]]}
    drawn["colorbar"] = {"thickness": 10, "ticksuffix": " ms", "outlinewidth": 0}
    told = "<b>rank %{y}</b>, iteration %{x}<br>%{z:,.3~f} ms<extra></extra>"
    drawn |= {"hovertemplate": told, "xgap": 1, "ygap": 1 if len(rows) <= 128 else 0}
    down = {"autorange": "reversed", "tickformat": "d", "title": {"text": "rank"}}
    longest = waits.groupby("rank")["wait_ms"].sum().nlargest(3).items()
    words = [f"rank {rank} {duration_text(ms)}" for rank, ms in longest]
    layout = {
        "height": int(np.clip(22 * len(rows) + 70, 180, 700)),
        "xaxis": {"type": "category", "title": {"text": "iteration"}, "showgrid": False},
        "yaxis": {**down, "showgrid": False} | ({"dtick": 1} if len(rows) <= 32 else {}),
    }
    summary = f"The longest: {', '.join(words)}"
    spec = spec_of([trace("heatmap", **drawn)], layout)
    return [Figure("chart-waits", "Waits by rank and iteration", summary, [], "waits", spec)]


def _bandwidths(table: pd.DataFrame) -> list[Figure]:
    """A point a group, collective and size: its median; lines at the best by span."""
    if table.empty:
        return []
    points = table.nlargest(_MOST_POINTS, "calls", keep="first")
    kinds = points["collective"].value_counts().index.tolist()
    named = kinds if len(kinds) <= _MOST_LEGEND + 1 else [*kinds[:_MOST_LEGEND], "others"]
    kind = points["collective"].where(points["collective"].isin(named), "others")
    legend = [(elided(name, 40), colour) for name, colour in zip(named, _PALETTE, strict=False)]
    traces: list[dict[str, object]] = []
    for name, colour in zip(named, _PALETTE, strict=False):
        part = points[kind == name]
        at = {"x": part["bytes"].tolist(), "y": part["median_gb_s"].tolist()}
        marker = {"size": 9, "opacity": 0.7, "color": colour}
        told = [
            plotly_text(f"{row.collective}, {bytes_text(row.bytes)}, ranks {elided(row.ranks, 50)}")
            + f"<br>{row.median_gb_s:,.1f} GB/s, at best {row.best_gb_s:,.1f};"
            f" calls: {row.calls:,}"
            for row in part.itertuples()
        ]
        drawn = {"mode": "markers", "marker": marker, "customdata": told, **at}
        traces.append(trace("scatter", len(traces), **drawn))
    best = table.groupby(table["span"].fillna(""))["best_gb_s"].max()
    where = {"node": "Best in a node", "across": "Best across nodes"}
    words = [f"{where.get(str(span), 'Best')}: {rate:,.1f} GB/s" for span, rate in best.items()]
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1}
    across["line"] = {"color": "#8b93a1", "width": 1.5, "dash": "dot"}
    label = {"textposition": "start", "font": {"size": 11}}
    lines = [
        across | {"y0": rate, "y1": rate, "label": {"text": text, **label}}
        for text, rate in zip(words, best.tolist(), strict=True)
    ]
    if len(points) < len(table):
        words.append(f"the {len(points):,} of {len(table):,} points with the most calls")
    size = {"type": "log", "title": {"text": "bytes of the call"}, "exponentformat": "SI"}
    rate = {"title": {"text": "GB/s"}, "range": [0, 1.12 * float(best.max())]}
    spec = spec_of(traces, {"shapes": lines, "height": 380, "xaxis": size, "yaxis": rate})
    title = "Bus bandwidth by size, the median of each group"
    summary = "; ".join(words)
    return [Figure("chart-bandwidths", title, summary, legend, "bandwidths", spec)]
