"""The text files of `--output` and `--gap-output`: a block of lines for each row of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import name_text, safe_text

KERNEL_TITLE = "DETAILED GPU KERNEL ANALYSIS"
GAP_TITLE = "DETAILED GPU GAP ANALYSIS"
NO_OPERATION = "(no operation)"
_RULE = "=" * 50
_BLOCK_END = "-" * 50
_SHORT_BLOCK_END = "-" * 30
#: Shorter times are shown in ns.
_LEAST_SHOWN_IN_US = 0.1
#: Label → column of `idle_by_kernel_pair`.
_PAIR_TIMES = {
    "Average Gap": "avg_gap_us",
    "Max Gap": "max_gap_us",
    "Min Gap": "min_gap_us",
    "Std Dev": "std_gap_us",
    "Total Gap Time": "total_gap_us",
}


def kernel_text(
    statistics: pd.DataFrame, names: pd.DataFrame, *, sorted_by: str, selected: str = ""
) -> str:
    """Return all rows of `kernel_statistics` as text, in a block of lines each.

    Args:
        statistics: the table `kernel_statistics`.
        names: the full names of the kernels of each row: `rank`, `full_name` and `count`.
        sorted_by: the order of the rows, in words.
        selected: the selection of kernels, in words; empty for all.
    """
    lines = [KERNEL_TITLE, _RULE, f"Results sorted by: {sorted_by}"]
    if selected:
        lines.append(f"Selected: {selected}")
    lines += [_RULE, ""]
    names_of_rank: defaultdict[int, list[_FullName]] = defaultdict(list)
    columns = ["rank", "full_name", "count"]
    for rank, name, count in names[columns].itertuples(index=False):
        launches = _counted(count, "launch", "launches")
        names_of_rank[rank].append(_FullName(name_text(name), launches))
    for row in statistics.to_dict("records"):
        lines += _kernel_lines(row, names_of_rank[row["rank"]])
    return _text(lines)


class _FullName(NamedTuple):
    """A full name of a kernel."""

    name: str
    launches: str  #: how often the kernel was launched, in words


def _kernel_lines(
    row: Mapping[Hashable, Any], full_names: Sequence[_FullName]
) -> Iterator[str]:
    """Yield the lines about a row of `kernel_statistics`."""
    example = full_names[0]
    total = time_text(row["total_time_us"])
    yield f"Rank {row['rank']}: {name_text(row['kernel_name'])}"
    yield f"  Count: {row['count']} ({row['% of GPU events']:.1f}% of total launches)"
    yield f"  Total Duration: {total} ({row['% of duration']:.1f}% of total duration)"
    yield f"  Average Duration: {time_text(row['avg_time_us'])}"
    yield f"  Standard Deviation: {time_text(row['std_time_us'])}"
    if len(full_names) > 1:
        yield f"  Full Names: {row['full_names']} (the example: {example.launches})"
    yield f"  Example Full Name: {example.name}"
    for number, full_name in enumerate(full_names[1:], start=2):
        yield f"  Full Name {number} ({full_name.launches}): {full_name.name}"
    yield _BLOCK_END


def _counted(count: int, noun: str, plural: str) -> str:
    return f"{count} {noun if count == 1 else plural}"


def time_text(us: float) -> str:
    """Return a time as text in µs, or in ns if it is short."""
    if us >= _LEAST_SHOWN_IN_US or not us:
        return f"{us:.2f} μs"
    return f"{us * 1e3:.2f} ns"


def _idle_text(ms: float) -> str:
    return f"{ms:,.3f} ms" if ms >= 1 else time_text(ms * 1e3)


def gap_text(
    sheets: Mapping[str, pd.DataFrame],
    *,
    headline: Sequence[str],
    histogram: Sequence[str],
    sorted_by: str,
) -> str:
    """Return an overview of the gaps, their histogram, and all rows of the tables as text.

    Args:
        sheets: the tables `gap_summary`, `idle_cpu_activity`, `idle_by_kernel_pair`,
            `gap_full_names` and `gaps_longest`, by name.
        headline: lines about all gaps and about streams.
        histogram: the lines of the histogram of durations.
        sorted_by: the order of the pairs of kernels, in words.
    """
    lines = [GAP_TITLE, _RULE, ""]
    lines += headline
    lines += ["", "Gap Duration Histogram:", "-" * 30]
    lines += histogram
    lines += ["", "Idle Time by Cause:", _BLOCK_END]
    lines += _cause_lines(sheets["gap_summary"])
    lines += ["", "Idle Time by What the Host Was In:", _BLOCK_END]
    lines += _host_lines(sheets["idle_cpu_activity"])
    lines += ["", "Longest Gaps:", _BLOCK_END]
    lines += _longest_lines(sheets["gaps_longest"])
    lines += ["", f"Kernel Pairs Ranked by {sorted_by}:", _BLOCK_END]
    lines += _pair_lines(sheets["idle_by_kernel_pair"], sheets["gap_full_names"])
    return _text(lines)


def _pair_lines(pairs: pd.DataFrame, full_names: pd.DataFrame) -> Iterator[str]:
    lines_of_rank: defaultdict[int, list[str]] = defaultdict(list)
    columns = ["rank", "full_name_before", "full_name_after", "count"]
    for rank, before, after, count in full_names[columns].itertuples(index=False):
        names = f"{name_text(before)} → {name_text(after)}"
        gaps = _counted(count, "gap", "gaps")
        lines_of_rank[rank].append(f"  Full Names ({gaps}): {names}")
    for rank, row in enumerate(pairs.to_dict("records"), start=1):
        before = name_text(row["kernel_before"])
        after = name_text(row["kernel_after"])
        yield f"Rank {rank}: {before} → {after}"
        yield f"  Count: {row['count']}"
        for label, column in _PAIR_TIMES.items():
            yield f"  {label}: {time_text(row[column])}"
        yield f"  Main Cause: {row['main_cause']}"
        if row["full_names"] > 1:
            yield f"  Pairs of Full Names: {row['full_names']}"
        yield from lines_of_rank[rank]
        yield _SHORT_BLOCK_END


def _cause_lines(summary: pd.DataFrame) -> Iterator[str]:
    for row in summary[summary["count"] > 0].to_dict("records"):
        yield (
            f"{row['scope'].capitalize()}, {row['cause']}: {_counted(row['count'], 'gap', 'gaps')},"
            f" {_idle_text(row['idle_time_ms'])} ({row['% of idle time']:.1f}% of idle time),"
            f" average {time_text(row['avg_gap_us'])}, max {time_text(row['max_gap_us'])},"
            f" beside another stream {_idle_text(row['overlapped_time_ms'])}"
        )


def _longest_lines(longest: pd.DataFrame) -> Iterator[str]:
    for rank, row in enumerate(longest.to_dict("records"), start=1):
        stream = f", stream {row['stream']}" if row["stream"] >= 0 else ""
        yield f"Rank {rank}: {time_text(row['gap_us'])} from {row['start_us']:.3f} μs"
        yield f"  Device: {row['device']}{stream}"
        yield f"  Cause: {row['cause']}"
        yield f"  Beside Another Stream: {time_text(row['overlapped_us'])}"
        for column in ("host_op", "host_call", "python_frame", "cpu_op"):
            if row[column]:
                yield f"  {column}: {row[column]}"
        yield f"  Kernels: {name_text(row['kernel_before'])} → {name_text(row['kernel_after'])}"
        yield _SHORT_BLOCK_END


def _host_lines(hosts: pd.DataFrame) -> Iterator[str]:
    for rank, row in enumerate(hosts.to_dict("records"), start=1):
        idle = _idle_text(row["idle_time_ms"])
        share = row["% of idle time"]
        yield f"Rank {rank}: {row['host_op'] or NO_OPERATION}"
        if row["python_frame"]:
            yield f"  Python Frame: {row['python_frame']}"
        yield f"  Idle Time: {idle} ({share:.1f}% of idle time)"
        yield f"  Gaps: {row['count']}"
        yield f"  Average Gap: {time_text(row['avg_gap_us'])}"
        yield f"  Max Gap: {time_text(row['max_gap_us'])}"
        yield f"  Main Cause: {row['main_cause']}"
        yield _SHORT_BLOCK_END


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{safe_text(line)}\n" for line in lines)
