"""What JAX's profiler recorded, as columns, and the trace that is made of it.

The xplane file and the JSON for trace viewers hold the same: planes (processes) of lines (threads,
streams) of events with statistics. A GPU event is an event of a plane `/device:GPU:N` that has a
`correlation_id`; a launch is an event of the host that has the same one. What else is on such a
plane is drawn from its GPU events, by modules, operations, scopes or steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder, distinct_rows, looked_up
from tracelens_ext.readers.kineto.schema import WORDS
from tracelens_ext.readers.xplane.hlo import Arguments, Programs
from tracelens_ext.trace import NONE, ArgColumn, BoolArray, EventKind, Int64Array, Trace

Lane = tuple[int | str, int | str]
Columns = Mapping[str, Int64Array]
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
#: Arguments of operations, as PyTorch's traces call them → as `Arguments` does.
_ARGUMENTS: Final = {"Input Dims": "dims", "Input type": "types", "Concrete Inputs": "concrete"}


class XplaneProfile:
    """Collects the events of a file, with codes of `builder` and of `texts`, and makes the trace.

    Attributes: `planes`: process → name of its plane; `lines`: lane → name of its line. Once all
    is there: `columns`, `ts` and `dur` in ns, codes `name` and `lane`, each shape (n,); `stats`;
    `kind` (n,) and `device` (n,); `gpu`, the GPU events, and `calls`, those of the host that have
    a correlation id, ascending; `correlation`, which a GPU event shares with its launch alone.
    """

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.texts: Interner[str] = Interner()
        self.planes: dict[int | str, str] = {}
        self.lines: dict[Lane, str] = {}
        self._pieces: dict[str, list[Int64Array]] = {c: [] for c in ("ts", "dur", "name", "lane")}
        self._stats: dict[str, list[tuple[Int64Array, Int64Array]]] = {}
        self._count = 0

    @property
    def present(self) -> int:
        """Events so far, those left out too."""
        return self._count + self.builder.present

    def add(self, columns: Columns, stats: Stats) -> None:
        """Add events: `ts`, `dur` in ns, codes `name`, `lane`; and their statistics."""
        for column, pieces in self._pieces.items():
            pieces.append(columns[column])
        for stat, (rows, values) in stats.items():
            self._stats.setdefault(stat, []).append((rows + self._count, values))
        self._count += len(columns["ts"])

    def finish(self, programs: Programs, notes: list[str], **about: Any) -> Trace:  # noqa: ANN401
        """The trace; `programs` tell the arguments of operations, `about` is of the builder."""
        self._join()
        builder = self.builder
        made, known, found = self._operations(programs)
        columns = {
            "thread" if name == "lane" else name: np.concatenate((column, made[name]))
            for name, column in {**self.columns, "kind": self.kind}.items()
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
        builder.add(columns, self._numbers() | {_INSTRUCTION: (known, instructions)}, texts)
        labels = Labels(processes=self.planes, threads=self.lines)
        trace = builder.finish(labels=labels, notes=(*notes, *programs.notes()), **about)
        args = dict(trace.args)
        about_jax = replace(trace.conventions, framework="JAX")
        own = args.pop(_INSTRUCTION)
        return replace(
            trace, args=args, instructions=own, programs=tuple(programs.used), conventions=about_jax
        )

    def _join(self) -> None:
        empty = np.empty(0, dtype=np.int64)
        self.columns = {n: np.concatenate([empty, *some]) for n, some in self._pieces.items()}
        self.stats: dict[str, ArgColumn] = {}
        for name in (*NUMBERS, *TEXTS):
            pieces = self._stats.get(name, [(empty, empty)])
            rows, values = map(np.concatenate, zip(*pieces, strict=True))
            distinct, first = np.unique(rows, return_index=True)  # of one that is there twice
            self.stats[name] = ArgColumn(distinct.astype(np.int32), values[first])
        lanes = self.builder.threads
        lane = self.columns["lane"]
        planes = [self.planes.get(process, "") for process, _ in lanes] or [""]
        found = [GPU_PLANE.match(plane) for plane in planes]
        self.device = np.array([int(m[1]) if m else NONE for m in found], dtype=np.int64)[lane]
        self.kind = self._kinds(np.array([plane.startswith("/host:") for plane in planes])[lane])
        self.gpu = np.flatnonzero((self.kind >= EventKind.KERNEL) & (self.kind <= EventKind.MEMSET))
        self.calls = np.flatnonzero(np.isin(self.kind, (EventKind.RUNTIME, EventKind.DRIVER)))
        self.correlation = self._correlation()
        # `StepTraceAnnotation("train", step_num=3)` becomes `train#3`, as `ProfilerStep#3`.
        steps = self.stats["step_num"]
        names = list(self.builder.names)
        rows = steps.rows[self.kind[steps.rows] == EventKind.USER_ANNOTATION]
        told = zip(self.columns["name"][rows].tolist(), steps.at(rows).tolist(), strict=True)
        codes = self.builder.names
        self.columns["name"][rows] = [codes[f"{names[code]}#{number}"] for code, number in told]

    def _kinds(self, on_host: BoolArray) -> Int64Array:
        name = self.columns["name"]
        names = self.builder.names
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
        result[gpu] = EventKind.KERNEL
        result[gpu[self.stats["memset_details"].at(gpu) != NONE]] = EventKind.MEMSET
        result[gpu[self.stats["memcpy_details"].at(gpu) != NONE]] = EventKind.MEMCPY
        return result

    def _correlation(self) -> Int64Array:
        """Ids count for each device: where two devices have one id, new ones tell them apart.

        Calls that name no device, or one without such an id, belong in order of their start to the
        devices whose id no call names.
        """
        result = self.stats["correlation_id"].dense(len(self.kind))
        gpu = self.gpu
        calls = self.calls
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
        gpu_ids = result[gpu[on_gpu]][first]
        call_ids = result[calls[on_host]]
        first, end = (np.searchsorted(gpu_ids, call_ids, side=s) for s in ("left", "right"))
        turn = np.clip(_turns(call_ids), 0, np.maximum(end - first - 1, 0))
        device[left] = NONE - 1 - np.concatenate((_turns(gpu_ids)[pair.reshape(-1)], turn))
        result[rows] = numbered(result[rows], device) + int(result.max()) + 1
        return result

    def _numbers(self) -> dict[str, tuple[Int64Array, Int64Array]]:
        """Whole numbers of events, by the names that other traces have for them."""
        linked = np.flatnonzero(self.correlation != NONE)
        copies = self.gpu[self.kind[self.gpu] != EventKind.KERNEL]
        found = [_SIZE.search(text) for text in self.texts]
        told = np.array([*(int(m[1]) if m else NONE for m in found), NONE], dtype=np.int64)
        details = (self.stats[stat].at(copies) for stat in ("memcpy_details", "memset_details"))
        sizes = told[np.maximum(*details)]
        sized = sizes != NONE
        lanes = self.builder.threads
        streams = [_stream(self.lines.get(lane, ""), lane[1]) for lane in lanes] or [NONE]
        return {
            "correlation": (linked, self.correlation[linked]),
            "device": (self.gpu, self.device[self.gpu]),
            "stream": (self.gpu, np.array(streams, dtype=np.int64)[self.columns["lane"][self.gpu]]),
            "bytes": (copies[sized], sizes[sized]),
        }

    # Operations: instructions of the HLO that launched GPU work, as events of the host. A profile
    # says of each kernel which instruction it is of, and has no event of the host for it. So one is
    # made around the launches of each call of an instruction, in an annotation with its scope
    # (`jit(f)/jit(main)/conv_general_dilated`).

    def _operations(self, programs: Programs) -> tuple[Columns, Int64Array, list[Arguments]]:
        """The columns of events that are made of operations.

        Also the rows of those with arguments, recorded ones too, ascending; and their arguments.
        """
        texts = [*self.texts, ""]
        event, launch, start, end = self._calls()
        hlo_op, scope = (self.stats[stat].at(event) for stat in ("hlo_op", "name"))
        scoped = np.flatnonzero(scope != NONE)
        # Scopes come first: of equal intervals the first is the parent.
        both = np.concatenate((scoped, np.arange(len(event))))
        is_scope = np.arange(len(both)) < len(scoped)
        named = np.concatenate((scope[scoped], hlo_op))
        names = self.builder.names
        columns = {
            "ts": start[both],
            "dur": (end - start)[both],
            "name": looked_up(named, lambda used: [names[texts[code]] for code in used.tolist()]),
            "lane": self.columns["lane"][launch[both]],
            "kind": np.where(is_scope, EventKind.USER_ANNOTATION, EventKind.CPU_OP),
        }
        on_host = np.flatnonzero(self.kind == EventKind.CPU_OP)
        asked = np.concatenate((on_host, event))
        rows = np.concatenate((on_host, np.flatnonzero(~is_scope) + len(self.kind)))
        keys = (self.stats[stat].at(asked) for stat in ("program_id", "hlo_module", "hlo_op"))
        distinct, number = distinct_rows(*keys)
        found = [programs.arguments(of, texts[module], texts[op]) for of, module, op in distinct]
        is_known = np.array([each is not None for each in found], dtype=bool)[number]
        told = [each for at in number.tolist() if (each := found[at]) is not None]
        return columns, rows[is_known], told

    def _calls(self) -> tuple[Int64Array, ...]:
        """Calls of instructions: a GPU event of each, its first launch, start and end in ns.

        Launches that follow one another on a thread belong to one call, as long as they are for the
        same instruction and device and the first kernel does not come again.
        """
        start = self.columns["ts"]
        lane = self.columns["lane"]
        stats = self.stats
        gpu = self.gpu[stats["hlo_op"].at(self.gpu) != NONE]
        calls = self.calls[np.argsort(start[self.calls], kind="stable")]
        of_id = pd.Series(calls, index=self.correlation[calls])
        of_id = of_id[(of_id.index > 0) & ~of_id.index.duplicated(keep="last")]
        launch = of_id.reindex(self.correlation[gpu], fill_value=NONE).to_numpy(dtype=np.int64)
        # A launch of kernels of several instructions is that of a graph.
        alone = pd.Series(stats["hlo_op"].at(gpu)).groupby(launch).transform("nunique") == 1
        alone &= launch != NONE
        gpu = gpu[alone]
        launch = launch[alone]
        order = np.lexsort((start[gpu], start[launch], lane[launch]))
        gpu = gpu[order]
        launch = launch[order]
        key = (stats[stat].at(gpu) for stat in ("program_id", "hlo_module", "hlo_op"))
        first = np.diff(distinct_rows(*key, self.device[gpu], lane[launch])[1], prepend=NONE) != 0
        name = self.columns["name"][gpu]
        again = name == name[np.maximum.accumulate(np.where(first, np.arange(len(gpu)), 0))]
        again &= np.diff(launch, prepend=NONE) != 0
        begins = np.flatnonzero(first | again)
        ends = start[launch] + self.columns["dur"][launch]
        end = np.maximum.reduceat(ends, begins) if len(begins) else ends
        return gpu[begins], launch[begins], start[launch[begins]], end


def _turns(ids: Int64Array) -> Int64Array:
    """Which of those with its id each is, from 0; ids ascend."""
    return np.arange(len(ids)) - np.searchsorted(ids, ids)


def _stream(line: str, thread: int | str) -> int:
    """The stream of a line such as `Stream #7(Kernel)`."""
    if found := _STREAM.search(line):
        return int(found[1])
    return thread if isinstance(thread, int) and 0 <= thread < 1 << 31 else NONE


def numbered(a: Int64Array, b: Int64Array) -> Int64Array:
    """A number for each distinct pair."""
    a, b = (np.unique(column, return_inverse=True)[1].reshape(-1) for column in (a, b))
    return a * (int(b.max(initial=0)) + 1) + b
