"""Detailed texts about kernels and gaps, one block a row, for `--output` and `--gap-output`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import name_text, safe_text

KERNEL_TITLE = "DETAILED GPU KERNEL ANALYSIS"
GAP_TITLE = "DETAILED GPU GAP ANALYSIS"
NO_OPERATION = "(no operation)"
_RULE = "=" * 50
_BLOCK = "-" * 50
_PAIR_BLOCK = "-" * 30
_SHOWN_IN_US = 0.1
_Lines = Sequence[str]
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
    """Every row of `kernel_statistics` as a block of lines."""
    lines = [KERNEL_TITLE, _RULE, f"Results sorted by: {sorted_by}"]
    lines += [f"Selected: {selected}", _RULE, ""] if selected else [_RULE, ""]
    full: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for rank, name, count in names[["rank", "full_name", "count"]].itertuples(
        index=False
    ):
        full[rank].append((name_text(name), _counted(count, "launch", "es")))
    for row in statistics.to_dict("records"):
        (example, often), *others = full[row["rank"]]
        total = time_text(row["total_time_us"])
        shared = f"  Full Names: {row['full_names']} (the example: {often})"
        lines += [
            f"Rank {row['rank']}: {name_text(row['kernel_name'])}",
            f"  Count: {row['count']} ({row['% of GPU events']:.1f}% of total launches)",
            f"  Total Duration: {total} ({row['% of duration']:.1f}% of total duration)",
            f"  Average Duration: {time_text(row['avg_time_us'])}",
            f"  Standard Deviation: {time_text(row['std_time_us'])}",
            *([shared] if others else []),
            f"  Example Full Name: {example}",
            *(
                f"  Full Name {n} ({count}): {name}"
                for n, (name, count) in enumerate(others, 2)
            ),
            _BLOCK,
        ]
    return _text(lines)


def _counted(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural if count != 1 else ''}"


def time_text(us: float) -> str:
    """A time for a line of text, in ns where two decimals of a µs would be zeros."""
    return f"{us:.2f} μs" if us >= _SHOWN_IN_US or not us else f"{us * 1e3:.2f} ns"


def _idle_text(ms: float) -> str:
    return f"{ms:,.3f} ms" if ms >= 1 else time_text(ms * 1e3)


def gap_text(
    sheets: Mapping[str, pd.DataFrame],
    *,
    headline: _Lines,
    histogram: _Lines,
    sorted_by: str,
) -> str:
    """The overview of the gaps, their histogram, and every row of the tables.

    `sheets`: `gap_summary`, `idle_cpu_activity`, `idle_by_kernel_pair`, `gap_full_names` and
    `gaps_longest`.
    `headline`: totals and streams, a line each. `sorted_by`: what the pairs are sorted by, in
    words.
    """
    lines = [
        GAP_TITLE,
        _RULE,
        "",
        *headline,
        "",
        "Gap Duration Histogram:",
        "-" * 30,
        *histogram,
    ]
    lines += ["", "Idle Time by Cause:", _BLOCK, *_cause_lines(sheets["gap_summary"])]
    lines += ["", "Idle Time by What the Host Was In:", _BLOCK]
    lines += [*_host_lines(sheets["idle_cpu_activity"]), "", "Longest Gaps:", _BLOCK]
    lines += [*_longest_lines(sheets["gaps_longest"]), ""]
    lines += [f"Kernel Pairs Ranked by {sorted_by}:", _BLOCK]
    full: defaultdict[int, list[str]] = defaultdict(list)
    columns = ["rank", "full_name_before", "full_name_after", "count"]
    for rank, before, after, count in sheets["gap_full_names"][columns].itertuples(
        index=False
    ):
        names = f"{name_text(before)} → {name_text(after)}"
        full[rank].append(f"  Full Names ({_counted(count, 'gap')}): {names}")
    for rank, row in enumerate(
        sheets["idle_by_kernel_pair"].to_dict("records"), start=1
    ):
        lines += [
            f"Rank {rank}: {name_text(row['kernel_before'])} → {name_text(row['kernel_after'])}",
            f"  Count: {row['count']}",
            *(
                f"  {label}: {time_text(row[column])}"
                for label, column in _PAIR_TIMES.items()
            ),
            f"  Main Cause: {row['main_cause']}",
            *[f"  Pairs of Full Names: {row['full_names']}"] * (row["full_names"] > 1),
            *full[rank],
            _PAIR_BLOCK,
        ]
    return _text(lines)


def _cause_lines(summary: pd.DataFrame) -> Iterator[str]:
    for row in summary[summary["count"] > 0].to_dict("records"):
        yield (
            f"{row['scope'].capitalize()}, {row['cause']}: {_counted(row['count'], 'gap')},"
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
        yield _PAIR_BLOCK


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
        yield _PAIR_BLOCK


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{safe_text(line)}\n" for line in lines)
