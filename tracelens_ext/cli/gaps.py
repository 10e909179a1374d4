"""`tracelens-ext gaps`: how long the GPU was idle, between which kernels, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.kernel_view import is_narrow, name_room, remarks, signs, transitions
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.outputs import STANDARD_OUTPUT, check_texts, tell_written, write_text
from tracelens_ext.cli.screen import NARROW, Block, Part, first_lines, show, trace_report
from tracelens_ext.lazy import pd
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.gaps.causes import ClassifiedGaps
    from tracelens_ext.gaps.told import Histogram
    from tracelens_ext.iterations.iterations import Selection
    from tracelens_ext.work.gpu_work import Scope

_TERMINAL_BINS = 15
_HOSTS_SHOWN = 8
_SHOWN_IN_NS = 1.0  # µs: no bin of a histogram reaches as far


def gaps(
    trace: Path,
    output: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    selecting: shared.SelectionOptions,
    options: shared.OwnGapOptions,
    reading: ReadingOptions,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and kernels around them.

    Options:
        output --gap-output --output -o FILE: Write all about the gaps to a text file (- prints it).
    """
    selection = selecting.selection()
    check_texts([output], trace, force=force, json=json, every=options.all)
    how = shared.AnalysisOptions(kernel_categories=False, reading=reading)
    analyzer = analyze(trace, how, without_tpu=True)
    found = GapReport.of(analyzer, selection, options)
    if output is not None:
        write_text(output, found.text())
    if json or output != STANDARD_OUTPUT:
        notes = found.notes if json else []
        facts = [("Selected", found.selected)] if found.selected else []
        report = trace_report(
            "GPU idle time", trace, found.tables, notes, facts=facts, members=found.members
        )
        show(report, found.blocks(first_lines(analyzer.work)), json=json)
    if not json:
        tell_written([output])


