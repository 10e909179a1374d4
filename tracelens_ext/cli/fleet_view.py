"""A fleet on the terminal: whose fault it is, how even its ranks are, and the slowest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracelens_ext.fleet import FleetResult

_TIMES = ("total_time", "busy_time", "computation_time", "exposed_comm_time", "idle_time")
_CATEGORIES = 10
_RANKS_LISTED = 10


def show_fleet(result: FleetResult, console: Console, *, top: int) -> None:
    """Print what was done, the verdicts, the spread over ranks, the slowest ranks, the notes."""
    from tracelens_ext.cli.screen import show_lines, show_notes
    from tracelens_ext.report.terminal import frame_table, safe_text

    show_lines([safe_text(line) for line in _headline(result)], console)
    if "verdicts" in result.tables:
        show_verdicts(result.tables["verdicts"], console)
    for title, frame in _tables(result, top):
        if len(frame):
            console.print()
            console.print(frame_table(frame, title=title))
    if notes := [*_missing(result.failures), *result.notes]:
        console.print()
        show_notes(notes, console)


def show_verdicts(verdicts: pd.DataFrame, console: Console) -> None:
    """Print whose fault it is, in sentences."""
    from tracelens_ext.cli.screen import folded, show_lines

    lines = [] if len(verdicts) else ["No rank and no link is slow, and no call lacks a rank."]
    shown = verdicts.astype(object)
    for row in shown.where(shown.notna(), "").to_dict("records"):
        of = [
            f"{name} {row[name]}"
            for name in ("rank", "process_group", "iteration")
            if row[name] != ""
        ]
        cause = f" ({row['cause']})" if row["cause"] else ""
        lines.append(f"{row['verdict']}: {', '.join(of)}{cause}: {row['evidence']}.")
    console.print()
    for line in lines:
        show_lines(folded(line.replace("_", " ", 1), console.width), console)


def _headline(result: FleetResult) -> list[str]:
    parts = [f"{_of(result.done, 'trace')} analysed"]
    parts += [f"{result.kept} kept from before"] if result.kept else []
    parts += [f"{result.failed} failed"] if result.failed else []
    lines = [f"Results: {result.out}", ", ".join(parts)]
    spreads = result.tables.get("timeline_spread")
    if spreads is not None and len(spreads):
        busy = spreads.set_index("type").to_dict("index")["busy_time"]
        spread = f" ± {busy['std_ms']:,.3f}" if busy["ranks"] > 1 else ""
        gpus = int(busy["ranks"])
        lines.append(f"GPU busy time: {busy['mean_ms']:,.3f}{spread} ms ({_of(gpus, 'GPU')})")
    elif "ranks" in result.tables:
        lines.append("No trace has any GPU work.")
    return lines


def _of(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _tables(result: FleetResult, top: int) -> list[tuple[str, pd.DataFrame]]:
    tables = result.tables
    if "ranks" not in tables:
        return []
    shown = ["mean_ms", "std_ms", "min_ms", "max_ms", "max_rank", "max over mean (%)"]
    timeline = tables["timeline_spread"].set_index("type")
    timeline = (timeline.reindex(list(_TIMES)) if len(timeline) else timeline).reset_index()
    categories = tables["category_spread"].head(_CATEGORIES)
    findings = ["finding", "ranks", "mean_ms", "min_ms", "max_ms", "max_rank", "top_ranks"]
    return [
        ("What would save time, over the ranks that have it", tables["finding_spread"][findings]),
        ("GPU timeline over the ranks", timeline[["type", *shown]]),
        ("GPU time by category over the ranks", categories[["kernel_category", *shown]]),
        *_slowest(tables["ranks"], tables.get("wait_origins"), top),
    ]


def _slowest(
    ranks: pd.DataFrame, origins: pd.DataFrame | None, top: int
) -> list[tuple[str, pd.DataFrame]]:
    """The ranks that compute longer than the mean, or for which each other one waits longest."""
    computing = ranks["computation_time_ms"]
    behind = computing - computing.mean()
    if origins is not None:
        caused = ranks["rank"].map(origins.groupby("rank")["wait_ms"].sum()).fillna(0.0)
        behind = behind.clip(lower=caused / max(len(ranks) - 1, 1))
    ranks = ranks.loc[behind.sort_values(ascending=False, kind="stable").index]
    shown = ["rank", "computation_time_ms", "computation over mean (%)", "busy (%)"]
    if len(set(ranks["device"])) > 1:
        shown.insert(1, "device")
    of = f"{min(top, len(ranks))} of {_of(len(ranks), 'rank')}"
    title = f"Slowest {of}, by computation or others' waits"
    frame = ranks[shown].head(top).rename(columns={"computation over mean (%)": "over mean (%)"})
    return [(title, frame)] if top else []


def _missing(failures: pd.DataFrame) -> Sequence[str]:
    ranks = failures.loc[failures["stage"] == "missing", "rank"].tolist()
    if not ranks:
        return []
    listed = ", ".join(map(str, ranks[:_RANKS_LISTED]))
    more = f" and {len(ranks) - _RANKS_LISTED} more" if len(ranks) > _RANKS_LISTED else ""
    return [f"Missing: no trace is of rank{'s' if len(ranks) > 1 else ''} {listed}{more}."]
