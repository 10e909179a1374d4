"""What is read of a Kineto event: its fields, its kind, and which arguments of which kinds.

Time stamps are decimal texts such as ``1712195495519689.047`` (µs since 1970 with ns), more
digits than a double holds. So numbers stay text until they are joined with commas and parsed as
integers by one C loop, a column at a time; no value ever passes through a float.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Raw, Struct

from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.trace import Int64Array

    Buffer = bytes | Raw

#: What stands for "this event has no such number". Never a time stamp that a trace may hold:
#: 285 years before zero, and times 1,000 it still fits in 64 bits.
MISSING = -9_000_000_000_000_000
MISSING_TOKEN = Raw(str(MISSING).encode())
#: ``MISSING`` as `parse_nanoseconds` answers it.
MISSING_NS = MISSING * 1000

_COMMA, _DOT, _PLAIN = ord(","), ord("."), b"0123456789-,"
_INT64_MAX = int(np.iinfo(np.int64).max)
_HALF, _MOST_DIGITS = Decimal("0.5"), 20


def parse_integers(tokens: Sequence[Buffer]) -> Int64Array:
    """The integers that JSON values stand for (``1e3`` and ``"12"`` too), `MISSING` for others."""
    return _parsed(tokens, 0)


def parse_nanoseconds(tokens: Sequence[Buffer]) -> Int64Array:
    """Times in µs, such as ``12``, ``12.5``, ``-0.001``, as ns, exactly; finer digits are rounded.

    What is no number, or does not fit in 64 bits of ns, is `MISSING_NS`.
    """
    return _parsed(tokens, 3)


def _parsed(tokens: Sequence[Buffer], decimals: int) -> Int64Array:
    """Numbers times ten to the power of `decimals`, shape (n,): usual ones by one C loop."""
    text = b",".join(tokens)
    characters = np.frombuffer(text + b",", dtype=np.uint8)
    dots, text = np.flatnonzero(characters == _DOT), text.replace(b".", b"")
    ends = np.flatnonzero(characters == _COMMA)
    of_dot = np.searchsorted(ends, dots)
    shift = np.full(len(ends), decimals, dtype=np.int64)
    shift[of_dot] -= ends[of_dot] - dots - 1
    if tokens and shift.min() >= 0 and not text.translate(None, _PLAIN):
        values: Int64Array = np.fromstring(text, dtype=np.int64, sep=",")
        most = _INT64_MAX // 10**decimals
        # The C parser stops at INT64_MAX or INT64_MIN, so a value there may have been a longer one.
        if len(values) == len(tokens) and -most < values.min() and values.max() < most:
            return values * 10**shift
    return np.array([_exact(bytes(token), decimals) for token in tokens], dtype=np.int64)


def _exact(token: bytes, decimals: int) -> int:
    """As `_parsed`, of one token, whatever it is."""
    missing: int = MISSING * 10**decimals
    try:
        value = Decimal(token.decode("ascii").strip('"'))
        if not value.is_finite() or value.adjusted() > _MOST_DIGITS:
            return missing
        whole = (value * 10**decimals + _HALF).to_integral_value(ROUND_FLOOR)
    except (ArithmeticError, UnicodeDecodeError):
        return missing
    fits = abs(whole) < _INT64_MAX and (decimals or whole == value)
    return int(whole) if fits else missing


NO_TEXT = Raw()
NO_DURATION = Raw(b"-1")


class Args(Struct, frozen=True, gc=False):
    """The arguments that are kept, as raw text: numbers, then texts that are interned."""

    correlation: Raw = MISSING_TOKEN
    external_id: Raw = msgspec.field(default=MISSING_TOKEN, name="External id")
    device: Raw = MISSING_TOKEN
    stream: Raw = MISSING_TOKEN
    bytes: Raw = MISSING_TOKEN
    shared_memory: Raw = msgspec.field(default=MISSING_TOKEN, name="shared memory")
    sequence_number: Raw = msgspec.field(default=MISSING_TOKEN, name="Sequence number")
    forward_thread: Raw = msgspec.field(default=MISSING_TOKEN, name="Fwd thread id")
    python_id: Raw = msgspec.field(default=MISSING_TOKEN, name="Python id")
    python_parent: Raw = msgspec.field(default=MISSING_TOKEN, name="Python parent id")
    python_module: Raw = msgspec.field(default=MISSING_TOKEN, name="Python module id")
    memory_address: Raw = msgspec.field(default=MISSING_TOKEN, name="Addr")
    memory_bytes: Raw = msgspec.field(default=MISSING_TOKEN, name="Bytes")
    memory_device: Raw = msgspec.field(default=MISSING_TOKEN, name="Device Id")
    memory_device_type: Raw = msgspec.field(default=MISSING_TOKEN, name="Device Type")
    memory_allocated: Raw = msgspec.field(default=MISSING_TOKEN, name="Total Allocated")
    memory_reserved: Raw = msgspec.field(default=MISSING_TOKEN, name="Total Reserved")
    wait_on_stream: Raw = MISSING_TOKEN
    wait_on_record: Raw = msgspec.field(
        default=MISSING_TOKEN, name="wait_on_cuda_event_record_corr_id"
    )

    input_dims: Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    input_type: Raw = msgspec.field(default=NO_TEXT, name="Input type")
    input_strides: Raw = msgspec.field(default=NO_TEXT, name="Input Strides")
    concrete_inputs: Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")
    collective: Raw = msgspec.field(default=NO_TEXT, name="Collective name")
    dtype: Raw = NO_TEXT
    in_elements: Raw = msgspec.field(default=NO_TEXT, name="In msg nelems")
    out_elements: Raw = msgspec.field(default=NO_TEXT, name="Out msg nelems")
    in_split: Raw = msgspec.field(default=NO_TEXT, name="In split size")
    out_split: Raw = msgspec.field(default=NO_TEXT, name="Out split size")
    group_size: Raw = msgspec.field(default=NO_TEXT, name="Group size")
    group_name: Raw = msgspec.field(default=NO_TEXT, name="Process Group Name")
    group_text: Raw = msgspec.field(default=NO_TEXT, name="Process Group Description")
    group_ranks: Raw = msgspec.field(default=NO_TEXT, name="Process Group Ranks")
    bandwidth: Raw = msgspec.field(default=NO_TEXT, name="memory bandwidth (GB/s)")
    grid: Raw = NO_TEXT  # of a kernel: its blocks in three dimensions
    group_sequence: Raw = msgspec.field(default=NO_TEXT, name="Seq")
    source_rank: Raw = msgspec.field(default=NO_TEXT, name="Src Rank")
    target_rank: Raw = msgspec.field(default=NO_TEXT, name="Dst Rank")
    kernel: Raw = NO_TEXT  # of a launch on ROCm: the name of what it starts
    graph_id: Raw = msgspec.field(default=MISSING_TOKEN, name="graph id")
    graph_node: Raw = msgspec.field(default=MISSING_TOKEN, name="graph node id")
    annotation: Raw = NO_TEXT  # what is in a CUDA graph: a list of dicts, or their keys
    module_fqn: Raw = NO_TEXT
    copy_kind: Raw = msgspec.field(default=NO_TEXT, name="copy kind")
    copy_source: Raw = msgspec.field(default=NO_TEXT, name="src kind")
    copy_target: Raw = msgspec.field(default=NO_TEXT, name="dst kind")
    name: Raw = NO_TEXT
    labels: Raw = NO_TEXT
    counter: Raw = msgspec.field(default=NO_TEXT, name="")  # the value of a counter of the GPU


class Event(Struct, gc=False):
    """The fields of an event that are kept; numbers as raw text."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = "?"
    tid: int | str = "?"
    ts: Raw = MISSING_TOKEN
    dur: Raw = NO_DURATION
    id: Raw = MISSING_TOKEN
    args: Args = Args()


