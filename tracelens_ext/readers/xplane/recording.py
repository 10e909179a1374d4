"""What JAX's profiler recorded, as columns, and the trace that is made of it.

The xplane file and the JSON for trace viewers hold the same: planes (processes) of lines (threads,
streams) of events with statistics. A GPU event is an event of a plane `/device:GPU:N` that has a
`correlation_id`; a launch is an event of the host that has the same one. What else is on such a
plane is drawn from its GPU events, by modules, operations, scopes or steps.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder
from tracelens_ext.readers.kineto.schema import WORDS
from tracelens_ext.readers.xplane.operations import find_operations, numbered
from tracelens_ext.trace import NONE, ArgColumn, Conventions, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracelens_ext.readers.xplane.hlo import Arguments
    from tracelens_ext.trace import Int64Array, Trace

    Lane = tuple[int | str, int | str]
    #: Statistic → (rows, ascending; values or codes of texts).
    Stats = Mapping[str, tuple[Int64Array, Int64Array]]

#: Statistics that are read: whole numbers, then texts.
NUMBERS: Final = ("correlation_id", "device_id", "program_id", "step_num")
TEXTS: Final = ("hlo_op", "hlo_module", "name", "memcpy_details", "memset_details")

GPU_PLANE: Final = re.compile(r"/device:GPU:(\d{1,9})")
_STREAM: Final = re.compile(r"Stream #(\d{1,9})")
_SIZE: Final = re.compile(r"\bsize:(\d{1,18})\b")
_DRIVER_CALL: Final = re.compile("cu[A-Z]")
_PYTHON_FRAME: Final = "$"
_INSTRUCTION: Final = "instruction"
_WORDS: Final = {**WORDS, EventKind.RUNTIME: "runtime", EventKind.DRIVER: "driver"}


class Recording:
    """Collects the events of a file.

    Attributes:
        names, texts, lanes: interners for the codes that `add` takes: names of events, texts of
            statistics, and (process, thread).
        planes: process → what its plane is called, such as `/device:GPU:0`.
        lines: (process, thread) → what its line is called.
        dropped: reason → events left out.
    """

    def __init__(self) -> None:
        self._builder = TraceBuilder()
        self.names = self._builder.names
        self.lanes = self._builder.threads
        self.dropped = self._builder.dropped
        self.texts: Interner[str] = Interner()
        self.planes: dict[int | str, str] = {}
        self.lines: dict[Lane, str] = {}
        self.metadata_events = 0
        self._pieces: dict[str, list[Int64Array]] = {c: [] for c in ("ts", "dur", "name", "lane")}
        self._stats: dict[str, list[tuple[Int64Array, Int64Array]]] = {}
        self._count = 0

    @property
    def present(self) -> int:
        """Events so far, those left out too."""
        return self._count + self.metadata_events + sum(self.dropped.values())

    def add(self, columns: Mapping[str, Int64Array], stats: Stats) -> None:
        """Add events.

        Columns are `ts` and `dur` in ns, codes `name` and `lane`; statistics those of `NUMBERS` and
        `TEXTS` that there are, with the rows among these events.
        """
        for column, pieces in self._pieces.items():
            pieces.append(columns[column])
        for stat, (rows, values) in stats.items():
            self._stats.setdefault(stat, []).append((rows + self._count, values))
        self._count += len(columns["ts"])

    def finish(
        self,
        arguments_of: Callable[[int, str, str], Arguments | None],
        notes: Callable[[], list[str]] = list,
        programs: Sequence[bytes] = (),
        **about: Any,  # noqa: ANN401  # of `TraceBuilder.finish`
    ) -> Trace:
        """The trace.

        `arguments_of` tells what the HLO says of an operation, by the program's id (`NONE` for
        unknown), the module's and the operation's name; it may add to `programs`, which it refers
        to. `notes` are asked when all is read.
        """
        events = Events(self, self._pieces, self._stats)
        builder = self._builder
        builder.metadata_events = self.metadata_events
        operations = find_operations(events, arguments_of)
        kind = np.concatenate((events.kind, operations.kind))
        words = np.zeros(max(EventKind) + 1, dtype=np.int64)
        for number in np.unique(kind).tolist():
            words[number] = builder.categories[_WORDS.get(EventKind(number), "")]
        made = {name: column[operations.like] for name, column in events.columns.items()}
        made |= {"ts": operations.ts, "dur": operations.dur, "name": operations.name}
        columns = {
            ("thread" if name == "lane" else name): np.concatenate((column, made[name]))
            for name, column in events.columns.items()
        }
        texts = {
            argument: (rows, builder.texts.codes(values, len(values)))
            for argument, (rows, values) in operations.arguments.items()
        }
        columns |= {"kind": kind, "category": words[kind]}
        builder.add(columns, events.numbers() | {_INSTRUCTION: operations.instructions}, texts)
        labels = Labels(processes=self.planes, threads=self.lines)
        trace = builder.finish(labels=labels, notes=tuple(notes()), **about)
        args = dict(trace.args)
        return replace(
            trace,
            args=args,
            instructions=args.pop(_INSTRUCTION),
            programs=tuple(programs),
            conventions=Conventions(framework="JAX"),
        )


class Events:
    """The events of a recording as whole columns, n of them.

    Attributes:
        columns: `ts` and `dur` in ns, codes `name` and `lane`, each shape (n,).
        stats: of each event that has it.
        kind: an `EventKind`, shape (n,).
        gpu: the GPU events, ascending, (g,).
        calls: the events of the host that have a correlation id, ascending.
        correlation: an id that a GPU event shares with its launch alone, `NONE` without, (n,).
    """

    def __init__(
        self,
        recording: Recording,
        pieces: Mapping[str, list[Int64Array]],
        stats: Mapping[str, list[tuple[Int64Array, Int64Array]]],
    ) -> None:
        self.names, self.texts = recording.names, recording.texts
        empty = np.empty(0, dtype=np.int64)
        self.columns: dict[str, Int64Array] = {
            name: np.concatenate(of_lines or [empty]) for name, of_lines in pieces.items()
        }
        self.stats: dict[str, ArgColumn] = {}
        for name in (*NUMBERS, *TEXTS):
            rows, values = zip(*stats.get(name, [(empty, empty)]), strict=True)
            self.stats[name] = _first_of_each(np.concatenate(rows), np.concatenate(values))
        planes = [recording.planes.get(process, "") for process, _ in recording.lanes] or [""]
        found = [GPU_PLANE.match(plane) for plane in planes]
        device = np.array([int(m[1]) if m else NONE for m in found], dtype=np.int64)
        on_host = np.array([plane.startswith("/host:") for plane in planes])
        lane = self.columns["lane"]
        self.device: Int64Array = device[lane]
        self._stream = np.array(
            [_stream(recording.lines.get(lane, ""), lane[1]) for lane in recording.lanes] or [NONE]
        )
        self.kind = self._kinds(on_host[lane])
        self.gpu = np.flatnonzero((self.kind >= EventKind.KERNEL) & (self.kind <= EventKind.MEMSET))
        self.calls = np.flatnonzero(
            (self.kind == EventKind.RUNTIME) | (self.kind == EventKind.DRIVER)
        )
        self.correlation = self._correlation()
        self._number_steps()

    def _kinds(self, on_host: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64Array:
        name, names = self.columns["name"], list(self.names)
        result = np.full(len(name), EventKind.OTHER, dtype=np.int64)
        on_gpu = self.device != NONE
        result[on_gpu] = EventKind.GPU_ANNOTATION
        result[on_host] = EventKind.USER_ANNOTATION
        result[on_host & (self.columns["dur"] == 0)] = EventKind.INSTANT
        frames = np.array([n.startswith(_PYTHON_FRAME) for n in names] or [False])
        result[on_host & frames[name]] = EventKind.PYTHON_FUNCTION
        of_hlo = self.stats["hlo_op"].rows
        result[of_hlo[on_host[of_hlo]]] = EventKind.CPU_OP
        linked = self.stats["correlation_id"].rows
        driver = np.array([_DRIVER_CALL.match(n) is not None for n in names] or [False])
        calls = linked[on_host[linked]]
        result[calls] = np.where(driver[name[calls]], EventKind.DRIVER, EventKind.RUNTIME)
        gpu = linked[on_gpu[linked]]
        is_copy, is_memset = (
            self.stats[stat].at(gpu) != NONE for stat in ("memcpy_details", "memset_details")
        )
        result[gpu] = np.where(
            is_copy, EventKind.MEMCPY, np.where(is_memset, EventKind.MEMSET, EventKind.KERNEL)
        )
        return result

    def _correlation(self) -> Int64Array:
        """Ids count for each device: where two devices have one id, new ones tell them apart.

        Calls that name no device, or one without such an id, belong in order of their start to the
        devices whose id no call names.
        """
        result = self.stats["correlation_id"].dense(len(self.kind))
        gpu, calls = self.gpu, self.calls
        ids = np.unique(result[gpu])
        if len(np.unique(numbered(result[gpu], self.device[gpu]))) == len(ids):
            return result
        calls = calls[np.isin(result[calls], ids)]
        calls = calls[np.lexsort((self.columns["ts"][calls], result[calls]))]
        rows = np.concatenate((gpu, calls))
        device = np.concatenate((self.device[gpu], self.stats["device_id"].at(calls)))
        of_gpu, of_call = np.split(numbered(result[rows], device), [len(gpu)])
        left = np.concatenate((~np.isin(of_gpu, of_call), ~np.isin(of_call, of_gpu)))
        on_gpu, on_host = np.split(left, [len(gpu)])
        _, first, pair = np.unique(of_gpu[on_gpu], return_index=True, return_inverse=True)
        gpu_ids, call_ids = result[gpu[on_gpu]][first], result[calls[on_host]]
        first, end = (np.searchsorted(gpu_ids, call_ids, side=s) for s in ("left", "right"))
        turn = np.clip(_turns(call_ids), 0, np.maximum(end - first - 1, 0))
        device[left] = NONE - 1 - np.concatenate((_turns(gpu_ids)[pair.reshape(-1)], turn))
        result[rows] = numbered(result[rows], device) + int(result.max()) + 1
        return result

    def _number_steps(self) -> None:
        """`StepTraceAnnotation("train", step_num=3)` becomes `train#3`, as `ProfilerStep#3`."""
        steps, names = self.stats["step_num"], list(self.names)
        rows = steps.rows[self.kind[steps.rows] == EventKind.USER_ANNOTATION]
        codes = [
            self.names[f"{names[code]}#{number}"]
            for code, number in zip(
                self.columns["name"][rows].tolist(), steps.at(rows).tolist(), strict=True
            )
        ]
        self.columns["name"][rows] = codes

    def numbers(self) -> dict[str, tuple[Int64Array, Int64Array]]:
        """Whole numbers of events, by the names that other traces have for them."""
        linked = np.flatnonzero(self.correlation != NONE)
        copies = self.gpu[self.kind[self.gpu] != EventKind.KERNEL]
        details = [_size(text) for text in self.texts] or [NONE]
        sizes = np.array([*details, NONE], dtype=np.int64)[
            np.maximum(
                self.stats["memcpy_details"].at(copies), self.stats["memset_details"].at(copies)
            )
        ]
        sized = sizes != NONE
        return {
            "correlation": (linked, self.correlation[linked]),
            "device": (self.gpu, self.device[self.gpu]),
            "stream": (self.gpu, self._stream[self.columns["lane"][self.gpu]]),
            "bytes": (copies[sized], sizes[sized]),
        }


def _first_of_each(rows: Int64Array, values: Int64Array) -> ArgColumn:
    """A statistic as a column; of an event that has it twice, the first."""
    rows, first = np.unique(rows, return_index=True)
    return ArgColumn(rows.astype(np.int32), values[first])


def _turns(ids: Int64Array) -> Int64Array:
    """Which of those with its id each is, from 0; ids ascend."""
    turns: Int64Array = np.arange(len(ids)) - np.searchsorted(ids, ids)
    return turns


def _stream(line: str, thread: int | str) -> int:
    """The stream of a line such as `Stream #7(Kernel)`."""
    if found := _STREAM.search(line):
        return int(found[1])
    return thread if isinstance(thread, int) and 0 <= thread < 1 << 31 else NONE


def _size(details: str) -> int:
    """Bytes in `kind_src:pageable kind_dst:device size:4096 dest:0 async:1`."""
    found = _SIZE.search(details)
    return int(found[1]) if found else NONE