@dataclass(frozen=True, eq=False)
class GapReport:
    """All that is shown of the gaps of a trace."""

    streams: ClassifiedGaps  #: the gaps of each stream
    asked: ClassifiedGaps  #: those of the stream that is selected, else of whole devices
    #: as a report has them; `gap_hosts` and `gaps_longest` are of `asked`
    tables: dict[str, pd.DataFrame]
    answer: str  #: why the GPU was idle, a sentence
    selected: str  #: which events are asked about, in words; empty for all
    options: shared.GapOptions  #: what was asked for
    members: dict[str, object]  #: what JSON has beside the tables

    @classmethod
    def of(
        cls, analyzer: TreePerfAnalyzer, selection: Selection, options: shared.GapOptions
    ) -> GapReport:
        """All about the gaps of a trace.

        Raises:
            UsageError: there is nothing that could be selected.
        """
        from tracelens_ext.gaps import tables
        from tracelens_ext.gaps.causes import classify_gaps
        from tracelens_ext.gaps.told import answer

        work, sort = analyzer.work, options.sort
        chosen: dict[str, Any] = {"selection": selection}
        streams = classify_gaps(work, "stream", selection)
        devices = classify_gaps(work, "device", selection)
        scope: Scope = "device" if selection.stream is None else "stream"
        scopes: list[Scope] = ["stream"] if scope == "stream" else ["device", "stream"]
        longest = max(options.top, tables.LONGEST_LISTED)
        bounds = options.hist_min, options.hist_max
        found = {
            "gap_summary": tables.gap_summary(work, scopes, **chosen),
            "gap_hosts": tables.gap_hosts(work, scope, **chosen),
            "gap_streams": tables.gap_streams(work, **chosen),
            "gap_pairs": tables.gap_pairs(work, sort, **chosen),
            "gaps_longest": tables.gaps_longest(work, scope, longest=longest, **chosen),
            "gap_full_names": tables.gap_full_names(work, sort, **chosen),
            "gap_histogram": tables.gap_histogram(work, *bounds, log=options.log, **chosen),
        }
        if options.all:
            found["gaps"] = tables.gaps(work, **chosen)
        asked = devices if scope == "device" else streams
        members: dict[str, object] = {"idle_by_cause_ms": devices.idle_by_cause_ms()}
        selected = shared.selected_text(selection, work)
        why = answer(work, asked, selection)
        return cls(streams, asked, found, why, selected, options, members)

    @property
    def sorted_by(self) -> str:
        """What the pairs are sorted by, in words."""
        from tracelens_ext.gaps.tables import PAIR_SORTS

        return PAIR_SORTS[self.options.sort][1]

    def headline(self) -> list[str]:
        """Totals and streams, a line each."""
        from tracelens_ext.gaps.told import in_words

        gaps, idle = self.streams.gaps, int(self.asked.gaps.duration.sum())
        several = len(gaps.lanes) > 1 and self.asked is not self.streams
        average = round(int(gaps.duration.sum()) / max(len(gaps), 1))
        records = self.tables["gap_streams"].to_dict("records")
        lines = [f"Selected: {self.selected}"] if self.selected else []
        lines += [
            f"Total gaps found: {len(gaps)}",
            f"Total idle time: {in_words(idle)}{' (no stream busy)' if several else ''}",
            f"Average gap duration: {in_words(average)}{' (each stream by itself)' * several}",
            "",
            f"Active streams: {len(records)}",
        ]
        places = [(record["device"], record["stream"]) for record in records]
        several_processes = len(set(places)) < len(places)
        for record in records:
            name = f"Stream {record['stream']}"
            if len({device for device, _ in places}) > 1 or several_processes:
                name = f"Device {record['device']}, stream {record['stream']}"
            if several_processes:
                name = f"Process {record['process']}, {name[0].lower()}{name[1:]}"
            own, overlapped = (
                in_words(round(record[column] * 1e3), like=idle)
                for column in ("idle_time_us", "overlapped_us")
            )
            beside = f", {overlapped} of it beside another stream" if len(gaps.lanes) > 1 else ""
            lines.append(f"  {name}: {record['gap_count']} gaps, {own} idle time{beside}")
        return lines

    def histogram(self, bins: int, factor: float = 1.0) -> tuple[Histogram, str]:
        """The lengths of the gaps, µs times a factor; and why its bins are not of one width."""
        from tracelens_ext.gaps.told import telling_histogram

        bounds = [
            None if bound is None else bound * factor
            for bound in (self.options.hist_min, self.options.hist_max)
        ]
        length = self.streams.gaps.duration / 1e3 * factor
        return telling_histogram(length, bins, *bounds, log=self.options.log)

    @property
    def notes(self) -> list[str]:
        """Why the GPU was idle; why bins of the histogram are not of one width."""
        from tracelens_ext.gaps.told import BINS

        return [self.answer, *filter(None, [self.histogram(BINS)[1]])]

    def histogram_lines(self, bins: int, *, bars: bool) -> list[str]:
        """The lengths of the gaps, a line a bin, and what lies outside of the bins."""
        from tracelens_ext.gaps.told import histogram_lines

        end = self.options.hist_max
        if end is None:
            end = self.streams.gaps.duration.max(initial=0) / 1e3
        unit, factor = ("ns", 1e3) if end < _SHOWN_IN_NS else ("μs", 1.0)
        found, why = self.histogram(bins, factor)
        lines = [why] if why else []
        lines += histogram_lines(found, unit=unit, bars=bars)
        if not len(found.counts):
            lines.append("no gap is within these bounds" if len(self.streams) else "no gaps")
        if found.below or found.above:
            lines.append(f"{found.below} gaps are shorter, {found.above} longer")
        return lines

    def text(self) -> str:
        """The detailed text for a file."""
        from tracelens_ext.gaps.told import BINS
        from tracelens_ext.report.kernel_text import gap_text

        return gap_text(
            self.tables,
            headline=[self.answer, "", *self.headline()],
            histogram=self.histogram_lines(BINS, bars=False),
            sorted_by=self.sorted_by,
        )

    def blocks(self, first: Sequence[Block] = ()) -> Iterator[Block]:
        """Totals, causes, what the host was in, the histogram, pairs and the longest gaps."""
        yield ["=== GPU IDLE TIME GAP ANALYSIS ===", ""]
        yield from first
        yield from [self.answer, "", *self.headline()]
        if not len(self.streams):
            return
        summary = self.tables["gap_summary"]
        summary = summary[summary["count"] > 0]
        if len(self.streams.gaps.lanes) < 2:  # then both scopes say the same
            summary = summary[summary["scope"] == "stream"].drop(columns="overlapped_time_ms")
        title = "WHY (device: no stream busy; stream: each by itself)"
        if len(set(summary["scope"])) == 1:
            title, summary = "WHY", summary.drop(columns="scope")
        yield Part(title, summary)
        top = self.options.top
        if top:
            yield from _hosts(self.tables["gap_hosts"], min(top, _HOSTS_SHOWN))
        yield self._drawn
        if top:
            pairs = self.tables["gap_pairs"].head(top)
            yield lambda console: _pairs(pairs, self.sorted_by, console)
            yield _longest(self.tables["gaps_longest"], top)

    def _drawn(self, console: Console) -> Iterator[Block]:
        rule = "=" * min(console.width, 80)
        lines = self.histogram_lines(_TERMINAL_BINS, bars=True)
        yield ["", "GAP DURATION HISTOGRAM:", rule, *lines, rule]