NAME_IN_FILE: Mapping[str, str] = dict(
    zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True)
)
_SHAPES = ("input_dims", "input_type", "input_strides", "concrete_inputs")
_COLLECTIVE = (
    "collective",
    "dtype",
    "in_elements",
    "out_elements",
    "in_split",
    "out_split",
    "group_size",
    "group_name",
    "group_text",
    "group_ranks",
    "group_sequence",
    "source_rank",
    "target_rank",
)
#: Of an instant event `[memory]`.
_MEMORY = (
    "memory_address",
    "memory_bytes",
    "memory_device",
    "memory_device_type",
    "memory_allocated",
    "memory_reserved",
)
#: Of an event `cuda_sync`.
_SYNCHRONISATION = ("device", "stream", "wait_on_stream", "wait_on_record")


_IN_GRAPH = ("graph_id", "graph_node")
_ANNOTATIONS = (("annotation",), ("module_fqn",), ("name",))
_COPY = ("copy_kind", "copy_source", "copy_target")


class Plan:
    """Which arguments are looked for on which kinds of events.

    Args:
        kinds: the kinds of events.
        numbers: fields of `Args` that hold integers.
        texts: groups of text fields; an event without a group's first has none of the group.
        flow_id: whether the event's own id is wanted.
    """

    def __init__(
        self,
        *kinds: EventKind,
        numbers: tuple[str, ...] = (),
        texts: tuple[tuple[str, ...], ...] = (),
        flow_id: bool = False,
    ) -> None:
        self.wanted = np.zeros(256, dtype=bool)
        self.wanted[list(kinds)] = True
        self.numbers, self.texts, self.flow_id = numbers, texts, flow_id


