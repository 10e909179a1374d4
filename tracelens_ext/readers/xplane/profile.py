"""Makes a trace of what JAX's profiler recorded.

The xplane file and the JSON for trace viewers hold the same: planes (processes) of lines (threads,
streams) of events with statistics. A GPU event is an event of a plane `/device:GPU:N` that has a
`correlation_id`; a launch is an event of the host that has the same one. What else is on such a
plane is drawn from its GPU events, by modules, operations, scopes or steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import (
    Interner,
    Labels,
    TraceBuilder,
    distinct_rows,
    map_distinct_ids,
)
from tracelens_ext.readers.kineto.schema import WORDS
from tracelens_ext.readers.xplane.hlo import Arguments, Programs
from tracelens_ext.trace import (
    GPU_KINDS,
    NONE,
    ArgColumn,
    BoolArray,
    EventKind,
    Int64Array,
    Trace,
)
from tracelens_ext.trace.lookup import values_at

Lane = tuple[int | str, int | str]
Columns = Mapping[str, Int64Array]
Stats = Mapping[str, tuple[Int64Array, Int64Array]]

#: Statistics that are read: whole numbers, then texts.
NUMBERS: Final = ("correlation_id", "device_id", "program_id", "step_num")
TEXTS: Final = ("hlo_op", "hlo_module", "name", "memcpy_details", "memset_details")

_COLUMNS: Final = ("ts", "dur", "name", "lane")
GPU_PLANE: Final = re.compile(r"/device:GPU:(\d{1,9})")
_STREAM: Final = re.compile(r"Stream #(\d{1,9})")
_SIZE: Final = re.compile(r"\bsize:(\d{1,18})\b")
_MOST_STREAMS: Final = 1 << 31
_DRIVER_CALL: Final = re.compile("cu[A-Z]")
_PYTHON_FRAME: Final = "$"
_INSTRUCTION: Final = "instruction"
_WORDS: Final = {**WORDS, EventKind.RUNTIME: "runtime", EventKind.DRIVER: "driver"}
#: Arguments of operations, as PyTorch's traces call them → as `Arguments` does.
_ARGUMENTS: Final = {
    "Input Dims": "dims",
    "Input type": "types",
    "Concrete Inputs": "concrete",
}
_NO_NUMBERS: Final = np.empty(0, dtype=np.int64)


class _InstructionCalls(NamedTuple):
    """Calls of instructions, c of them, each of shape (c,)."""

    event: Int64Array  #: a GPU event of each
    launch: Int64Array  #: its first launch
    start: Int64Array  #: ns
    end: Int64Array  #: ns


class _InstructionOperations(NamedTuple):
    """Events that are made of calls of instructions, and the arguments of operations."""

    columns: Columns
    rows: Int64Array  #: operations with arguments, recorded ones too, ascending, (a,)
    arguments: list[Arguments]  #: theirs


class XplaneProfile:
    """Collects the events of a file, with codes of `builder` and of `texts`, and makes the trace.

    Attributes:
        builder: what makes the trace.
        texts: texts of statistics, and their codes.
        planes: process → name of its plane.
        lines: lane → name of its line.

    Once all events are added:
        columns: `ts` and `dur` in ns, codes `name` and `lane`, each of shape (n,).
        stats: the statistics of the events.
        kind: an `EventKind` for each event, (n,).
        device: of each event, (n,).
        gpu: the GPU events, ascending.
        calls: the events of the host that have a correlation id, ascending.
        correlation: what a GPU event shares with its launch alone, (n,).
    """

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.texts: Interner[str] = Interner()
        self.planes: dict[int | str, str] = {}
        self.lines: dict[Lane, str] = {}
        self.stats: dict[str, ArgColumn] = {}
        self._pieces: dict[str, list[Int64Array]] = {}
        for column in _COLUMNS:
            self._pieces[column] = [_NO_NUMBERS]
        self._stat_rows: dict[str, list[Int64Array]] = {}
        self._stat_values: dict[str, list[Int64Array]] = {}
        for stat in NUMBERS + TEXTS:
            self._stat_rows[stat] = [_NO_NUMBERS]
            self._stat_values[stat] = [_NO_NUMBERS]
        self._count = 0

    @property
    def present(self) -> int:
        """The number of events so far, with those left out."""
        return self._count + self.builder.present

    def add(self, columns: Columns, stats: Stats) -> None:
        """Add events: `ts`, `dur` in ns, codes `name`, `lane`; and their statistics."""
        for column, pieces in self._pieces.items():
            pieces.append(columns[column])
        for stat, (rows, values) in stats.items():
            self._stat_rows[stat].append(rows + self._count)
            self._stat_values[stat].append(values)
        self._count += len(columns["ts"])

    def finish(self, programs: Programs, notes: list[str], **about: Any) -> Trace:  # noqa: ANN401
        """Return the trace.

        Args:
            programs: what has the arguments of operations.
            notes: sentences about the file.
            about: arguments of `TraceBuilder.finish`.
        """
        self._join()
        builder = self.builder
        operations = self._operations(programs)
        columns = {
            "ts": np.append(self.columns["ts"], operations.columns["ts"]),
            "dur": np.append(self.columns["dur"], operations.columns["dur"]),
            "name": np.append(self.columns["name"], operations.columns["name"]),
            "thread": np.append(self.columns["lane"], operations.columns["lane"]),
            "kind": np.append(self.kind, operations.columns["kind"]),
        }
        columns["category"] = self._categories(columns["kind"])
        texts = {}
        for argument, part in _ARGUMENTS.items():
            values = map(attrgetter(part), operations.arguments)
            codes = builder.texts.codes(values, len(operations.arguments))
            texts[argument] = (operations.rows, codes)
        instructions = [arguments.instruction for arguments in operations.arguments]
        numbers = self._numbers()
        numbers[_INSTRUCTION] = (
            operations.rows,
            np.array(instructions, dtype=np.int64),
        )
        builder.add(columns, numbers, texts)
        labels = Labels(processes=self.planes, threads=self.lines)
        all_notes = tuple(notes) + tuple(programs.notes())
        trace = builder.finish(labels=labels, notes=all_notes, **about)
        args = dict(trace.args)
        instructions_of_rows = args.pop(_INSTRUCTION)
        return replace(
            trace,
            args=args,
            instructions=instructions_of_rows,
            programs=tuple(programs.used),
            conventions=replace(trace.conventions, framework="JAX"),
        )

    def _categories(self, kind: Int64Array) -> Int64Array:
        """Return the codes of the words for kinds of events."""
        code_of_kind = np.zeros(max(EventKind) + 1, dtype=np.int64)
        for number in np.unique(kind).tolist():
            word = _WORDS.get(EventKind(number), "")
            code_of_kind[number] = self.builder.categories[word]
        return code_of_kind[kind]

    def _join(self) -> None:
        """Join what came in pieces, and find out what each event is."""
        self.columns: dict[str, Int64Array] = {}
        for name, pieces in self._pieces.items():
            self.columns[name] = np.concatenate(pieces)
        for stat in NUMBERS + TEXTS:
            rows = np.concatenate(self._stat_rows[stat])
            values = np.concatenate(self._stat_values[stat])
            distinct_rows, first = np.unique(rows, return_index=True)
            self.stats[stat] = ArgColumn(
                rows=distinct_rows.astype(np.int32), values=values[first]
            )
        devices = []
        are_of_host = []
        for process, _ in self.builder.threads:
            plane = self.planes.get(process, "")
            gpu_plane = GPU_PLANE.match(plane)
            devices.append(int(gpu_plane[1]) if gpu_plane else NONE)
            are_of_host.append(plane.startswith("/host:"))
        lane = self.columns["lane"]
        self.device = np.array(devices, dtype=np.int64)[lane]
        self.kind = self._kinds(np.array(are_of_host, dtype=bool)[lane])
        self.gpu = np.flatnonzero(np.isin(self.kind, GPU_KINDS))
        self.calls = np.flatnonzero(
            np.isin(self.kind, (EventKind.RUNTIME, EventKind.DRIVER))
        )
        self.correlation = self._correlation()
        self._number_steps()

    def _number_steps(self) -> None:
        """Rename `StepTraceAnnotation("train", step_num=3)` to `train#3`, as `ProfilerStep#3`."""
        steps = self.stats["step_num"]
        is_annotation = self.kind[steps.rows] == EventKind.USER_ANNOTATION
        rows = steps.rows[is_annotation]
        name_column = self.columns["name"]
        names = list(self.builder.names)
        codes = name_column[rows].tolist()
        numbers = steps.at(rows).tolist()
        for row, code, number in zip(rows.tolist(), codes, numbers, strict=True):
            numbered_name = f"{names[code]}#{number}"
            name_column[row] = self.builder.names[numbered_name]

    def _kinds(self, is_on_host: BoolArray) -> Int64Array:
        """Return the kind of each event; what is written later overrides what is before."""
        name = self.columns["name"]
        is_on_gpu = self.device != NONE
        kind = np.full(len(name), EventKind.OTHER, dtype=np.int64)
        kind[is_on_gpu] = EventKind.GPU_ANNOTATION
        kind[is_on_host] = EventKind.USER_ANNOTATION
        kind[is_on_host & (self.columns["dur"] == 0)] = EventKind.INSTANT
        frames = [text.startswith(_PYTHON_FRAME) for text in self.builder.names]
        is_frame = np.array(frames, dtype=bool)[name]
        kind[is_on_host & is_frame] = EventKind.PYTHON_FUNCTION
        has_operation = self.stats["hlo_op"].rows
        kind[has_operation[is_on_host[has_operation]]] = EventKind.CPU_OP
        has_correlation = self.stats["correlation_id"].rows
        calls = has_correlation[is_on_host[has_correlation]]
        driver_calls = [
            _DRIVER_CALL.match(text) is not None for text in self.builder.names
        ]
        is_driver_call = np.array(driver_calls, dtype=bool)[name[calls]]
        kind[calls] = np.where(is_driver_call, EventKind.DRIVER, EventKind.RUNTIME)
        gpu = has_correlation[is_on_gpu[has_correlation]]
        is_fill = self.stats["memset_details"].at(gpu) != NONE
        is_copy = self.stats["memcpy_details"].at(gpu) != NONE
        kind[gpu] = EventKind.KERNEL
        kind[gpu[is_fill]] = EventKind.MEMSET
        kind[gpu[is_copy]] = EventKind.MEMCPY
        return kind

    def _correlation(self) -> Int64Array:
        """Return ids that a GPU event shares with its launch alone, (n,).

        The recorded ids count for each device: where two devices have one id, new ones tell them
        apart. Calls that name no device, or one without such an id, belong in order of their start
        to the devices whose id no call names.
        """
        correlation = self.stats["correlation_id"].dense(len(self.kind))
        gpu = self.gpu
        device_of_gpu = self.device[gpu]
        ids = np.unique(correlation[gpu])
        ids_by_device = np.unique(numbered(correlation[gpu], device_of_gpu))
        if len(ids_by_device) == len(ids):
            return correlation
        calls = self.calls[np.isin(correlation[self.calls], ids)]
        by_id_and_time = np.lexsort((self.columns["ts"][calls], correlation[calls]))
        calls = calls[by_id_and_time]
        device_of_call = self.stats["device_id"].at(calls)

        rows = np.concatenate((gpu, calls))
        device = np.concatenate((device_of_gpu, device_of_call))
        pair = numbered(correlation[rows], device)
        pair_of_gpu, pair_of_call = np.split(pair, [len(gpu)])
        gpu_is_left = ~np.isin(pair_of_gpu, pair_of_call)
        call_is_left = ~np.isin(pair_of_call, pair_of_gpu)

        # The devices that are left of an id are its turns 0, 1, 2 …; so are the calls.
        _, first, pair_index = np.unique(
            pair_of_gpu[gpu_is_left], return_index=True, return_inverse=True
        )
        id_of_pair = correlation[gpu[gpu_is_left]][first]
        id_of_call = correlation[calls[call_is_left]]
        first_pair = np.searchsorted(id_of_pair, id_of_call, side="left")
        end_pair = np.searchsorted(id_of_pair, id_of_call, side="right")
        last_turn = np.maximum(end_pair - first_pair - 1, 0)
        turn_of_call = np.clip(_turns(id_of_call), 0, last_turn)
        turn_of_gpu = _turns(id_of_pair)[pair_index.reshape(-1)]
        is_left = np.concatenate((gpu_is_left, call_is_left))
        turn = np.concatenate((turn_of_gpu, turn_of_call))
        device[is_left] = NONE - 1 - turn  # below all numbers of devices
        first_free_id = int(correlation.max()) + 1
        correlation[rows] = numbered(correlation[rows], device) + first_free_id
        return correlation

    def _numbers(self) -> dict[str, tuple[Int64Array, Int64Array]]:
        """Return whole numbers of events, by the names that other traces have for them."""
        linked = np.flatnonzero(self.correlation != NONE)
        copies = self.gpu[self.kind[self.gpu] != EventKind.KERNEL]
        size = self._sizes(copies)
        has_size = size != NONE
        streams = [
            _stream(self.lines.get(lane, ""), lane[1]) for lane in self.builder.threads
        ]
        stream_of_lane = np.array(streams, dtype=np.int64)
        lane_of_gpu = self.columns["lane"][self.gpu]
        return {
            "correlation": (linked, self.correlation[linked]),
            "device": (self.gpu, self.device[self.gpu]),
            "stream": (self.gpu, stream_of_lane[lane_of_gpu]),
            "bytes": (copies[has_size], size[has_size]),
        }

    def _sizes(self, copies: Int64Array) -> Int64Array:
        """Return how many bytes copies and fills move, `NONE` if unknown."""
        sizes = []
        for text in self.texts:
            size = _SIZE.search(text)
            sizes.append(int(size[1]) if size else NONE)
        copy_details = self.stats["memcpy_details"].at(copies)
        fill_details = self.stats["memset_details"].at(copies)
        details = np.maximum(copy_details, fill_details)
        return values_at(np.array(sizes, dtype=np.int64), details)

    # Operations: instructions of the HLO that launched GPU work, as events of the host. A profile
    # says of each kernel which instruction it is of, and has no event of the host for it. So one is
    # made around the launches of each call of an instruction, in an annotation with its scope
    # (`jit(f)/jit(main)/conv_general_dilated`).

    def _operations(self, programs: Programs) -> _InstructionOperations:
        """Return the events that are made of operations, and the arguments of all operations."""
        calls = self._calls()
        call_count = len(calls.event)
        operation = self.stats["hlo_op"].at(calls.event)
        scope = self.stats["name"].at(calls.event)
        calls_with_scope = np.flatnonzero(scope != NONE)
        scope_count = len(calls_with_scope)
        # Scopes come first: of equal intervals the first is the parent.
        call_of_event = np.concatenate((calls_with_scope, np.arange(call_count)))
        text_of_event = np.concatenate((scope[calls_with_scope], operation))
        kind = np.full(len(call_of_event), EventKind.CPU_OP, dtype=np.int64)
        kind[:scope_count] = EventKind.USER_ANNOTATION
        texts = list(self.texts)

        def names_of(codes: Int64Array) -> list[int]:
            return [
                self.builder.names[_text_of(texts, code)] for code in codes.tolist()
            ]

        columns = {
            "ts": calls.start[call_of_event],
            "dur": (calls.end - calls.start)[call_of_event],
            "name": map_distinct_ids(text_of_event, names_of),
            "lane": self.columns["lane"][calls.launch[call_of_event]],
            "kind": kind,
        }
        recorded = np.flatnonzero(self.kind == EventKind.CPU_OP)
        made = len(self.kind) + scope_count + np.arange(call_count)
        rows = np.concatenate((recorded, made))
        described_by = np.concatenate((recorded, calls.event))
        return self._with_arguments(columns, rows, described_by, programs)

    def _with_arguments(
        self,
        columns: Columns,
        rows: Int64Array,
        described_by: Int64Array,
        programs: Programs,
    ) -> _InstructionOperations:
        """Look up the arguments of the operations in some rows.

        Args:
            columns: the events that are made of operations.
            rows: the operations, ascending, (o,).
            described_by: an event whose statistics name the operation of each, (o,).
            programs: what has the arguments.
        """
        texts = list(self.texts)
        distinct, index = distinct_rows(
            self.stats["program_id"].at(described_by),
            self.stats["hlo_module"].at(described_by),
            self.stats["hlo_op"].at(described_by),
        )
        arguments = []
        for program, module, operation in distinct:
            module_name = _text_of(texts, module)
            operation_name = _text_of(texts, operation)
            arguments.append(programs.arguments(program, module_name, operation_name))
        rows_with_arguments = []
        arguments_of_rows = []
        for row, number in zip(rows.tolist(), index.tolist(), strict=True):
            arguments_of_row = arguments[number]
            if arguments_of_row is not None:
                rows_with_arguments.append(row)
                arguments_of_rows.append(arguments_of_row)
        return _InstructionOperations(
            columns=columns,
            rows=np.array(rows_with_arguments, dtype=np.int64),
            arguments=arguments_of_rows,
        )

    def _calls(self) -> _InstructionCalls:
        """Return the calls of instructions.

        Launches that follow one another on a thread belong to one call, as long as they are for the
        same instruction and device and the first kernel does not come again.
        """
        start = self.columns["ts"]
        lane = self.columns["lane"]
        gpu, launch = self._launched_operations()
        order = np.lexsort((start[gpu], start[launch], lane[launch]))
        gpu = gpu[order]
        launch = launch[order]
        _, instruction = distinct_rows(
            self.stats["program_id"].at(gpu),
            self.stats["hlo_module"].at(gpu),
            self.stats["hlo_op"].at(gpu),
            self.device[gpu],
            lane[launch],
        )
        is_other_instruction = np.diff(instruction, prepend=NONE) != 0
        is_other_launch = np.diff(launch, prepend=NONE) != 0
        name = self.columns["name"][gpu]
        numbers = np.arange(len(gpu))
        first_of_instruction = np.maximum.accumulate(
            np.where(is_other_instruction, numbers, 0)
        )
        is_first_kernel_again = is_other_launch & (name == name[first_of_instruction])
        begins = np.flatnonzero(is_other_instruction | is_first_kernel_again)
        end = start[launch] + self.columns["dur"][launch]
        if len(begins):
            end = np.maximum.reduceat(end, begins)
        first_launch = launch[begins]
        return _InstructionCalls(
            event=gpu[begins], launch=first_launch, start=start[first_launch], end=end
        )

    def _launched_operations(self) -> tuple[Int64Array, Int64Array]:
        """Return the GPU events of operations, and the launch of each, without graphs."""
        start = self.columns["ts"][self.calls]
        by_start = np.argsort(start, kind="stable")
        calls = self.calls[by_start]
        launch_of_id = pd.Series(calls, index=self.correlation[calls])
        is_last_of_id = ~launch_of_id.index.duplicated(keep="last")
        launch_of_id = launch_of_id[(launch_of_id.index > 0) & is_last_of_id]
        operation_of_gpu = self.stats["hlo_op"].at(self.gpu)
        has_operation = operation_of_gpu != NONE
        gpu = self.gpu[has_operation]
        operation = operation_of_gpu[has_operation]
        launches = launch_of_id.reindex(self.correlation[gpu], fill_value=NONE)
        launch = launches.to_numpy(dtype=np.int64)
        # A launch of kernels of several instructions is that of a graph.
        by_launch = pd.Series(operation).groupby(launch)
        operations_of_launch = by_launch.transform("nunique").to_numpy()
        has_one_operation = operations_of_launch == 1
        is_usable = has_one_operation & (launch != NONE)
        return gpu[is_usable], launch[is_usable]


def _text_of(texts: Sequence[str], code: int) -> str:
    """Return a text by its code; an empty one for `NONE`."""
    if code == NONE:
        return ""
    return texts[code]


def _turns(ids: Int64Array) -> Int64Array:
    """Number those with the same id from 0; ids ascend: of 5 5 7 the turns are 0 1 0."""
    first_of_id = np.searchsorted(ids, ids)
    return np.arange(len(ids)) - first_of_id


def _stream(line: str, thread: int | str) -> int:
    """Return the stream of a line such as `Stream #7(Kernel)`, else its number, if it has one."""
    stream = _STREAM.search(line)
    if stream:
        return int(stream[1])
    if isinstance(thread, int) and 0 <= thread < _MOST_STREAMS:
        return thread
    return NONE


def numbered(first: Int64Array, second: Int64Array) -> Int64Array:
    """Return a number for each distinct pair, (n,); it ascends with the first, then the second."""
    first_rank = _ranks(first)
    second_rank = _ranks(second)
    highest_second_rank = int(second_rank.max(initial=0))
    return first_rank * (highest_second_rank + 1) + second_rank


def _ranks(values: Int64Array) -> Int64Array:
    """Number the distinct values from 0, the least one first."""
    _, rank = np.unique(values, return_inverse=True)
    return rank.reshape(-1)
