"""`tracelens-ext gaps`: how long the GPU was idle, between which kernels, and why."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.cli import options as shared
from tracelens_ext.cli import screen
from tracelens_ext.cli.load import analyze
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.kernel_text import NO_OPERATION, gap_text
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import frame_table, name_text
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analysis.idle_time.causes import ClassifiedGaps
    from tracelens_ext.analysis.idle_time.histogram import Histogram
    from tracelens_ext.analysis.iterations.selection import Selection
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace.gpu_events import Scope

_TERMINAL_BINS = 15
_HOSTS_SHOWN = 8
_SHOWN_IN_NS = 1.0  # µs: no bin of a histogram reaches as far
_NAME_AT_LEAST = 16  # as of the tables of `report.terminal`
GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]
_GAP_TOP = 15
_GAP_SORT: GapSort = "avg"
_ASCII = {"→": "->", "×": "x", "…": "...", "μs": "us"}


@dataclass(frozen=True)
class GapOptions:
    """What is asked about gaps.

    Options:
        gap_top 0..: Kernel pairs, longest gaps and (at most 8) rows of what the host was in to
            print.  [default: 15]
        gap_sort: What kernel pairs are sorted by, largest first.  [default: avg]
        hist_min 0..: Shortest gap of the histogram, µs.
        hist_max 0..: Longest gap of the histogram, µs.
        log: Histogram bins of one ratio, not one width.
        all: In the JSON, every gap as a row too.
    """

    gap_top: int | None = None
    gap_sort: GapSort | None = None
    hist_min: float | None = None
    hist_max: float | None = None
    log: bool = False
    all: bool = False

    def __post_init__(self) -> None:
        low, high = (bound or 0.0 for bound in (self.hist_min, self.hist_max))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError("--hist-min and --hist-max are numbers of µs")
        if self.hist_max is not None and high <= low:
            raise UsageError(f"--hist-max {high:g} is not above --hist-min {low:g}: no gap fits")


@dataclass(frozen=True)
class OwnGapOptions(GapOptions):
    """Likewise, with the defaults that the command `gaps` shows."""

    gap_top: int = _GAP_TOP
    gap_sort: GapSort = _GAP_SORT


def gaps(
    trace: Path,
    output: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    selecting: shared.SelectionOptions,
    options: OwnGapOptions,
    reading: ReadingOptions,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and kernels around them.

    Options:
        output --gap-output --output -o FILE: Write all about the gaps to a text file (- prints it).
        gap_top --gap-top --top -t 0..: Kernel pairs, longest gaps and (at most 8) host rows to
            print.
        gap_sort --gap-sort --sort -s: What kernel pairs are sorted by, largest first.
    """
    selection = selecting.selection()
    outputs = [output] if output else []
    screen.check_texts(outputs, trace, force=force, json=json, every=options.all)
    how = shared.AnalysisOptions(kernel_categories=False, reading=reading)
    analyzer = analyze(trace, how, without_tpu=True)
    found = GapReport(analyzer, selection, options)
    told: dict[str, Any] = {"notes": found.notes if json else [], "members": found.members}
    told["facts"] = [("Selected", found.selected)] if found.selected else []
    report = screen.trace_report("GPU idle time", trace, found.tables, **told)
    blocks = found.blocks(screen.first_lines(analyzer.work))
    screen.show(report, blocks, json=json, texts=dict.fromkeys(outputs, found.text))


