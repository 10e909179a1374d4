"""The report of `gaps` and `kernels --gaps`: how long and why the GPU was idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.cli.gap_options import GapOptions
from tracelens_ext.cli.gap_pairs import pairs_in_one_line, pairs_in_two_lines
from tracelens_ext.cli.load import computed_tables
from tracelens_ext.cli.name_columns import (
    remarks,
)
from tracelens_ext.cli.options import selected_text
from tracelens_ext.cli.screen import NARROW, Block, Part, Section
from tracelens_ext.lazy import pd
from tracelens_ext.report.kernel_text import NO_OPERATION, gap_text
from tracelens_ext.report.terminal import name_text
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analysis.idle_time.classification import ClassifiedGaps
    from tracelens_ext.analysis.idle_time.histogram import Histogram
    from tracelens_ext.analysis.iterations.selection import EventFilter
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace.gpu_events import Scope


_TERMINAL_BINS = 15
#: Rows of the table about what the CPU did.
_MOST_CPU_ACTIVITIES = 8
#: The histogram is in ns if no gap in it is as long as this, µs.
_SHOWN_IN_NS = 1.0
_RULE_WIDTH = 80


class GapReport:
    """The gaps of a trace as text, tables and blocks for the terminal.

    Attributes:
        tables: the tables of a report. `idle_cpu_activity` and `gaps_longest` are about the
            selected stream, or else about whole devices.
        members: what the JSON has besides the tables.
        selected: the selection of GPU events in words; empty if all are selected.
        answer: a sentence that says why the GPU was idle.
        sorted_by: the statistic by which pairs of kernels are sorted, in words.
    """

    def __init__(
        self, analyzer: TreePerfAnalyzer, selection: EventFilter, options: GapOptions
    ) -> None:
        from tracelens_ext.analysis.idle_time.answer import idle_time_answer
        from tracelens_ext.analysis.idle_time.classification import classify_gaps
        from tracelens_ext.analysis.idle_time.kernel_pairs import PAIR_SORTS

        gpu_events = analyzer.gpu_events
        self._options = options
        self._top = options.top
        self._stream_gaps = classify_gaps(gpu_events, "stream", selection)
        device_gaps = classify_gaps(gpu_events, "device", selection)
        #: the gaps of the selected stream, or else of whole devices
        self._main_gaps: ClassifiedGaps = self._stream_gaps
        if selection.stream is None:
            self._main_gaps = device_gaps
        self.tables = computed_tables(
            analyzer.failures, _table_makers(analyzer, selection, options)
        )
        self.members: dict[str, object] = {
            "idle_by_cause_ms": device_gaps.idle_by_cause_ms()
        }
        self.selected = selected_text(selection, gpu_events)
        self.answer = idle_time_answer(gpu_events, self._main_gaps, selection)
        self.sorted_by = PAIR_SORTS[options.sort].title

    def headline(self) -> list[str]:
        """Return a line for each total and each stream."""
        from tracelens_ext.analysis.idle_time.answer import duration_with_unit

        gaps = self._stream_gaps.gaps
        idle_ns = int(self._main_gaps.gaps.duration.sum())
        average_ns = round(int(gaps.duration.sum()) / max(len(gaps), 1))
        scope_of_idle = ""
        scope_of_average = ""
        if self._main_gaps is not self._stream_gaps and len(gaps.tracks) > 1:
            scope_of_idle = " (no stream busy)"
            scope_of_average = " (each stream separately)"
        lines = []
        if self.selected:
            lines.append(f"Selected: {self.selected}")
        lines += [
            f"Total gaps found: {len(gaps)}",
            f"Total idle time: {duration_with_unit(idle_ns)}{scope_of_idle}",
            f"Average gap duration: {duration_with_unit(average_ns)}{scope_of_average}",
            "",
        ]
        return lines + self._stream_lines(idle_ns)

    def _stream_lines(self, idle_ns: int) -> list[str]:
        """Return a line that counts the streams, and a line for each stream."""
        from tracelens_ext.analysis.idle_time.answer import duration_with_unit

        streams = self.tables.get("gap_streams")
        if streams is None:
            return []
        lines = [f"Active streams: {len(streams)}"]
        name_columns = _columns_that_name_streams(streams)
        for stream in streams.to_dict("records"):
            name = ", ".join(f"{column} {stream[column]}" for column in name_columns)
            # `capitalize` would change the case of the name of a device.
            name = name[0].upper() + name[1:]
            idle_time = duration_with_unit(
                round(stream["idle_time_us"] * 1e3), same_unit_as=idle_ns
            )
            line = f"  {name}: {counted(stream['gap_count'], 'gap')}, {idle_time} idle time"
            if len(self._stream_gaps.gaps.tracks) > 1:
                overlapped = duration_with_unit(
                    round(stream["overlapped_us"] * 1e3), same_unit_as=idle_ns
                )
                line += f", {overlapped} of it overlapped by other streams"
            lines.append(line)
        return lines

    def _histogram(self, bins: int, units_per_us: float = 1.0) -> tuple[Histogram, str]:
        """Return a histogram of the gaps, and why its bins differ in width (or an empty text)."""
        from tracelens_ext.analysis.idle_time.histogram import readable_histogram

        lengths = self._stream_gaps.gaps.duration / 1e3 * units_per_us
        low = self._options.hist_min
        high = self._options.hist_max
        if low is not None:
            low *= units_per_us
        if high is not None:
            high *= units_per_us
        return readable_histogram(
            values=lengths, bins=bins, smallest=low, largest=high, log=self._options.log
        )

    @property
    def notes(self) -> list[str]:
        """Why the GPU was idle, and why the bins of the histogram differ in width."""
        from tracelens_ext.analysis.idle_time.histogram import BINS

        notes = [self.answer]
        reason = self._histogram(BINS)[1]
        if reason:
            notes.append(reason)
        return notes

    def histogram_lines(self, bins: int, *, bars: bool) -> list[str]:
        """Return a line for each bin of the histogram, and one about gaps outside of the bins."""
        from tracelens_ext.analysis.idle_time.histogram import histogram_lines

        end_us = self._options.hist_max
        if end_us is None:
            end_us = self._stream_gaps.gaps.duration.max(initial=0) / 1e3
        unit = "μs"
        units_per_us = 1.0
        if end_us < _SHOWN_IN_NS:
            unit = "ns"
            units_per_us = 1e3
        histogram, reason = self._histogram(bins, units_per_us)
        lines = [reason] if reason else []
        lines += histogram_lines(histogram, unit=unit, bars=bars)
        if not len(histogram.counts):
            lines.append(
                "no gap is within these bounds" if len(self._stream_gaps) else "no gaps"
            )
        if histogram.below or histogram.above:
            lines.append(
                f"Not shown: {counted(histogram.below, 'shorter gap')}, "
                f"{counted(histogram.above, 'longer gap')}"
            )
        return lines

    def text(self) -> str:
        """Return the detailed text for a file."""
        from tracelens_ext.analysis.idle_time.histogram import BINS

        headline = [self.answer, ""] + self.headline()
        bins = self.histogram_lines(BINS, bars=False)
        return gap_text(
            self.tables, headline=headline, histogram=bins, sorted_by=self.sorted_by
        )

    def blocks(self, first: Sequence[Block] = ()) -> Iterator[Block]:
        """Yield the blocks: totals, causes, CPU activity, histogram, kernel pairs, longest gaps."""
        yield ["=== GPU IDLE TIME GAP ANALYSIS ===", ""]
        yield from first
        yield self.answer
        yield ""
        yield Section("totals", lambda _: self.headline())
        if not len(self._stream_gaps):
            return
        yield from self._table_section("gap_summary", self._causes)
        yield from self._table_section("gap_shapes", self._shapes)
        if self._top:
            yield from self._table_section("idle_cpu_activity", self._cpu_activity)
        yield Section("histogram", self._drawn_histogram)
        if self._top:
            yield from self._table_section("idle_by_kernel_pair", self._pairs)
            yield from self._table_section("gaps_longest", self._longest)

    def _table_section(
        self, name: str, make: Callable[[pd.DataFrame, Console], Iterable[Block]]
    ) -> Iterator[Block]:
        """Yield the section about a table; nothing if the table could not be computed."""
        if name in self.tables:
            table = self.tables[name]
            yield Section(name, lambda console: make(table, console))

    def _causes(self, summary: pd.DataFrame, _: Console) -> Iterator[Block]:
        causes = summary[summary["count"] > 0]
        if len(self._stream_gaps.gaps.tracks) < 2:
            # With a single stream, the rows about the device say the same.
            causes = causes[causes["scope"] == "stream"].drop(
                columns="overlapped_time_ms"
            )
        title = "WHY (device: no stream busy; stream: each stream separately)"
        if causes["scope"].nunique() == 1:
            title = "WHY"
            causes = causes.drop(columns="scope")
        yield Part(title, causes)

    def _shapes(self, shapes: pd.DataFrame, _: Console) -> Iterator[Block]:
        present_shapes = shapes[shapes["count"] > 0]
        if present_shapes["period_ms"].isna().all():
            present_shapes = present_shapes.drop(columns="period_ms")
        yield Part("SHAPE OF THE IDLE TIME", present_shapes)

    def _cpu_activity(
        self, activity: pd.DataFrame, console: Console
    ) -> Iterator[Block]:
        from tracelens_ext.trace.call_tree import UNLINKED

        has_no_operation = activity["host_op"].isin(["", UNLINKED])
        has_no_frame = activity["python_frame"].eq("")
        if (has_no_operation & has_no_frame).all():
            return
        rows = activity.head(min(self._top, _MOST_CPU_ACTIVITIES))
        table = rows.replace({"host_op": {"": NO_OPERATION}})
        columns = ["idle_time_ms", "% of idle time", "host_op"]
        if table["python_frame"].ne("").any():
            columns.append("python_frame")
        columns += ["main_cause", "count"]
        if console.width >= NARROW:
            columns += ["avg_gap_us", "max_gap_us"]
        yield Part(title="CPU ACTIVITY DURING IDLE TIME:", frame=table, columns=columns)
        more = len(activity) - len(table)
        if more:
            yield [f"{more:,} more; --gap-output has them all."]
        if table["host_op"].eq(UNLINKED).any():
            yield [f"{UNLINKED}: the launch of the next GPU event is not in the trace."]

    def _drawn_histogram(self, console: Console) -> list[Block]:
        rule = "=" * min(console.width, _RULE_WIDTH)
        bars = self.histogram_lines(_TERMINAL_BINS, bars=True)
        return [["", "GAP DURATION HISTOGRAM:", rule] + bars + [rule]]

    def _pairs(self, pairs: pd.DataFrame, console: Console) -> Iterator[Block]:
        rows = pairs.head(self._top)
        is_narrow = console.width < NARROW
        make_table = pairs_in_two_lines if is_narrow else pairs_in_one_line
        table = make_table(rows, console)
        title = f"TOP {len(rows)} KERNEL PAIRS BY {self.sorted_by.upper()}:"
        yield Part(title, table)
        shared = (
            "N pairs of kernels share these names; list all with --gap-output FILE."
        )
        names = table["Kernel Transition"].tolist()
        yield remarks(
            names=names,
            shared=shared,
            whole="--gap-output FILE lists the full names",
            console=console,
        )
        if is_narrow:
            yield [
                (
                    f"Min Gap and Std Dev are shown at {NARROW} columns or more, and in "
                    "--gap-output FILE."
                )
            ]

    def _longest(self, longest: pd.DataFrame, _: Console) -> Iterator[Block]:
        from tracelens_ext.trace import NONE

        rows = longest.head(self._top)
        columns = []
        if rows["device"].nunique() > 1:
            columns.append("device")
        columns += ["gap_us", "start_us", "cause"]
        for column in ("host_op", "python_frame", "host_call"):
            if rows[column].ne("").any():
                columns.append(column)
        columns.append("cpu_op")
        table = rows[columns].rename(columns={"cpu_op": "next cpu_op"})
        table["next kernel"] = [
            name_text(simple_name(name)) for name in rows["kernel_after"]
        ]
        gaps_are_of_device = (rows["stream"] == NONE).all()
        subject = "GAPS OF THE STREAM"
        if gaps_are_of_device:
            subject = "TIMES WITHOUT ANY GPU WORK"
        yield Part(f"LONGEST {len(rows)} {subject}:", table, keep=("next kernel",))


def _table_makers(
    analyzer: TreePerfAnalyzer, selection: EventFilter, options: GapOptions
) -> dict[str, Callable[[], pd.DataFrame]]:
    """Return the function that computes each table of the gaps, by the name of the table."""
    from tracelens_ext.analysis.idle_time import gap_tables, kernel_pairs

    gpu_events = analyzer.gpu_events
    scope: Scope = "device" if selection.stream is None else "stream"
    scopes: list[Scope] = ["stream"] if scope == "stream" else ["device", "stream"]
    longest = max(options.top, gap_tables.LONGEST_LISTED)
    makers: dict[str, Callable[[], pd.DataFrame]] = {
        "gap_summary": lambda: gap_tables.gap_summary(
            gpu_events, scopes, selection=selection
        ),
        "gap_shapes": lambda: gap_tables.gap_shapes(gpu_events, selection=selection),
        "idle_cpu_activity": lambda: gap_tables.idle_cpu_activity(
            gpu_events, scope, selection=selection
        ),
        "gap_streams": lambda: gap_tables.gap_streams(gpu_events, selection=selection),
        "idle_by_kernel_pair": lambda: kernel_pairs.idle_by_kernel_pair(
            gpu_events, options.sort, selection=selection
        ),
        "gaps_longest": lambda: gap_tables.gaps_longest(
            gpu_events, scope, longest=longest, selection=selection
        ),
        "gap_full_names": lambda: kernel_pairs.gap_full_names(
            gpu_events, options.sort, selection=selection
        ),
        "gap_histogram": lambda: gap_tables.gap_histogram(
            gpu_events=gpu_events,
            smallest=options.hist_min,
            largest=options.hist_max,
            log=options.log,
            selection=selection,
        ),
    }
    if options.all:
        makers["gaps"] = lambda: gap_tables.gaps(gpu_events, selection=selection)
    return makers


def _columns_that_name_streams(streams: pd.DataFrame) -> list[str]:
    """Return the columns that tell the streams of a trace apart."""
    is_ambiguous = streams.duplicated(["device", "stream"])
    if is_ambiguous.any():
        return ["process", "device", "stream"]
    if streams["device"].nunique() > 1:
        return ["device", "stream"]
    return ["stream"]
