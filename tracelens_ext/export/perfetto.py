"""A trace as JSON that Perfetto and chrome://tracing draw completely, and that can be read back.

Perfetto drops events that overlap on a thread without nesting, so such events go to further lanes
(`tracks.py`). It reads times as doubles in µs, so times count from the first event to stay exact.
The head of the file has facts for which events have no field (`readers/kineto/reader.py` reads
them). Format: the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from tracelens_ext.export.choice import WHOLE_TIME, Choice, Window, choose, window_of
from tracelens_ext.export.counters import CounterTarget, counter_events, us_text
from tracelens_ext.export.spans import Span
from tracelens_ext.export.tracks import Tracks, events_at_rows, fit_lanes, place
from tracelens_ext.isolation import PartFailures
from tracelens_ext.readers.kineto.schema import CATEGORY_OF_KIND
from tracelens_ext.report.manifest import GENERATOR
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT

#: The version of the member `tracelens_ext` of the head.
HEAD_VERSION = 1
#: Names of colors in chrome://tracing. A category has the same color in every export.
_COLORS = (
    "thread_state_running",
    "rail_response",
    "rail_animation",
    "rail_idle",
    "rail_load",
    "thread_state_iowait",
    "startup",
    "cq_build_running",
    "good",
    "bad",
    "terrible",
    "olive",
)
#: The most names in a call path.
_CALL_PATH_NAMES = 16
#: How many events are joined to one piece of the text.
_EVENTS_AT_ONCE = 4096
#: Each trace has 2 to this power numbers for flows, from a number of its own on.
_FLOW_ID_BITS = 32


@dataclass(frozen=True, eq=False)
class Source:
    """A trace to export."""

    gpu_events: GpuEvents  #: the GPU events of the trace
    #: the rank of the trace, such as `rank 3`; empty if there is only one trace
    label: str = ""
    shift_ns: int = 0  #: the time that is added to all times of the trace
    clock_note: str = ""  #: how exact the shift is, in words; empty for no note
    spans: Sequence[Span] = ()  #: the spans of the tracks that the export adds
    #: records the tracks that fail
    failures: PartFailures = field(default_factory=PartFailures)


@dataclass
class ExportSummary:
    """How many events an export has, and how many it leaves out."""

    written: int = 0  #: number of events of the traces that are in the export
    #: reason → number of events that are left out for it
    left_out: Counter[str] = field(default_factory=Counter)
    #: number of arrows that Perfetto does not draw because the GPU event starts before its launch
    backwards: int = 0
    #: a sentence for each track that failed
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the summary as a line of text."""
        parts = [f"{self.written:,} events"]
        if self.left_out:
            reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items()]
            reasons_text = "; ".join(reasons)
            parts.append(f"left out: {reasons_text}")
        if self.backwards:
            parts.append(
                f"{self.backwards:,} arrows would start before their launch and are "
                "not drawn"
            )
        parts.extend(self.failures)
        return "; ".join(parts)


def perfetto_json(
    sources: Sequence[Source], choice: Choice, summary: ExportSummary
) -> Iterator[str]:
    """Yield the JSON text of an export, in pieces.

    Args:
        sources: the traces, at least one.
        choice: the conditions that exported events meet.
        summary: updated while the pieces are taken; complete after the last one.
    """
    tracks = Tracks()
    unique_ids = _UniqueIds()
    writers = [
        _TraceWriter(
            source=source,
            choice=choice,
            tracks=tracks,
            unique_ids=unique_ids,
            summary=summary,
        )
        for source in sources
    ]
    yield _head(sources[0].gpu_events.trace, tracks, alone=len(sources) == 1)
    texts = chain(tracks.events, *(writer.events() for writer in writers))
    separator = ""
    while True:
        some_texts = list(islice(texts, _EVENTS_AT_ONCE))
        if not some_texts:
            break
        yield separator + ",\n".join(some_texts)
        separator = ",\n"
    yield "\n]}\n"
    for source in sources:
        summary.failures.extend(source.failures.messages)


def _head(trace: Trace, tracks: Tracks, *, alone: bool) -> str:
    """Return the beginning of the JSON text, up to the events."""
    members: dict[str, object] = {"generator": GENERATOR}
    if alone:
        members["baseTimeNanoseconds"] = trace.base_ns
        distributed_info = trace.metadata.get("distributedInfo")
        if isinstance(distributed_info, dict):
            members["distributedInfo"] = distributed_info
        members["deviceProperties"] = _device_properties(trace)
    members["tracelens_ext"] = {
        "version": HEAD_VERSION,
        "format": trace.provenance.format,
        "conventions": asdict(trace.conventions),
        "threads": tracks.recorded if alone else [],
    }
    text = json.dumps(members, default=str)
    return text.removesuffix("}") + ', "traceEvents": [\n'


