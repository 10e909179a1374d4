"""Gaps on the terminal: how much, on which streams, why, between which kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.cli.kernel_view import (
    NARROW,
    is_narrow,
    microseconds,
    name_room,
    remarks,
    transitions,
)
from tracelens_ext.cli.screen import folded, show_lines
from tracelens_ext.gaps.histogram import BINS as FILE_BINS
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.cli.gap_options import GapOptions
    from tracelens_ext.gaps.classified import ClassifiedGaps
    from tracelens_ext.gaps.histogram import Histogram
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.work.lanes import Scope

TERMINAL_BINS = 15
_HOSTS_SHOWN = 8
_SHOWN_IN_NS = 1.0  # µs: no bin of a histogram reaches as far


@dataclass(frozen=True, eq=False)
class GapReport:
    """All that is shown of the gaps of a trace."""

    classified: ClassifiedGaps  #: the gaps of the streams
    answer: str  #: why the GPU was idle, a sentence
    idle: int  #: the idle time that it is about, ns
    #: the tables that a report has too. `gap_hosts` and `gaps_longest` are of whole devices; of the
    #: stream if one is selected.
    sheets: dict[str, pd.DataFrame]
    more: dict[str, pd.DataFrame]  #: those that JSON has besides
    selected: str  #: which events are asked about, in words; empty for all
    options: GapOptions  #: what was asked for
    of_one_stream: bool  #: whether a stream is selected
    members: dict[str, object]  #: what JSON has beside the tables

    @classmethod
    def of(cls, analyzer: TreePerfAnalyzer, selection: Selection, options: GapOptions) -> GapReport:
        """All about the gaps of a trace.

        Raises:
            UsageError: there is nothing that could be selected.
        """
        from tracelens_ext.cli.gap_options import selected_text
        from tracelens_ext.gaps import tables
        from tracelens_ext.gaps.classified import answer, classify_gaps

        work, sort = analyzer.work, options.sort
        streams = classify_gaps(work, "stream", selection)
        devices = classify_gaps(work, "device", selection)
        one_stream = selection.stream is not None
        classified = streams if one_stream else devices
        scope: Scope = "stream" if one_stream else "device"
        scopes: list[Scope] = ["stream"] if one_stream else ["device", "stream"]
        longest = max(options.top, tables.LONGEST_LISTED)
        sheets = {
            "gap_summary": tables.gap_summary(work, scopes, selection=selection),
            "gap_hosts": tables.gap_hosts(work, scope, selection=selection),
            "gap_streams": tables.gap_streams(work, selection=selection),
            "gap_pairs": tables.gap_pairs(work, sort.value, selection=selection),
            "gaps_longest": tables.gaps_longest(work, scope, longest=longest, selection=selection),
        }
        bounds = options.hist_min, options.hist_max
        more = {
            "gap_full_names": tables.gap_full_names(work, sort.value, selection=selection),
            "gap_histogram": tables.gap_histogram(
                work, *bounds, log=options.log, selection=selection
            ),
        }
        if options.all:
            more["gaps"] = tables.gaps(work, selection=selection)
        idle = int(classified.gaps.duration.sum())
        why, selected = answer(classified, selection), selected_text(selection, work)
        members: dict[str, object] = {"idle_by_cause_ms": devices.idle_by_cause_ms()}
        return cls(streams, why, idle, sheets, more, selected, options, one_stream, members)

    @property
    def facts(self) -> list[tuple[str, object]]:
        """What JSON has besides."""
        return [("Selected", self.selected)] if self.selected else []

    @property
    def sorted_by(self) -> str:
        """What the pairs are sorted by, in words."""
        from tracelens_ext.gaps.tables import PAIR_SORTS

        return PAIR_SORTS[self.options.sort.value][1]

    def headline(self) -> list[str]:
        """Totals and streams, a line each."""
        from tracelens_ext.gaps.classified import in_words

        gaps = self.classified.gaps
        several = len(gaps.lanes) > 1 and not self.of_one_stream
        summed = int(gaps.duration.sum())
        lines = [f"Selected: {self.selected}"] if self.selected else []
        each = " (each stream by itself)" if several else ""
        lines += [
            f"Total gaps found: {len(gaps)}",
            f"Total idle time: {in_words(self.idle)}{' (no stream busy)' if several else ''}",
            f"Average gap duration: {in_words(round(summed / max(len(gaps), 1)))}{each}",
            "",
            f"Active streams: {len(self.sheets['gap_streams'])}",
        ]
        records = self.sheets["gap_streams"].to_dict("records")
        several_devices = len({record["device"] for record in records}) > 1
        places = [(record["device"], record["stream"]) for record in records]
        several_processes = len(set(places)) < len(places)
        for record in records:
            name = f"Stream {record['stream']}"
            if several_devices or several_processes:
                name = f"Device {record['device']}, stream {record['stream']}"
            if several_processes:
                name = f"Process {record['process']}, {name[0].lower()}{name[1:]}"
            idle, overlapped = (
                in_words(round(record[column] * 1e3), like=self.idle)
                for column in ("idle_time_us", "overlapped_us")
            )
            beside = f", {overlapped} of it beside another stream" if len(gaps.lanes) > 1 else ""
            lines.append(f"  {name}: {record['gap_count']} gaps, {idle} idle time{beside}")
        return lines

    def histogram(self, bins: int, factor: float = 1.0) -> tuple[Histogram, str]:
        """The lengths of the gaps, µs times a factor; and why its bins are not of one width."""
        from tracelens_ext.gaps.histogram import telling_histogram

        bounds = [
            None if bound is None else bound * factor
            for bound in (self.options.hist_min, self.options.hist_max)
        ]
        length = self.classified.gaps.duration / 1e3 * factor
        return telling_histogram(length, bins, *bounds, log=self.options.log)

    def document(self) -> tuple[dict[str, pd.DataFrame], list[str]]:
        """All tables, and notes."""
        _, why = self.histogram(FILE_BINS)
        return self.sheets | self.more, [self.answer, *([why] if why else [])]

    def histogram_lines(self, bins: int, *, bars: bool) -> list[str]:
        """The lengths of the gaps, a line a bin, and what lies outside of the bins."""
        from tracelens_ext.gaps.histogram import histogram_lines

        end = self.options.hist_max
        if end is None:
            end = self.classified.gaps.duration.max(initial=0) / 1e3
        unit, factor = ("ns", 1e3) if end < _SHOWN_IN_NS else ("μs", 1.0)
        found, why = self.histogram(bins, factor)
        lines = [why] if why else []
        lines += histogram_lines(found, unit=unit, bars=bars)
        if not len(found.counts):
            lines.append("no gap is within these bounds" if len(self.classified) else "no gaps")
        if found.below or found.above:
            lines.append(f"{found.below} gaps are shorter, {found.above} longer")
        return lines

    def text(self) -> str:
        """The detailed text for a file."""
        from tracelens_ext.report.kernel_text import gap_text

        why = [self.answer, ""]
        return gap_text(
            self.sheets | self.more,
            headline=[*why, *self.headline()],
            histogram=self.histogram_lines(FILE_BINS, bars=False),
            sorted_by=self.sorted_by,
        )


def show_gaps(report: GapReport, console: Console, first: Sequence[str] = ()) -> None:
    """Print totals, causes, what the host was in, the histogram, pairs and the longest gaps."""
    from tracelens_ext.report.terminal import frame_table

    lines = ["=== GPU IDLE TIME GAP ANALYSIS ===", "", *first]
    for line in [report.answer, "", *report.headline()]:
        lines += folded(line, console.width, "    " * line.startswith(" ")) or [""]
    show_lines(lines, console)
    if not len(report.classified):
        return
    summary = report.sheets["gap_summary"]
    summary = summary[summary["count"] > 0]
    if len(report.classified.gaps.lanes) < 2:  # then both scopes say the same
        summary = summary[summary["scope"] == "stream"].drop(columns="overlapped_time_ms")
    title = "WHY (device: no stream busy; stream: each by itself)"
    if len(set(summary["scope"])) == 1:
        title, summary = "WHY", summary.drop(columns="scope")
    console.print()
    console.print(frame_table(summary, title=title))
    if top := report.options.top:
        _show_hosts(report, console, min(top, _HOSTS_SHOWN))
    rule = "=" * min(console.width, 80)
    show_lines(["", "GAP DURATION HISTOGRAM:", rule], console)
    show_lines([*report.histogram_lines(TERMINAL_BINS, bars=True), rule], console)
    if top:
        _show_pairs(report, console, top)
        _show_longest(report, console, top)


def _show_hosts(report: GapReport, console: Console, top: int) -> None:
    from tracelens_ext.report.kernel_text import NO_OPERATION
    from tracelens_ext.report.terminal import frame_table
    from tracelens_ext.tree import UNLINKED

    hosts = report.sheets["gap_hosts"]
    if hosts["host_op"].isin(["", UNLINKED]).all() and hosts["python_frame"].eq("").all():
        return  # nothing is known of the host
    shown = hosts.head(top)
    columns = ["idle_time_ms", "% of idle time", "host_op", "python_frame", "main_cause"]
    if not shown["python_frame"].ne("").any():
        columns.remove("python_frame")
    columns.append("count")
    if not is_narrow(console):
        columns += ["avg_gap_us", "max_gap_us"]
    show_lines(["", "WHAT THE HOST WAS IN MEANWHILE:"], console)
    console.print(frame_table(shown[columns].replace({"host_op": {"": NO_OPERATION}})))
    lines = []
    if len(hosts) > len(shown):
        lines.append(f"{len(hosts) - len(shown):,} more; --gap-output has them all.")
    if shown["host_op"].eq(UNLINKED).any():
        lines.append(f"{UNLINKED}: the launch of the next GPU event is not in the trace.")
    show_lines(lines, console)


def _show_pairs(report: GapReport, console: Console, top: int) -> None:
    from tracelens_ext.report.terminal import frame_table

    pairs, us = report.sheets["gap_pairs"].head(top), microseconds(console)
    table = pd.DataFrame(
        {
            "Rank": range(1, len(pairs) + 1),
            "Count": pairs["count"],
            f"Avg Gap ({us})": pairs["avg_gap_us"],
            f"Max Gap ({us})": pairs["max_gap_us"],
            f"Min Gap ({us})": pairs["min_gap_us"],
            f"Std Dev ({us})": pairs["std_gap_us"],
        }
    )
    narrow = is_narrow(console)
    if narrow:
        table = table.iloc[:, :4]  # of the numbers, those that say most
    texts = transitions(pairs, name_room(table, console), console, lines=2 if narrow else 1)
    if narrow:  # a line for the kernel before, and one for the kernel after
        rows = range(2 * len(table))
        table = table.astype({"Rank": "Int64", "Count": "Int64"})
        table = table.set_axis(rows[::2]).reindex(rows)
    table.insert(1, "Kernel Transition", texts)
    show_lines(["", f"TOP {len(pairs)} KERNEL PAIRS BY {report.sorted_by.upper()}:"], console)
    console.print(frame_table(table))
    said = remarks(
        texts,
        shared="N pairs of kernels share these names; --gap-output FILE lists all.",
        alike="these look alike at this width; --gap-output FILE has them whole.",
        console=console,
    )
    if narrow:
        said.append(f"Min Gap and Std Dev need {NARROW} columns; --gap-output FILE has them.")
    show_lines(said, console)


def _show_longest(report: GapReport, console: Console, top: int) -> None:
    from tracelens_ext.kernel_names import simple_name
    from tracelens_ext.report.terminal import frame_table, name_text
    from tracelens_ext.trace import NONE

    longest = report.sheets["gaps_longest"].head(top)
    shown = longest[["gap_us", "start_us", "cause"]].copy()
    for column in ("host_op", "python_frame", "host_call"):
        if longest[column].ne("").any():
            shown[column] = longest[column]
    shown["next cpu_op"] = longest["cpu_op"]
    shown["next kernel"] = [name_text(simple_name(name)) for name in longest["kernel_after"]]
    if len(set(longest["device"])) > 1:
        shown.insert(0, "device", longest["device"])
    of_device = (longest["stream"] == NONE).all()
    what = "TIMES WITHOUT ANY GPU WORK" if of_device else "GAPS OF THE STREAM"
    show_lines(["", f"LONGEST {len(longest)} {what}:"], console)
    console.print(frame_table(shown))
