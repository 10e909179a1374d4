"""Detailed texts about kernels and gaps, one block a row, for `--output` and `--gap-output`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.report.terminal import name_text, safe_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

KERNEL_TITLE = "DETAILED GPU KERNEL ANALYSIS"
GAP_TITLE = "DETAILED GPU GAP ANALYSIS"
NO_OPERATION = "(no operation)"
_RULE = "=" * 50
_BLOCK, _PAIR_BLOCK = "-" * 50, "-" * 30
_SHOWN_IN_US = 0.1


def kernel_text(
    statistics: pd.DataFrame, names: pd.DataFrame, *, sorted_by: str, selected: str = ""
) -> str:
    """Every row of `kernel_statistics` as a block of lines."""
    lines = [KERNEL_TITLE, _RULE, f"Results sorted by: {sorted_by}"]
    if selected:
        lines.append(f"Selected: {selected}")
    lines += [_RULE, ""]
    full: dict[int, list[tuple[str, int]]] = {}
    for rank, name, count in names[["rank", "full_name", "count"]].itertuples(index=False):
        full.setdefault(rank, []).append((name_text(name), count))
    for row in statistics.to_dict("records"):
        lines += [
            f"Rank {row['rank']}: {name_text(row['kernel_name'])}",
            f"  Count: {row['count']} ({row['% of launches']:.1f}% of total launches)",
            (
                f"  Total Duration: {time_text(row['total_time_us'])}"
                f" ({row['% of duration']:.1f}% of total duration)"
            ),
            f"  Average Duration: {time_text(row['avg_time_us'])}",
            f"  Standard Deviation: {time_text(row['std_time_us'])}",
        ]
        (example, often), *others = full[row["rank"]]
        if others:
            lines.append(f"  Full Names: {row['full_names']} (the example: {_launches(often)})")
        lines.append(f"  Example Full Name: {example}")
        lines += [
            f"  Full Name {number} ({_launches(count)}): {name}"
            for number, (name, count) in enumerate(others, start=2)
        ]
        lines.append(_BLOCK)
    return _text(lines)


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''}"


def time_text(us: float) -> str:
    """A time for a line of text, in ns where two decimals of a µs would be zeros."""
    return f"{us:.2f} μs" if us >= _SHOWN_IN_US or not us else f"{us * 1e3:.2f} ns"


def gap_text(
    pairs: pd.DataFrame,
    hosts: pd.DataFrame,
    *,
    headline: Sequence[str],
    histogram: Sequence[str],
    sorted_by: str,
) -> str:
    """The overview of the gaps, their histogram, and every row of two tables as a block."""
    lines = [GAP_TITLE, _RULE, "", *headline, "", "Gap Duration Histogram:", "-" * 30, *histogram]
    lines += ["", "Idle Time by What the Host Was In:", _BLOCK, *_host_lines(hosts)]
    lines += ["", f"Kernel Pairs Ranked by {sorted_by}:", _BLOCK]
    for rank, row in enumerate(pairs.to_dict("records"), start=1):
        lines += [
            f"Rank {rank}: {name_text(row['kernel_before'])} → {name_text(row['kernel_after'])}",
            f"  Count: {row['count']}",
            f"  Average Gap: {time_text(row['avg_gap_us'])}",
            f"  Max Gap: {time_text(row['max_gap_us'])}",
            f"  Min Gap: {time_text(row['min_gap_us'])}",
            f"  Std Dev: {time_text(row['std_gap_us'])}",
            f"  Total Gap Time: {time_text(row['total_gap_us'])}",
            f"  Main Cause: {row['main_cause']}",
        ]
        if row["full_names"] > 1:
            lines.append(f"  Pairs of Full Names: {row['full_names']}")
        lines.append(_PAIR_BLOCK)
    return _text(lines)


def _host_lines(hosts: pd.DataFrame) -> Iterator[str]:
    """Every row of `gap_hosts`."""
    for rank, row in enumerate(hosts.to_dict("records"), start=1):
        yield f"Rank {rank}: {row['host_op'] or NO_OPERATION}"
        if row["python_frame"]:
            yield f"  Python Frame: {row['python_frame']}"
        yield (
            f"  Idle Time: {time_text(row['idle_time_ms'] * 1e3)}"
            f" ({row['% of idle time']:.1f}% of idle time)"
        )
        yield f"  Gaps: {row['count']}"
        yield f"  Average Gap: {time_text(row['avg_gap_us'])}"
        yield f"  Max Gap: {time_text(row['max_gap_us'])}"
        yield f"  Main Cause: {row['main_cause']}"
        yield _PAIR_BLOCK


def _text(lines: Sequence[str]) -> str:
    def safe() -> Iterator[str]:
        for line in lines:
            yield safe_text(line) + "\n"

    return "".join(safe())