def _device_properties(trace: Trace) -> object:
    """Return the properties of the GPUs, as the trace has them or as PyTorch would write them."""
    recorded = trace.metadata.get("deviceProperties")
    if recorded:
        return recorded
    return [
        {
            "id": device.ordinal,
            "name": device.name,
            "totalGlobalMem": device.memory_bytes,
            "numSms": device.units,
            "warpSize": device.warp,
        }
        for device in trace.devices
    ]


class _UniqueIds:
    """Makes correlation ids and External ids unique in the whole export.

    In a trace, ids are unique within a process or rank only. The ids of each further process or
    rank are increased, so that all are larger than the largest id so far.
    """

    def __init__(self) -> None:
        self._next_id: Counter[str] = Counter()  # by kind of id

    def unique(self, kind: str, group: Int64Array, ids: Int64Array) -> Int64Array:
        """Return ids that differ from those of all earlier groups and traces.

        Args:
            kind: the kind of id: `correlation` or `External id`.
            group: the process or rank of each id, (m,).
            ids: the recorded ids, (m,); `NONE` stays `NONE`.
        """
        result = ids.copy()
        has_id = np.flatnonzero(ids != NONE)
        by_group = has_id[np.argsort(group[has_id], kind="stable")]
        first_of_group = np.flatnonzero(np.diff(group[by_group])) + 1
        for members in np.split(by_group, first_of_group):
            result[members] += self._next_id[kind]
            id_after = int(result[members].max(initial=NONE)) + 1
            self._next_id[kind] = max(id_after, self._next_id[kind])
        return result


class _FlowEnd(NamedTuple):
    """The start or the end of an arrow from a launch to a GPU event."""

    phase: str  #: the member `ph` of the event, as JSON, with further members
    flow_id: int


_FLOW_START = '"s"'
_FLOW_FINISH = '"f", "bp": "e"'


class _EventCategories(NamedTuple):
    """The category of each event of an export."""

    labels: Sequence[str]  #: the names of the categories
    code: Int64Array  #: index into `labels`, `NONE` for an event without a category