PLAN = (
    Plan(
        EventKind.CPU_OP,
        EventKind.USER_ANNOTATION,
        numbers=("external_id", "sequence_number", "forward_thread"),
        texts=(_SHAPES, _COLLECTIVE),
    ),
    Plan(
        EventKind.RUNTIME,
        EventKind.DRIVER,
        numbers=("correlation", "external_id"),
        texts=(("kernel",),),
    ),
    Plan(
        EventKind.KERNEL,
        numbers=("correlation", "external_id", "device", "stream", "shared_memory", *_IN_GRAPH),
        texts=(_COLLECTIVE, *_ANNOTATIONS, ("grid",)),
    ),
    Plan(
        EventKind.MEMCPY,
        EventKind.MEMSET,
        numbers=("correlation", "external_id", "device", "stream", "bytes", *_IN_GRAPH),
        texts=(("bandwidth",), _COPY, *_ANNOTATIONS),
    ),
    Plan(EventKind.PYTHON_FUNCTION, numbers=("python_id", "python_parent", "python_module")),
    Plan(EventKind.FLOW_START, EventKind.FLOW_END, flow_id=True),
    Plan(EventKind.INSTANT, numbers=_MEMORY),
    Plan(
        EventKind.OTHER,
        numbers=("correlation", *_SYNCHRONISATION),
        texts=(("counter",),),
    ),
)

#: The kinds of complete events, by category in lower case.
CATEGORIES: Mapping[str, int] = {
    "cpu_op": EventKind.CPU_OP,
    "operator": EventKind.CPU_OP,
    "user_annotation": EventKind.USER_ANNOTATION,
    "python_function": EventKind.PYTHON_FUNCTION,
    "cuda_runtime": EventKind.RUNTIME,
    "xpu_runtime": EventKind.RUNTIME,
    "privateuse1_runtime": EventKind.RUNTIME,
    "runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.DRIVER,
    "privateuse1_driver": EventKind.DRIVER,
    "driver": EventKind.DRIVER,
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY,
    "memcpy": EventKind.MEMCPY,
    "gpu_memset": EventKind.MEMSET,
    "memset": EventKind.MEMSET,
    "gpu_user_annotation": EventKind.GPU_ANNOTATION,
}
#: Beyond the kinds of events: metadata, and what cannot be an event.
METADATA, NO_PHASE = 254, 255
#: The kinds of other events, by phase.
PHASES: Mapping[str, int] = {
    "M": METADATA,
    "s": EventKind.FLOW_START,
    "t": EventKind.FLOW_END,
    "f": EventKind.FLOW_END,
    "i": EventKind.INSTANT,
    "I": EventKind.INSTANT,
}


def kind_of(phase: str, category: str) -> int:
    """The `EventKind` of an event, or `METADATA`, or `NO_PHASE`."""
    if phase == "X":
        return CATEGORIES.get(category.lower(), EventKind.OTHER)
    return PHASES.get(phase, EventKind.OTHER) if phase else NO_PHASE