class GapReport:
    """All that is shown of the gaps of a trace."""

    def __init__(
        self, analyzer: TreePerfAnalyzer, selection: Selection, options: GapOptions
    ) -> None:
        from tracelens_ext.analysis.idle_time import tables
        from tracelens_ext.analysis.idle_time.answer import answer
        from tracelens_ext.analysis.idle_time.causes import classify_gaps

        work = analyzer.work
        sort = options.gap_sort or _GAP_SORT
        self.options = options
        self.top = _GAP_TOP if options.gap_top is None else options.gap_top
        #: the gaps of each stream
        self.streams = classify_gaps(work, "stream", selection)
        devices = classify_gaps(work, "device", selection)
        scope: Scope = "device" if selection.stream is None else "stream"
        scopes: list[Scope] = ["stream"] if scope == "stream" else ["device", "stream"]
        #: those of the stream that is selected, else of whole devices
        self.asked: ClassifiedGaps = devices if scope == "device" else self.streams
        longest = max(self.top, tables.LONGEST_LISTED)
        log = options.log
        bounds = options.hist_min, options.hist_max
        #: as a report has them; `gap_hosts` and `gaps_longest` are of `asked`
        self.tables = {
            "gap_summary": tables.gap_summary(work, scopes, selection=selection),
            "gap_hosts": tables.gap_hosts(work, scope, selection=selection),
            "gap_streams": tables.gap_streams(work, selection=selection),
            "gap_pairs": tables.gap_pairs(work, sort, selection=selection),
            "gaps_longest": tables.gaps_longest(work, scope, longest=longest, selection=selection),
            "gap_full_names": tables.gap_full_names(work, sort, selection=selection),
            "gap_histogram": tables.gap_histogram(work, *bounds, log=log, selection=selection),
        }
        if options.all:
            self.tables["gaps"] = tables.gaps(work, selection=selection)
        #: what JSON has beside the tables
        self.members: dict[str, object] = {"idle_by_cause_ms": devices.idle_by_cause_ms()}
        #: which events are asked about, in words; empty for all
        self.selected = shared.selected_text(selection, work)
        #: why the GPU was idle
        self.answer = answer(work, self.asked, selection)
        #: what the pairs are sorted by, in words
        self.sorted_by = tables.PAIR_SORTS[sort][1]

    def headline(self) -> list[str]:
        """Totals and streams, a line each."""
        from tracelens_ext.analysis.idle_time.answer import in_words

        gaps = self.streams.gaps
        idle = int(self.asked.gaps.duration.sum())
        own = self.asked is self.streams or len(gaps.tracks) < 2
        average = round(int(gaps.duration.sum()) / max(len(gaps), 1))
        streams = self.tables["gap_streams"]
        lines = [
            *([f"Selected: {self.selected}"] if self.selected else []),
            f"Total gaps found: {len(gaps)}",
            f"Total idle time: {in_words(idle)}{'' if own else ' (no stream busy)'}",
            f"Average gap duration: {in_words(average)}{'' if own else ' (each stream by itself)'}",
            "",
            f"Active streams: {len(streams)}",
        ]
        processes = bool(streams.duplicated(["device", "stream"]).any())
        parts = ["stream"]
        if processes:
            parts = ["process", "device", "stream"]
        elif streams["device"].nunique() > 1:
            parts = ["device", "stream"]
        for record in streams.to_dict("records"):
            name = ", ".join(f"{part} {record[part]}" for part in parts)
            name = name[0].upper() + name[1:]  # a device may have a name of its own
            idle_time = in_words(round(record["idle_time_us"] * 1e3), like=idle)
            line = f"  {name}: {record['gap_count']} gaps, {idle_time} idle time"
            if len(gaps.tracks) > 1:
                overlapped = in_words(round(record["overlapped_us"] * 1e3), like=idle)
                line += f", {overlapped} of it beside another stream"
            lines.append(line)
        return lines

    def histogram(self, bins: int, factor: float = 1.0) -> tuple[Histogram, str]:
        """The lengths of the gaps, µs times a factor; and why its bins are not of one width."""
        from tracelens_ext.analysis.idle_time.histogram import telling_histogram

        length = self.streams.gaps.duration / 1e3 * factor
        bounds = [each and each * factor for each in (self.options.hist_min, self.options.hist_max)]
        return telling_histogram(length, bins, *bounds, log=self.options.log)

    @property
    def notes(self) -> list[str]:
        """Why the GPU was idle; why bins of the histogram are not of one width."""
        from tracelens_ext.analysis.idle_time.histogram import BINS

        return [self.answer, *filter(None, [self.histogram(BINS)[1]])]

    def histogram_lines(self, bins: int, *, bars: bool) -> list[str]:
        """The lengths of the gaps, a line a bin, and what lies outside of the bins."""
        from tracelens_ext.analysis.idle_time.histogram import histogram_lines

        longest = self.streams.gaps.duration.max(initial=0) / 1e3
        end = longest if self.options.hist_max is None else self.options.hist_max
        unit, factor = ("ns", 1e3) if end < _SHOWN_IN_NS else ("μs", 1.0)
        found, why = self.histogram(bins, factor)
        lines = [*filter(None, [why]), *histogram_lines(found, unit=unit, bars=bars)]
        if not len(found.counts):
            lines.append("no gap is within these bounds" if len(self.streams) else "no gaps")
        if found.below or found.above:
            lines.append(f"{found.below} gaps are shorter, {found.above} longer")
        return lines

    def text(self) -> str:
        """The detailed text for a file."""
        from tracelens_ext.analysis.idle_time.histogram import BINS

        headline = [self.answer, "", *self.headline()]
        bins = self.histogram_lines(BINS, bars=False)
        return gap_text(self.tables, headline=headline, histogram=bins, sorted_by=self.sorted_by)

    def blocks(self, first: Sequence[screen.Block] = ()) -> Iterator[screen.Block]:
        """Totals, causes, what the host was in, the histogram, pairs and the longest gaps."""
        yield ["=== GPU IDLE TIME GAP ANALYSIS ===", ""]
        yield from first
        yield from [self.answer, "", *self.headline()]
        if not len(self.streams):
            return
        summary = self.tables["gap_summary"]
        summary = summary[summary["count"] > 0]
        if len(self.streams.gaps.tracks) < 2:  # then both scopes say the same
            summary = summary[summary["scope"] == "stream"].drop(columns="overlapped_time_ms")
        title = "WHY (device: no stream busy; stream: each by itself)"
        if len(set(summary["scope"])) == 1:
            title = "WHY"
            summary = summary.drop(columns="scope")
        yield screen.Part(title, summary)
        if self.top:
            yield from _hosts(self.tables["gap_hosts"], min(self.top, _HOSTS_SHOWN))
        bars = self.histogram_lines(_TERMINAL_BINS, bars=True)

        def drawn(console: Console) -> list[screen.Block]:
            rule = "=" * min(console.width, 80)
            return [["", "GAP DURATION HISTOGRAM:", rule, *bars, rule]]

        yield drawn
        if self.top:
            pairs = self.tables["gap_pairs"].head(self.top)
            yield lambda console: _pairs(pairs, self.sorted_by, console)
            yield _longest(self.tables["gaps_longest"].head(self.top))


