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
    from collections.abc import Iterable, Mapping

    from tracelens_ext.trace import Int64Array

    Int64Array = Int64Array

#: What stands for "this event has no such number". Never a time stamp that a trace may hold:
#: 285 years before zero, and times 1,000 it still fits in 64 bits.
MISSING = -9_000_000_000_000_000
MISSING_TOKEN = Raw(str(MISSING).encode())
#: ``MISSING`` as `parse_nanoseconds` answers it.
MISSING_NS = MISSING * 1000

_COMMA, _DOT = ord(","), ord(".")
_INT64_MAX = int(np.iinfo(np.int64).max)
_HALF, _MOST_DIGITS = Decimal("0.5"), 20
#: Most digits after the dot that are kept: 3 of them are ns, finer ones are rounded.
_MAX_FRACTION = 9


class UnusualNumberError(ValueError):
    """A column holds a token that is no plain decimal number, or one beyond 64 bits."""


def parse_integers(tokens: list[Raw]) -> Int64Array:
    """Parse integer tokens.

    Returns:
        Their values, shape (n,).
    """
    text = b",".join(tokens)
    if b"." in text:
        msg = "a fraction where an integer was expected"
        raise UnusualNumberError(msg)
    return _integers(text, len(tokens))


def parse_nanoseconds(tokens: list[Raw]) -> Int64Array:
    """Parse microsecond tokens, exactly, to nanoseconds.

    Args:
        tokens: decimal texts in µs, n of them, such as ``12``, ``12.5``, ``-0.001``.

    Returns:
        The same times in ns, shape (n,). Digits finer than a nanosecond are rounded.

    Raises:
        UnusualNumberError: a token is no plain decimal number, or does not fit in 64 bits of ns.
    """
    text = b",".join(tokens)
    if b"." not in text:
        return _scaled(_integers(text, len(tokens)), np.int64(1000))
    characters = np.frombuffer(text + b",", dtype=np.uint8)
    ends = np.flatnonzero(characters == _COMMA)
    digits = _integers(text.replace(b".", b""), len(tokens))
    dots = np.flatnonzero(characters == _DOT)
    if len(dots) == len(ends) and bool((ends - dots == 4).all()):
        return digits  # every number has just the three decimals that Kineto writes
    token_of_dot = np.searchsorted(ends, dots)
    fraction = np.zeros(len(tokens), dtype=np.int64)
    fraction[token_of_dot] = ends[token_of_dot] - dots - 1
    if len(dots) and int(fraction.max()) > _MAX_FRACTION:
        msg = "more decimals than fit in 64 bits"
        raise UnusualNumberError(msg)
    result = _scaled(digits, 10 ** np.maximum(3 - fraction, 0))
    fine = np.flatnonzero(fraction > 3)
    if len(fine):
        divisor = 10 ** (fraction[fine] - 3)
        result[fine] = (result[fine] + divisor // 2) // divisor
    return result


def _integers(text: bytes, count: int) -> Int64Array:
    if not count:
        return np.empty(0, dtype=np.int64)
    if not _is_plain(text):
        text = text.replace(b"null", bytes(MISSING_TOKEN))
        if not _is_plain(text):
            msg = "not a plain number"
            raise UnusualNumberError(msg)
    values = np.fromstring(text, dtype=np.int64, sep=",")
    # The C parser stops at INT64_MAX or INT64_MIN, so a value there may have been a longer one.
    if len(values) != count or int(values.max()) == _INT64_MAX or int(values.min()) <= -_INT64_MAX:
        msg = "a number beyond 64 bits"
        raise UnusualNumberError(msg)
    return values


def _is_plain(text: bytes) -> bool:
    """Whether only ``,-.0123456789`` are in a text of JSON values (a slash cannot be)."""
    characters = np.frombuffer(text, dtype=np.uint8)
    return int(characters.min()) >= _COMMA and int(characters.max()) <= ord("9")


def _scaled(values: Int64Array, factor: np.int64 | Int64Array) -> Int64Array:
    if len(values) and bool((np.abs(values) > _INT64_MAX // factor).any()):
        msg = "a time beyond 64 bits of nanoseconds"
        raise UnusualNumberError(msg)
    return values * factor


def mend(tokens: Iterable[Raw], *, integer: bool) -> list[Raw]:
    """Rewrite the tokens of a refused column one by one.

    ``1e3`` and ``"12"`` become plain numbers; what is no finite number, or does not fit, becomes
    `MISSING_TOKEN`, which the caller counts as missing.
    """
    return [_mend_one(bytes(token), integer=integer) for token in tokens]


def _mend_one(token: bytes, *, integer: bool) -> Raw:
    try:
        value = Decimal(token.decode("ascii").strip('"'))
        if not value.is_finite() or value.adjusted() > _MOST_DIGITS:
            return MISSING_TOKEN
        scaled = value if integer else value * 1000
        whole = (scaled + _HALF).to_integral_value(ROUND_FLOOR)
    except (ArithmeticError, UnicodeDecodeError):
        return MISSING_TOKEN
    if abs(whole) >= _INT64_MAX or (integer and whole != value):
        return MISSING_TOKEN
    return Raw(format(whole if integer else whole.scaleb(-3), "f").encode())


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
