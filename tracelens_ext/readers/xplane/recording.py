"""What JAX's profiler recorded, as columns, and the trace that is made of it.

The xplane file and the JSON for trace viewers hold the same: planes (processes) of lines (threads,
streams) of events with statistics. A GPU event is an event of a plane `/device:GPU:N` that has a
`correlation_id`; a launch is an event of the host that has the same one. What else is on such a
plane is drawn from its GPU events, by modules, operations, scopes or steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import (
    Interner,
    Labels,
    TraceBuilder,
    distinct_rows,
    looked_up,
)
from tracelens_ext.readers.kineto.schema import WORDS
from tracelens_ext.readers.xplane.hlo import Arguments
from tracelens_ext.trace import NONE, ArgColumn, Conventions, EventKind, Int64Array, Trace

Lane = tuple[int | str, int | str]
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
    """Collects the events of a file, with codes of its interners `names`, `texts` and `lanes`.

    Attributes: `planes`: process → name of its plane; `lines`: lane → name of its line;
    `dropped`: reason → events left out.
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
        self.pieces: dict[str, list[Int64Array]] = {c: [] for c in ("ts", "dur", "name", "lane")}
        self.stats: dict[str, list[tuple[Int64Array, Int64Array]]] = {}
        self._count = 0

    @property
    def present(self) -> int:
        """Events so far, those left out too."""
        return self._count + self.metadata_events + sum(self.dropped.values())

    def add(self, columns: Mapping[str, Int64Array], stats: Stats) -> None:
        """Add events: `ts`, `dur` in ns, codes `name`, `lane`; and their statistics."""
        for column, pieces in self.pieces.items():
            pieces.append(columns[column])
        for stat, (rows, values) in stats.items():
            self.stats.setdefault(stat, []).append((rows + self._count, values))
        self._count += len(columns["ts"])

    def finish(
        self,
        arguments_of: Callable[[int, str, str], Arguments | None],
        notes: Callable[[], list[str]] = list,
        programs: Sequence[bytes] = (),
        **about: Any,  # noqa: ANN401  # of `TraceBuilder.finish`
    ) -> Trace:
        """The trace.

        `arguments_of` tells what the HLO says of an operation, by the program's id (or `NONE`),
        the module's and the operation's name; it may add to `programs`. `notes` are asked last.
        """
        events = Events(self)
        builder = self._builder
        builder.metadata_events = self.metadata_events
        made, known, found = find_operations(events, arguments_of)
        columns = {
            "thread" if name == "lane" else name: np.concatenate((column, made[name]))
            for name, column in {**events.columns, "kind": events.kind}.items()
        }
        words = np.zeros(max(EventKind) + 1, dtype=np.int64)
        for number in np.unique(columns["kind"]).tolist():
            words[number] = builder.categories[_WORDS.get(EventKind(number), "")]
        columns["category"] = words[columns["kind"]]
        texts = {
            argument: (known, builder.texts.codes(map(attrgetter(part), found), len(found)))
            for argument, part in _ARGUMENTS.items()
        }
        instructions = np.array([each.instruction for each in found], dtype=np.int64)
        builder.add(columns, events.numbers() | {_INSTRUCTION: (known, instructions)}, texts)
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

    def __init__(self, recording: Recording) -> None:
        self.names, self.texts = recording.names, recording.texts
        empty = np.empty(0, dtype=np.int64)
        self.columns: dict[str, Int64Array] = {
            name: np.concatenate([empty, *pieces]) for name, pieces in recording.pieces.items()
        }
        self.stats: dict[str, ArgColumn] = {}
        for name in (*NUMBERS, *TEXTS):
            rows, values = zip(*recording.stats.get(name, [(empty, empty)]), strict=True)
            # Of an event that has it twice, the first.
            distinct, first = np.unique(np.concatenate(rows), return_index=True)
            self.stats[name] = ArgColumn(distinct.astype(np.int32), np.concatenate(values)[first])
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
        self.calls = np.flatnonzero(np.isin(self.kind, (EventKind.RUNTIME, EventKind.DRIVER)))
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
        found = [_SIZE.search(text) for text in self.texts]
        told = np.array([*(int(m[1]) if m else NONE for m in found), NONE], dtype=np.int64)
        details = (self.stats[stat].at(copies) for stat in ("memcpy_details", "memset_details"))
        sizes = told[np.maximum(*details)]
        sized = sizes != NONE
        return {
            "correlation": (linked, self.correlation[linked]),
            "device": (self.gpu, self.device[self.gpu]),
            "stream": (self.gpu, self._stream[self.columns["lane"][self.gpu]]),
            "bytes": (copies[sized], sizes[sized]),
        }


def _turns(ids: Int64Array) -> Int64Array:
    """Which of those with its id each is, from 0; ids ascend."""
    turns: Int64Array = np.arange(len(ids)) - np.searchsorted(ids, ids)
    return turns