def _hosts(hosts: pd.DataFrame, top: int) -> Iterator[Block]:
    from tracelens_ext.report.kernel_text import NO_OPERATION
    from tracelens_ext.tree import UNLINKED

    if hosts["host_op"].isin(["", UNLINKED]).all() and hosts["python_frame"].eq("").all():
        return  # nothing is known of the host
    shown = hosts.head(top).replace({"host_op": {"": NO_OPERATION}})
    columns = ["idle_time_ms", "% of idle time", "host_op", "python_frame", "main_cause", "count"]
    if not shown["python_frame"].ne("").any():
        columns.remove("python_frame")

    def table(console: Console) -> Iterator[Block]:
        wide = [] if is_narrow(console) else ["avg_gap_us", "max_gap_us"]
        yield Part("WHAT THE HOST WAS IN MEANWHILE:", shown, [*columns, *wide])

    yield table
    if len(hosts) > len(shown):
        yield [f"{len(hosts) - len(shown):,} more; --gap-output has them all."]
    if shown["host_op"].eq(UNLINKED).any():
        yield [f"{UNLINKED}: the launch of the next GPU event is not in the trace."]


def _pairs(pairs: pd.DataFrame, sorted_by: str, console: Console) -> Iterator[Block]:
    us, narrow = signs(console).us, is_narrow(console)
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
    if narrow:
        table = table.iloc[:, :4]  # of the numbers, those that say most
    texts = transitions(pairs, name_room(table, console), console, lines=2 if narrow else 1)
    if narrow:  # a line for the kernel before, and one for the kernel after
        rows = range(2 * len(table))
        table = table.astype({"Rank": "Int64", "Count": "Int64"})
        table = table.set_axis(rows[::2]).reindex(rows)
    table.insert(1, "Kernel Transition", texts)
    yield Part(f"TOP {len(pairs)} KERNEL PAIRS BY {sorted_by.upper()}:", table)
    yield remarks(
        texts,
        shared="N pairs of kernels share these names; --gap-output FILE lists all.",
        alike="these look alike at this width; --gap-output FILE has them whole.",
        console=console,
    )
    if narrow:
        yield [f"Min Gap and Std Dev need {NARROW} columns; --gap-output FILE has them."]


def _longest(longest: pd.DataFrame, top: int) -> Part:
    from tracelens_ext.kernel_names import simple_name
    from tracelens_ext.report.terminal import name_text
    from tracelens_ext.trace import NONE

    longest = longest.head(top)
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
    return Part(f"LONGEST {len(longest)} {what}:", shown, keep=("next kernel",))
