"""Detailed texts about kernels and gaps, one block a row, for `--output` and `--gap-output`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.report.terminal import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

KERNEL_TITLE = "DETAILED GPU KERNEL ANALYSIS"
GAP_TITLE = "DETAILED GPU GAP ANALYSIS"
_RULE = "=" * 50
_BLOCK, _PAIR_BLOCK = "-" * 50, "-" * 30


def kernel_text(statistics: pd.DataFrame, *, sorted_by: str, selected: str = "") -> str:
    """Every row of `kernel_statistics` as a block of lines.

    Args:
        statistics: the table.
        sorted_by: what it is sorted by, in words.
        selected: which events it is about, in words; empty for all.
    """
    lines = [KERNEL_TITLE, _RULE, f"Results sorted by: {sorted_by}"]
    if selected:
        lines.append(f"Selected: {selected}")
    lines += [_RULE, ""]
    for row in statistics.to_dict("records"):
        lines += [
            f"Rank {row['rank']}: {row['kernel_name']}",
            f"  Count: {row['count']} ({row['% of launches']:.1f}% of total launches)",
            (
                f"  Total Duration: {row['total_time_us']:.2f} μs"
                f" ({row['% of duration']:.1f}% of total duration)"
            ),
            f"  Average Duration: {row['avg_time_us']:.2f} μs",
            f"  Standard Deviation: {row['std_time_us']:.2f} μs",
        ]
        if row["full_names"] > 1:
            lines.append(f"  Full Names: {row['full_names']}")
        lines += [f"  Example Full Name: {row['example_full_name']}", _BLOCK]
    return _text(lines)


def gap_text(
    pairs: pd.DataFrame,
    *,
    headline: Sequence[str],
    histogram: Sequence[str],
    sorted_by: str,
) -> str:
    """The overview of the gaps, their histogram, and every row of `gap_pairs` as a block.

    Args:
        pairs: the table.
        headline: totals and streams, a line each.
        histogram: a line a bin.
        sorted_by: what the pairs are sorted by, in words.
    """
    lines = [GAP_TITLE, _RULE, "", *headline, "", "Gap Duration Histogram:", "-" * 30, *histogram]
    lines += ["", f"Kernel Pairs Ranked by {sorted_by}:", _BLOCK]
    for rank, row in enumerate(pairs.to_dict("records"), start=1):
        lines += [
            f"Rank {rank}: {row['kernel_before']} → {row['kernel_after']}",
            f"  Count: {row['count']}",
            f"  Average Gap: {row['avg_gap_us']:.2f} μs",
            f"  Max Gap: {row['max_gap_us']:.2f} μs",
            f"  Min Gap: {row['min_gap_us']:.2f} μs",
            f"  Std Dev: {row['std_gap_us']:.2f} μs",
            f"  Total Gap Time: {row['total_gap_us']:.2f} μs",
            f"  Main Cause: {row['main_cause']}",
        ]
        if row["full_names"] > 1:
            lines.append(f"  Pairs of Full Names: {row['full_names']}")
        lines.append(_PAIR_BLOCK)
    return _text(lines)


def _text(lines: Sequence[str]) -> str:
    def safe() -> Iterator[str]:
        for line in lines:
            yield safe_text(line) + "\n"

    return "".join(safe())