def _hosts(hosts: pd.DataFrame, top: int) -> Iterator[screen.Block]:
    from tracelens_ext.trace.call_tree import UNLINKED

    if hosts["host_op"].isin(["", UNLINKED]).all() and hosts["python_frame"].eq("").all():
        return  # nothing is known of the host
    shown = hosts.head(top).replace({"host_op": {"": NO_OPERATION}})
    columns = ["idle_time_ms", "% of idle time", "host_op", "python_frame", "main_cause", "count"]
    if not shown["python_frame"].ne("").any():
        columns.remove("python_frame")
    wide = [*columns, "avg_gap_us", "max_gap_us"]
    title = "WHAT THE HOST WAS IN MEANWHILE:"
    yield lambda console: [
        screen.Part(title, shown, columns if console.width < screen.NARROW else wide)
    ]
    if more := len(hosts) - len(shown):
        yield [f"{more:,} more; --gap-output has them all."]
    if shown["host_op"].eq(UNLINKED).any():
        yield [f"{UNLINKED}: the launch of the next GPU event is not in the trace."]


def _pairs(pairs: pd.DataFrame, sorted_by: str, console: Console) -> Iterator[screen.Block]:
    us = sign("μs", console)
    narrow = console.width < screen.NARROW
    columns = {"count": "Count", "avg_gap_us": f"Avg Gap ({us})", "max_gap_us": f"Max Gap ({us})"}
    if not narrow:  # of the numbers, those that say most
        columns |= {"min_gap_us": f"Min Gap ({us})", "std_gap_us": f"Std Dev ({us})"}
    table = pairs[[*columns]].rename(columns=columns)
    table.insert(0, "Rank", range(1, len(pairs) + 1))
    room = name_room(table, console)
    marks = share_marks(pairs, console)
    arrow = sign("→", console)
    dots = sign("…", console)
    before, after = ([*map(name_text, pairs[f"kernel_{side}"])] for side in ("before", "after"))
    if narrow:  # a line for the kernel before, and one for the kernel after
        first = [cut_middle(name, room, dots) for name in before]
        second = cut_names([f"{arrow} {name}" for name in after], marks, room, console, first)
        texts = [text for pair in zip(first, second, strict=True) for text in pair]
        rows = range(2 * len(table))
        table = table.astype({"Rank": "Int64", "Count": "Int64"})
        table = table.set_axis(rows[::2]).reindex(rows)
    else:
        both = max(room - len(arrow) - 2 - max(map(len, marks), default=0), 12)
        space = both - len(" #10")  # for those that look alike when they are cut
        texts = []
        for one, other in zip(before, after, strict=True):
            if len(one) + len(other) > both:
                one = cut_middle(one, max(space // 2, space - len(other)), dots)
                other = cut_middle(other, space - len(one), dots)
            texts.append(f"{one} {arrow} {other}")
        texts = cut_names(texts, marks, room, console)
    table.insert(1, "Kernel Transition", texts)
    yield screen.Part(f"TOP {len(pairs)} KERNEL PAIRS BY {sorted_by.upper()}:", table)
    shared = "N pairs of kernels share these names; --gap-output FILE lists all."
    yield remarks(texts, shared, "--gap-output FILE has them whole", console)
    if narrow:
        yield [f"Min Gap and Std Dev need {screen.NARROW} columns; --gap-output FILE has them."]


def _longest(longest: pd.DataFrame) -> screen.Part:
    from tracelens_ext.trace import NONE

    host = [name for name in ("host_op", "python_frame", "host_call") if longest[name].ne("").any()]
    device = ["device"] if longest["device"].nunique() > 1 else []
    shown = longest[[*device, "gap_us", "start_us", "cause", *host, "cpu_op"]]
    shown = shown.rename(columns={"cpu_op": "next cpu_op"})
    shown["next kernel"] = [name_text(simple_name(name)) for name in longest["kernel_after"]]
    of_device = (longest["stream"] == NONE).all()
    what = "TIMES WITHOUT ANY GPU WORK" if of_device else "GAPS OF THE STREAM"
    return screen.Part(f"LONGEST {len(longest)} {what}:", shown, keep=("next kernel",))


def sign(text: str, console: Console) -> str:
    """What stands for an arrow and the like on a terminal that shows ASCII only."""
    return _ASCII[text] if console.options.ascii_only else text


def name_room(numbers: pd.DataFrame, console: Console) -> int:
    """Cells that are left for a column of names beside these columns."""
    from rich.console import Console as Other

    # Headers are folded where they would leave a name less.
    beside = Other(width=max(console.width - _NAME_AT_LEAST - 2, 1), file=None, color_system=None)
    with beside.capture() as captured:
        beside.print(frame_table(numbers))
    taken = max(len(line.rstrip()) for line in captured.get().splitlines())
    return max(console.width - taken - 2, _NAME_AT_LEAST)


def share_marks(table: pd.DataFrame, console: Console) -> list[str]:
    """What is put behind a name that several kernels share."""
    times = sign("×", console)
    return [f" {times}{count}" if count > 1 else "" for count in table["full_names"]]


def remarks(names: Sequence[str], shared: str, whole: str, console: Console) -> list[str]:
    """What the signs behind names mean, `×N` and `#N`, if there are such signs."""
    times = sign("×", console)
    alike = f"#N: these look alike at this width; {whole}."
    said = {rf" {times}\d+$": f"{times}N: {shared}", rf" #\d+(?: {times}\d+)?$": alike}
    return [text for end, text in said.items() if any(re.search(end, each) for each in names)]


def cut_names(
    names: Sequence[str],
    marks: Sequence[str],
    room: int,
    console: Console,
    beside: Sequence[str] | None = None,
) -> list[str]:
    """Cut names to so many cells, marks included; those that then look alike are numbered.

    `beside`: texts that tell names apart too.
    """
    dots = sign("…", console)
    cut = [cut_middle(n, room - len(m), dots) + m for n, m in zip(names, marks, strict=True)]
    keys = list(zip(beside or cut, cut, strict=True))
    often = Counter(keys)
    met = Counter[tuple[str, str]]()
    for at, key in enumerate(keys):
        if often[key] > 1:
            met[key] += 1
            end = f" #{met[key]}{marks[at]}"
            cut[at] = cut_middle(names[at], room - len(end), dots) + end
    return cut