def _stream(line: str, thread: int | str) -> int:
    """The stream of a line such as `Stream #7(Kernel)`."""
    if found := _STREAM.search(line):
        return int(found[1])
    return thread if isinstance(thread, int) and 0 <= thread < 1 << 31 else NONE


# Operations: instructions of the HLO that launched GPU work, as events of the host. A profile says
# of each kernel which instruction it is of, and has no event of the host for it. So one is made
# around the launches of each call of an instruction, in an annotation with its scope
# (`jit(f)/jit(main)/conv_general_dilated`).

#: Arguments of operations, as PyTorch's traces call them → as `Arguments` does.
_ARGUMENTS: Final = {"Input Dims": "dims", "Input type": "types", "Concrete Inputs": "concrete"}


def find_operations(
    events: Events, arguments_of: Callable[[int, str, str], Arguments | None]
) -> tuple[dict[str, Int64Array], Int64Array, list[Arguments]]:
    """The columns of events that are made of the operations of a recording.

    Also the rows of those with arguments, the recording's own too, ascending; and their arguments.
    """
    texts = [*events.texts, ""]
    event, launch, start, end = _calls(events)
    hlo_op, scope = (events.stats[stat].at(event) for stat in ("hlo_op", "name"))
    scoped = np.flatnonzero(scope != NONE)
    # Scopes come first: of equal intervals the first is the parent.
    both = np.concatenate((scoped, np.arange(len(event))))
    is_scope = np.arange(len(both)) < len(scoped)
    columns = {
        "ts": start[both],
        "dur": (end - start)[both],
        "name": looked_up(
            np.concatenate((scope[scoped], hlo_op)),
            lambda used: [events.names[texts[code]] for code in used.tolist()],
        ),
        "lane": events.columns["lane"][launch[both]],
        "kind": np.where(is_scope, EventKind.USER_ANNOTATION, EventKind.CPU_OP),
    }
    on_host = np.flatnonzero(events.kind == EventKind.CPU_OP)
    asked = np.concatenate((on_host, event))
    rows = np.concatenate((on_host, np.flatnonzero(~is_scope) + len(events.kind)))
    keys = (events.stats[stat].at(asked) for stat in ("program_id", "hlo_module", "hlo_op"))
    distinct, number = distinct_rows(*keys)
    found = [arguments_of(program, texts[module], texts[op]) for program, module, op in distinct]
    of_each = [(row, found[at]) for row, at in zip(rows.tolist(), number.tolist(), strict=True)]
    known = [(row, each) for row, each in of_each if each is not None]
    return columns, np.array([row for row, _ in known], dtype=np.int64), [e for _, e in known]


def _calls(events: Events) -> tuple[Int64Array, ...]:
    """Calls of instructions: a GPU event of each, its first launch, start and end in ns.

    Launches that follow one another on a thread belong to one call, as long as they are for the
    same instruction and device and the first kernel does not come again.
    """
    start, lane, stats = events.columns["ts"], events.columns["lane"], events.stats
    gpu = events.gpu[stats["hlo_op"].at(events.gpu) != NONE]
    calls = events.calls[np.argsort(start[events.calls], kind="stable")]
    of_id = pd.Series(calls, index=events.correlation[calls])
    of_id = of_id[(of_id.index > 0) & ~of_id.index.duplicated(keep="last")]
    launch = of_id.reindex(events.correlation[gpu], fill_value=NONE).to_numpy(dtype=np.int64)
    # A launch of kernels of several instructions is that of a graph.
    alone = pd.Series(stats["hlo_op"].at(gpu)).groupby(launch).transform("nunique") == 1
    alone &= launch != NONE
    gpu, launch = gpu[alone], launch[alone]
    order = np.lexsort((start[gpu], start[launch], lane[launch]))
    gpu, launch = gpu[order], launch[order]
    key = (stats[stat].at(gpu) for stat in ("program_id", "hlo_module", "hlo_op"))
    call = distinct_rows(*key, events.device[gpu], lane[launch])[1]
    first = np.diff(call, prepend=NONE) != 0
    name = events.columns["name"][gpu]
    again = name == name[np.maximum.accumulate(np.where(first, np.arange(len(gpu)), 0))]
    again &= np.diff(launch, prepend=NONE) != 0
    begins = np.flatnonzero(first | again)
    ends = start[launch] + events.columns["dur"][launch]
    end = np.maximum.reduceat(ends, begins) if len(begins) else ends
    return gpu[begins], launch[begins], start[launch[begins]], end


def numbered(a: Int64Array, b: Int64Array) -> Int64Array:
    """A number for each distinct pair."""
    a, b = (np.unique(column, return_inverse=True)[1].reshape(-1) for column in (a, b))
    return a * (int(b.max(initial=0)) + 1) + b
