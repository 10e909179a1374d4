"""A trace as JSON that Perfetto and chrome://tracing draw whole, and that is read back.

Perfetto drops events that overlap on a thread without nesting, and reads times as doubles of µs:
so times count from the first event, and such events go to further lanes (`tracks.py`). The head has
what the events themselves cannot say (`readers/kineto/reader.py` reads it).
Format: the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.distributed.storage import rank_of
from tracelens_ext.errors import UsageError
from tracelens_ext.export.tracks import Span, Tracks, counter_events, fit_lanes, place, us_text
from tracelens_ext.lazy import pd
from tracelens_ext.readers.kineto.schema import WORDS
from tracelens_ext.report.manifest import GENERATOR
from tracelens_ext.trace import GPU_KINDS, NONE, BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.nesting import ROOT

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s)")
Shift = tuple[str, int, str]
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True)
class Choice:
    """Which events are exported."""

    #: (start, end) in ns since the trace's first event; what touches it is in, whole
    window: tuple[int, int] | None = None
    #: the number of the one to export, with the GPU work that it launched
    iteration: int | None = None
    devices: frozenset[int] | None = None  #: of the GPU events; None for all
    streams: frozenset[int] | None = None
    min_ns: int = 0  #: GPU and host events that took less are left out
    host: bool = True  #: whether host events are in
    stacks: bool = False  #: whether Python frames are


def parse_window(text: str) -> tuple[int, int]:
    """`1200ms-1300ms` in ns."""
    times = [_TIME.fullmatch(part.strip()) for part in text.split("-")]
    if len(times) == 2 and times[0] and times[1]:
        first, last = (round(float(time[1]) * _NS[time[2]]) for time in times if time)
        if first < last:
            return first, last
    expected = "write START-END with units, such as 1200ms-1300ms"
    raise UsageError(f"--window {text!r} is no window; {expected}")


def choose(work: GpuEvents, choice: Choice) -> tuple[Int64Array, Counter[str]]:
    """The rows to export but flow events, ascending; how many others are left out, and why."""
    trace = work.trace
    recorded = trace.recorded
    kind = trace.kind[:recorded]
    keep = ~np.isin(kind, (EventKind.FLOW_START, EventKind.FLOW_END))
    left_out: Counter[str] = Counter()

    def leave(which: BoolArray, reason: str) -> None:
        which = which & keep
        left_out[reason] += int(which.sum())
        keep[which] = False

    if (window := window_of(work, choice)) is not None:
        ends = trace.end[:recorded]
        leave((trace.ts[:recorded] >= window[1]) | (ends <= window[0]), "outside of the window")
    asked = {"devices": (choice.devices, trace.device), "streams": (choice.streams, trace.stream)}
    for what, (numbers, of_gpu) in asked.items():
        if numbers is not None:
            others = np.zeros(recorded, dtype=bool)
            others[work.rows] = ~np.isin(of_gpu, list(numbers))
            leave(others, f"of other {what}")
    if not choice.host:
        gpu_kinds = (*GPU_KINDS, EventKind.GPU_ANNOTATION)
        leave(~np.isin(kind, gpu_kinds), "on the host (--no-host)")
    if not choice.stacks:
        leave(kind == EventKind.PYTHON_FUNCTION, "Python frames (--stacks)")
    if choice.min_ns:
        spans = kind != EventKind.INSTANT
        leave(spans & (trace.dur[:recorded] < choice.min_ns), "shorter than --min-us")
    return np.flatnonzero(keep), +left_out


def window_of(work: GpuEvents, choice: Choice) -> tuple[int, int] | None:
    """The window that is exported, ns since the trace's first event; None for all of it.

    Of an iteration from its start to its end, or that of the last work that it launched.
    """
    if (number := choice.iteration) is None:
        return choice.window
    found = find_iterations(work.tree)
    at = np.flatnonzero(found.has_number(number)[:-1])
    if not len(at):
        known = ", ".join(str(n) for n in dict.fromkeys(found.number[:20])) or "none"
        raise UsageError(f"--iteration {number}: there is none of that number; there are: {known}")
    at = at[found.start[at] < found.end[at[0]]]  # a later one of that number is another
    launched = np.isin(found.of_gpu, at) & (found.of_gpu != NONE)
    ends = np.concatenate((found.end[at], work.end[launched]))
    return int(found.start[at].min()), int(ends.max())


def shifts(traces: Sequence[Trace], names: Sequence[str], clocks: Path | None) -> list[Shift]:
    """What to call each trace, what to add to its times in ns, and how well that is known."""
    both = enumerate(zip(traces, names, strict=True))
    ranks = [rank_of(trace.metadata, name, at)[0] for at, (trace, name) in both]
    if clocks is None:
        alone = len(traces) == 1
        note = "" if alone else "from 0: clocks not compared"
        return [("" if alone else f"rank {rank}", 0, note) for rank in ranks]
    try:
        frame = pd.read_parquet(clocks)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"{clocks}: is no clocks.parquet of fleet ({error})") from None
    columns = ["rank", "offset_us", "error_us"]
    if not set(frame.columns) >= {*columns}:
        raise UsageError(f"{clocks}: is no clocks.parquet of fleet; it lacks rank or offset_us")
    rows = frame.dropna(subset=["offset_us"])[columns].itertuples(index=False, name=None)
    known = {int(rank): (float(offset), float(error)) for rank, offset, error in rows}
    if missing := [rank for rank in ranks if rank not in known]:
        raise UsageError(f"{clocks}: has no rank {missing[0]}; export the ranks of that fleet")
    told = [(trace.base_ns, rank, *known[rank]) for trace, rank in zip(traces, ranks, strict=True)]
    starts = [base - round(offset * 1000) for base, _, offset, _ in told]
    return [
        (f"rank {rank}", start - min(starts), f"clock ± {error:.1f} µs")
        for start, (_, rank, _, error) in zip(starts, told, strict=True)
    ]


#: The version of what the head says under `tracelens_ext`.
HEAD_VERSION = 1
#: Names of colours that chrome://tracing knows; a category has the same one in every export.
_COLOURS = (
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
# the last in ns
_CALL_PATH_NAMES = 16
_AT_ONCE = 4096
_EVER = 1 << 62


@dataclass(frozen=True, eq=False)
class Source:
    """A trace to export."""

    work: GpuEvents  #: its GPU events
    label: str = ""  #: its rank in words; empty where there is one trace only
    shift_ns: int = 0  #: what is added to its times
    error: str = ""  #: how well that is known, in words; empty to say nothing
    spans: Sequence[Span] = ()  #: what is drawn in lanes of our own


@dataclass
class Told:
    """What became of the events."""

    written: int = 0  #: how many events of the traces are in the export
    left_out: Counter[str] = field(default_factory=Counter)  #: reason → how many are not
    #: flows that Perfetto will not draw, as the GPU event begins before its launch
    backwards: int = 0

    def text(self) -> str:
        """All of it, in a line."""
        parts = [f"{self.written:,} events"]
        if self.left_out:
            reasons = (f"{count:,} {reason}" for reason, count in self.left_out.items())
            parts.append(f"left out: {'; '.join(reasons)}")
        if self.backwards:
            parts.append(f"{self.backwards:,} arrows begin before their launch and are not drawn")
        return "; ".join(parts)


def perfetto_json(sources: Sequence[Source], choice: Choice, told: Told) -> Iterator[str]:
    """The JSON text, in pieces; fills `told`."""
    tracks = Tracks()
    ids = Counter[str]()
    pieces = [_Piece(source, choice, tracks, ids, told) for source in sources]
    yield _head(sources[0].work.trace, tracks, alone=len(sources) == 1)
    texts = chain(tracks.events, *(each.events() for each in pieces))
    before = ""
    while some := [*islice(texts, _AT_ONCE)]:
        yield before + ",\n".join(some)
        before = ",\n"
    yield "\n]}\n"


def _head(trace: Trace, tracks: Tracks, *, alone: bool) -> str:
    members: dict[str, object] = {"generator": GENERATOR}
    if alone:
        members["baseTimeNanoseconds"] = trace.base_ns
        if isinstance(info := trace.metadata.get("distributedInfo"), dict):
            members["distributedInfo"] = info
        members["deviceProperties"] = trace.metadata.get("deviceProperties") or [
            {"id": each.ordinal, "name": each.name, "totalGlobalMem": each.memory_bytes}
            | {"numSms": each.units, "warpSize": each.warp}
            for each in trace.devices
        ]
    members["tracelens_ext"] = {
        "version": HEAD_VERSION,
        "format": trace.provenance.format,
        "conventions": asdict(trace.conventions),
        "threads": tracks.recorded if alone else [],
    }
    return json.dumps(members, default=str)[:-1] + ', "traceEvents": [\n'


def _renumbered(ids: Counter[str], what: str, group: Int64Array, number: Int64Array) -> Int64Array:
    """Numbers of a process or rank, behind `ids`, those of earlier groups and traces."""
    result = number.copy()
    known = np.flatnonzero(number != NONE)
    known = known[np.argsort(group[known], kind="stable")]
    for which in np.split(known, np.flatnonzero(np.diff(group[known])) + 1):
        result[which] += ids[what]
        ids[what] = max(int(result[which].max(initial=-1)) + 1, ids[what])
    return result


class _Piece:
    """The events of one trace."""

    def __init__(
        self, source: Source, choice: Choice, tracks: Tracks, ids: Counter[str], told: Told
    ) -> None:
        work = source.work
        trace = source.work.trace
        rows, left_out = choose(work, choice)
        # Viewers want what encloses before what is within; our reader the order of the file.
        self.rows = rows[np.lexsort((-trace.dur[rows], trace.ts[rows]))]
        self.source = source
        self.told = told
        told.written += len(rows)
        told.left_out += left_out
        placed = place(tracks, work, self.rows, source.label, source.error)
        self.pid, self.tid, self.lane, self.gpu = placed
        process = trace.process_of_thread[trace.thread[self.rows]].astype(np.int64)
        group = process if trace.conventions.gpu_by_process else np.zeros_like(process)
        recorded = {"correlation": trace.correlation, "External id": trace.external_id}
        numbers = {what: number[self.rows] for what, number in recorded.items()}
        self.numbers = {w: _renumbered(ids, w, group, each) for w, each in numbers.items()}
        event_at = np.full(len(trace), NONE, dtype=np.int64)
        event_at[work.rows] = np.arange(len(work))
        self.event = event_at[self.rows]  # of the GPU; NONE for others
        self.labels: list[str] = []  # of categories
        self.category = np.full_like(self.event, NONE)
        if (found := work.categories) is not None:
            self.labels = found.labels
            on_gpu = self.event != NONE
            self.category[on_gpu] = found.code[self.event[on_gpu]]
        self.ours = tracks.process(" · ".join(filter(None, (source.label, "tracelens-ext"))))
        first, last = self.window = window_of(work, choice) or (-_EVER, _EVER)
        self.spans = [s for s in source.spans if s.start < last and s.end > first]
        self.tid_of_span = self._lanes(tracks)

    def _lanes(self, tracks: Tracks) -> list[int]:
        """The thread of each span: what claims time of several devices may overlap."""
        names = list(dict.fromkeys(span.lane for span in self.spans))
        triples = [(names.index(span.lane), span.start, span.end) for span in self.spans]
        track, start, end = np.array(triples, dtype=np.int64).reshape(-1, 3).T
        lane = fit_lanes(track, start, end)
        counts = [int(lane[track == at].max()) + 1 for at in range(len(names))]
        tids = [tracks.lanes(self.ours, *each) for each in zip(names, counts, strict=True)]
        return [tids[at][of] for at, of in zip(track.tolist(), lane.tolist(), strict=True)]

    def events(self) -> Iterator[str]:
        trace = self.source.work.trace
        shift = self.source.shift_ns
        names = [json.dumps(name) for name in trace.names]
        categories = [json.dumps(name) for name in trace.categories]
        args = self._args()
        flows = self._flows()
        cname = [_COLOURS[zlib.crc32(label.encode()) % len(_COLOURS)] for label in self.labels]
        known = [*(f', "cname": "{name}"' for name in cname), ""]  # the last for none
        colours = [known[code] for code in self.category.tolist()]
        of_trace = (trace.kind, trace.category, trace.name, trace.ts, trace.dur)
        columns = (*(column[self.rows] for column in of_trace), self.pid, self.tid)
        for at, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            kind, recorded, name, start, duration, pid, tid = row
            word = WORDS.get(kind)
            category = f'"{word}"' if word else categories[recorded]
            where = f'"pid": {pid}, "tid": {tid}, "ts": {us_text(start + shift)}'
            if kind == EventKind.INSTANT:
                head = f'{{"ph": "i", "s": "t", "cat": {category}, {where}'
            else:
                head = f'{{"ph": "X", "cat": {category}, {where}, "dur": {us_text(duration)}'
            yield f'{head}, "name": {names[name]}{colours[at]}, "args": {{{args[at]}}}}}'
            if at in flows:
                phase, number = flows[at]
                yield f'{{"ph": {phase}, "id": {number}, "cat": "ac2g", "name": "ac2g", {where}}}'
        for span, tid in zip(self.spans, self.tid_of_span, strict=True):
            event = {"ph": "X", "cat": span.lane, "name": span.name, "pid": self.ours}
            event |= {"tid": tid, "args": dict(span.args)}
            text = json.dumps(event, default=str)
            times = f'"ts": {us_text(span.start + shift)}, "dur": {us_text(span.end - span.start)}'
            yield f"{text[:-1]}, {times}}}"
        yield from counter_events(self.source.work, self.gpu, self.ours, shift, self.window)

    def _args(self) -> list[str]:
        """What stands between the braces of each event's `args`."""
        work = self.source.work
        trace = self.source.work.trace
        parts: list[list[str]] = [[] for _ in range(len(self.rows))]

        def add(key: str, places: Int64Array, values: Iterable[object]) -> None:
            quoted = json.dumps(key)
            for at, value in zip(places.tolist(), values, strict=True):
                parts[at].append(f"{quoted}: {value}")

        for key, numbers in self.numbers.items():
            known = np.flatnonzero(numbers != NONE)
            add(key, known, numbers[known].tolist())
        for key, column in trace.args.items():
            known = np.flatnonzero(np.isin(self.rows, column.rows))
            values = column.at(self.rows[known]).tolist()
            texts = column.texts
            add(key, known, values if texts is None else [texts[code] for code in values])
        labels = [json.dumps(label) for label in self.labels]
        known = np.flatnonzero(self.category != NONE)
        add("kernel_category", known, [labels[code] for code in self.category[known].tolist()])
        known = np.flatnonzero(self.event != NONE)
        known = known[work.tree.linked[self.event[known]]]
        launch = work.tree.launch_position_of_gpu[self.event[known]]
        add("call path", known, map(cache(partial(_call_path, work)), launch.tolist()))
        known = np.flatnonzero(self.lane)
        threads = (trace.threads[thread][1] for thread in trace.thread[self.rows[known]].tolist())
        add("recorded thread", known, map(json.dumps, threads))
        return [", ".join(each) for each in parts]

    def _flows(self) -> dict[int, tuple[str, int]]:
        """Event → phase and id of the flow from each launch to the first work that it started."""
        work = self.source.work
        trace = self.source.work.trace
        at_row = np.full(len(trace), NONE, dtype=np.int64)
        at_row[self.rows] = np.arange(len(self.rows))
        linked = np.flatnonzero(work.tree.linked)
        launch = at_row[work.tree.launch_of_gpu[linked]]
        event = at_row[work.rows[linked]]
        both = (launch != NONE) & (event != NONE)
        # both in order of time
        launch = launch[both]
        event = event[both]
        order = np.lexsort((event, launch))
        first = order[np.diff(launch[order], prepend=NONE) != 0]
        launch = launch[first]
        event = event[first]
        late = trace.ts[self.rows[launch]] > trace.ts[self.rows[event]]
        self.told.backwards += int(late.sum())
        base = self.ours << 32  # ids of the traces of several ranks differ
        result: dict[int, tuple[str, int]] = {}
        for number, (start, end) in enumerate(zip(launch.tolist(), event.tolist(), strict=True)):
            result[start] = '"s"', base + number
            result[end] = '"f", "bp": "e"', base + number
        return result


def _call_path(work: GpuEvents, at: int) -> str:
    """The names down to a position in the call tree, as JSON."""
    path: list[str] = []
    while at != ROOT and len(path) < _CALL_PATH_NAMES:
        path.append(work.trace.name_of(int(work.tree.rows[at])))
        at = int(work.tree.parent_position[at])
    return json.dumps(" > ".join(["…"] * (at != ROOT) + path[::-1]))