class _TraceWriter:
    """Writes the events of one trace.

    An *event* below is an index into `_rows`: the position of an exported event in the file.
    """

    def __init__(
        self,
        source: Source,
        choice: Choice,
        tracks: Tracks,
        unique_ids: _UniqueIds,
        summary: ExportSummary,
    ) -> None:
        self._source = source
        self._summary = summary
        self._gpu_events = source.gpu_events
        self._trace = source.gpu_events.trace
        trace = self._trace
        rows, left_out = choose(self._gpu_events, choice)
        summary.written += len(rows)
        summary.left_out += left_out
        # Viewers need an event before the events within it. Ties keep the order of the trace.
        self._rows = rows[np.lexsort((-trace.dur[rows], trace.ts[rows]))]
        self._placement = place(
            tracks=tracks,
            gpu_events=self._gpu_events,
            rows=self._rows,
            label=source.label,
            clock_note=source.clock_note,
        )
        self._ids = self._make_ids_unique(unique_ids)
        #: index of each event among the GPU events, `NONE` for a CPU event
        self._gpu_event = events_at_rows(self._gpu_events, self._rows)
        self._categories = self._event_categories()
        self._own_process = tracks.add_process(source.label, "tracelens-ext")
        self._window: Window = window_of(self._gpu_events, choice) or WHOLE_TIME
        self._spans = [
            span
            for span in source.spans
            if span.start < self._window.end and span.end > self._window.start
        ]
        self._thread_of_span = self._threads_of_spans(tracks)

    def _make_ids_unique(self, unique_ids: _UniqueIds) -> dict[str, Int64Array]:
        """Return the ids that link each event with others, by the kind of id."""
        trace = self._trace
        process = trace.process_of_thread[trace.thread[self._rows]].astype(np.int64)
        group = process if trace.conventions.gpu_by_process else np.zeros_like(process)
        recorded = {"correlation": trace.correlation, "External id": trace.external_id}
        return {
            kind: unique_ids.unique(kind, group, ids[self._rows])
            for kind, ids in recorded.items()
        }

    def _event_categories(self) -> _EventCategories:
        """Return the category of each event."""
        categories = self._gpu_events.categories
        if categories is None:
            return _EventCategories(labels=[], code=np.full_like(self._gpu_event, NONE))
        code = categories.code.astype(np.int64)
        return _EventCategories(
            labels=categories.labels, code=values_at(code, self._gpu_event)
        )

    def _threads_of_spans(self, tracks: Tracks) -> list[int]:
        """Return the thread of each span; spans that overlap get threads of their own."""
        track_names = list(dict.fromkeys(span.lane for span in self._spans))
        track_of_name = {name: index for index, name in enumerate(track_names)}
        track = np.array(
            [track_of_name[span.lane] for span in self._spans], dtype=np.int64
        )
        start = np.array([span.start for span in self._spans], dtype=np.int64)
        end = np.array([span.end for span in self._spans], dtype=np.int64)
        lane = fit_lanes(track, start, end)
        threads_of_track = []
        for index, name in enumerate(track_names):
            lane_count = int(lane[track == index].max()) + 1
            threads_of_track.append(
                tracks.add_lanes(self._own_process, name, lane_count)
            )
        return [
            threads_of_track[track_index][lane_index]
            for track_index, lane_index in zip(
                track.tolist(), lane.tolist(), strict=True
            )
        ]

    def events(self) -> Iterator[str]:
        """Yield the events of the trace, the spans of added tracks, and the counters."""
        yield from self._recorded_events()
        yield from self._span_events()
        target = CounterTarget(
            process_of_device=self._placement.process_of_device,
            own_process=self._own_process,
            shift_ns=self._source.shift_ns,
            window=self._window,
        )
        yield from counter_events(
            gpu_events=self._gpu_events, target=target, failures=self._source.failures
        )

    def _recorded_events(self) -> Iterator[str]:
        """Yield the events of the trace, each followed by the start or end of its arrow."""
        trace = self._trace
        shift = self._source.shift_ns
        names = [json.dumps(name) for name in trace.names]
        categories = [json.dumps(category) for category in trace.categories]
        args = self._args()
        colors = self._colors()
        flow_ends: dict[int, _FlowEnd] = {}
        with self._source.failures.isolate("The arrows from launches to GPU events"):
            flow_ends = self._flow_ends()
        columns = (
            trace.kind[self._rows],
            trace.category[self._rows],
            trace.name[self._rows],
            trace.ts[self._rows],
            trace.dur[self._rows],
            self._placement.process,
            self._placement.thread,
        )
        values = zip(*(column.tolist() for column in columns), strict=True)
        for event, row_values in enumerate(values):
            kind, category, name, start, duration, process, thread = row_values
            word = CATEGORY_OF_KIND.get(kind)
            category_text = f'"{word}"' if word else categories[category]
            place_text = (
                f'"pid": {process}, "tid": {thread}, "ts": {us_text(start + shift)}'
            )
            if kind == EventKind.INSTANT:
                head = f'{{"ph": "i", "s": "t", "cat": {category_text}, {place_text}'
            else:
                head = f'{{"ph": "X", "cat": {category_text}, {place_text}'
                head = f'{head}, "dur": {us_text(duration)}'
            yield f'{head}, "name": {names[name]}{colors[event]}, "args": {{{args[event]}}}}}'
            if event in flow_ends:
                phase, flow_id = flow_ends[event]
                flow = f'"id": {flow_id}, "cat": "ac2g", "name": "ac2g"'
                yield f'{{"ph": {phase}, {flow}, {place_text}}}'

    def _span_events(self) -> Iterator[str]:
        """Yield the spans of the added tracks."""
        for span, thread in zip(self._spans, self._thread_of_span, strict=True):
            event = {
                "ph": "X",
                "cat": span.lane,
                "name": span.name,
                "pid": self._own_process,
                "tid": thread,
                "args": dict(span.args),
            }
            text = json.dumps(event, default=str).removesuffix("}")
            start = us_text(span.start + self._source.shift_ns)
            duration = us_text(span.end - span.start)
            yield f'{text}, "ts": {start}, "dur": {duration}}}'

    def _colors(self) -> list[str]:
        """Return the JSON member with the color of each event's category; empty without one."""
        color_of_label = []
        for label in self._categories.labels:
            number = zlib.crc32(label.encode())
            color = _COLORS[number % len(_COLORS)]
            color_of_label.append(f', "cname": "{color}"')
        return [
            "" if code == NONE else color_of_label[code]
            for code in self._categories.code.tolist()
        ]

    def _args(self) -> list[str]:
        """Return the JSON text between the braces of each event's `args`."""
        trace = self._trace
        args = _Args(len(self._rows))
        for kind, ids in self._ids.items():
            has_id = np.flatnonzero(ids != NONE)
            args.add(kind, has_id, ids[has_id].tolist())
        for name, column in trace.args.items():
            has_value = np.flatnonzero(np.isin(self._rows, column.rows))
            values = column.at(self._rows[has_value]).tolist()
            if column.texts is not None:
                values = [column.texts[code] for code in values]
            args.add(name, has_value, values)
        labels = [json.dumps(label) for label in self._categories.labels]
        code = self._categories.code
        has_category = np.flatnonzero(code != NONE)
        category_texts = [
            labels[category_code] for category_code in code[has_category].tolist()
        ]
        args.add("kernel_category", has_category, category_texts)
        self._add_call_paths(args)
        in_further_lane = np.flatnonzero(self._placement.lane)
        thread_indices = trace.thread[self._rows[in_further_lane]].tolist()
        threads = [json.dumps(trace.threads[index][1]) for index in thread_indices]
        args.add("recorded thread", in_further_lane, threads)
        return args.texts()

    def _add_call_paths(self, args: _Args) -> None:
        """Add the names on the path to its launch to each GPU event."""
        tree = self._gpu_events.tree
        exported_gpu_events = np.flatnonzero(self._gpu_event != NONE)
        gpu_event = self._gpu_event[exported_gpu_events]
        is_linked = tree.linked[gpu_event]
        positions = tree.launch_position_of_gpu[gpu_event[is_linked]].tolist()
        path_of_position = {
            position: _call_path(self._gpu_events, position)
            for position in set(positions)
        }
        paths = [path_of_position[position] for position in positions]
        events = exported_gpu_events[is_linked]
        args.add("call path", events, paths)

    def _flow_ends(self) -> dict[int, _FlowEnd]:
        """Return the ends of the arrows from launches to their first GPU events, by event."""
        trace = self._trace
        tree = self._gpu_events.tree
        event_of_row = np.full(len(trace), NONE, dtype=np.int64)
        event_of_row[self._rows] = np.arange(len(self._rows))
        linked = np.flatnonzero(tree.linked)
        launch = event_of_row[tree.launch_of_gpu[linked]]
        started = event_of_row[self._gpu_events.rows[linked]]
        is_exported = (launch != NONE) & (started != NONE)
        launch = launch[is_exported]
        started = started[is_exported]
        # Events are in order of time, so the first GPU event of a launch has the lowest index.
        order = np.lexsort((started, launch))
        is_first_of_launch = np.diff(launch[order], prepend=NONE) != 0
        first = order[is_first_of_launch]
        launch = launch[first]
        started = started[first]
        launch_is_later = trace.ts[self._rows[launch]] > trace.ts[self._rows[started]]
        self._summary.backwards += int(launch_is_later.sum())
        # The number of the trace's own process makes the ids differ from those of other traces.
        first_flow_id = self._own_process << _FLOW_ID_BITS
        flow_ends: dict[int, _FlowEnd] = {}
        pairs = zip(launch.tolist(), started.tolist(), strict=True)
        for flow_id, (start, end) in enumerate(pairs, first_flow_id):
            flow_ends[start] = _FlowEnd(_FLOW_START, flow_id)
            flow_ends[end] = _FlowEnd(_FLOW_FINISH, flow_id)
        return flow_ends


class _Args:
    """The arguments of events as JSON texts without braces."""

    def __init__(self, event_count: int) -> None:
        self._members: list[list[str]] = [[] for _ in range(event_count)]

    def add(self, name: str, events: Int64Array, values: Iterable[object]) -> None:
        """Add an argument to some events; values are JSON texts or numbers."""
        quoted = json.dumps(name)
        for event, value in zip(events.tolist(), values, strict=True):
            self._members[event].append(f"{quoted}: {value}")

    def texts(self) -> list[str]:
        """Return the arguments of each event."""
        return [", ".join(members) for members in self._members]


def _call_path(gpu_events: GpuEvents, position: int) -> str:
    """Return the names on the path to a position in the call tree as one text, in JSON."""
    tree = gpu_events.tree
    names: list[str] = []
    while position != ROOT and len(names) < _CALL_PATH_NAMES:
        names.append(gpu_events.trace.name_of(int(tree.rows[position])))
        position = int(tree.parent_position[position])
    if position != ROOT:
        names.append("…")
    names.reverse()
    return json.dumps(" > ".join(names))
