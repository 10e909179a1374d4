"""Says which fields and arguments of Kineto's events are read, and of which kind an event is.

Timestamps are decimal texts such as `1712195495519689.047` (µs since 1970 with three decimals),
which have more digits than a double can hold. Numbers therefore stay texts until they are parsed as
integers; no value passes through a float.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from tracelens_ext.readers.begin_end import BEGIN, END
from tracelens_ext.trace import BoolArray, EventKind, Int64Array, IntArray

Buffer = bytes | Raw
ParseNumbers = Callable[[Sequence[Buffer]], Int64Array]

#: Value of a number that an event does not have. As a time it would be 285 years before zero, so no
#: trace has it. It fits in 64 bits even after a conversion from µs to ns.
MISSING = -9_000_000_000_000_000
MISSING_TOKEN = Raw(str(MISSING).encode())
#: `MISSING` after a conversion from µs to ns.
MISSING_NS = MISSING * 1000

_INT64_MAX = int(np.iinfo(np.int64).max)
_HALF = Decimal("0.5")
_MOST_DIGITS = 20


def parse_integers(tokens: Sequence[Buffer]) -> Int64Array:
    """Return JSON values (also `1e3` and `"12"`) as integers; `MISSING` for all others."""
    return np.array(
        [_scaled_number(bytes(token), 0) for token in tokens], dtype=np.int64
    )


def parse_nanoseconds(tokens: Sequence[Buffer]) -> Int64Array:
    """Return JSON values in µs (`12.5`) as ns, rounded to whole ns.

    The result is `MISSING_NS` for values that are not numbers or do not fit in 64 bits.
    """
    return np.array(
        [_scaled_number(bytes(token), 3) for token in tokens], dtype=np.int64
    )


def _scaled_number(token: bytes, decimals: int) -> int:
    """Return the number that a JSON value is, times ten to the power of `decimals`, rounded.

    The result is `MISSING`, scaled in the same way, if the value is not a number or too large. With
    `decimals` 0 it is also `MISSING` for a fraction.
    """
    missing: int = MISSING * 10**decimals
    whole, _, fraction = token.partition(b".")
    digits = whole.removeprefix(b"-") + fraction
    is_short = len(fraction) <= decimals and len(digits) < _MOST_DIGITS
    if is_short and digits.isdigit():  # nearly all numbers of a trace
        value = int(whole + fraction.ljust(decimals, b"0"))
    else:
        try:
            number = Decimal(token.decode("ascii").strip('"'))
            if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
                return missing
            value = int((number * 10**decimals + _HALF).to_integral_value(ROUND_FLOOR))
            if not decimals and value != number:
                return MISSING
        except (ArithmeticError, UnicodeDecodeError):
            return missing
    return value if abs(value) < _INT64_MAX else missing


NO_TEXT = Raw()
NO_DURATION = Raw(b"-1")


_IDS = ("correlation", "External id")
_IN_GRAPH = ("graph id", "graph node id")
_PYTHON = ("Python id", "Python parent id", "Python module id")
#: Arguments of an instant event `[memory]`.
_MEMORY = (
    "Addr",
    "Bytes",
    "Device Id",
    "Device Type",
    "Total Allocated",
    "Total Reserved",
)
#: Arguments of an event `cuda_sync`.
_SYNCHRONIZATION = (
    "device",
    "stream",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
)
_SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_COLLECTIVE = (
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "In split size",
    "Out split size",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Seq",
    "Src Rank",
    "Dst Rank",
)
#: Annotations of kernels in a CUDA graph: a list of dictionaries, or the keys of a dictionary.
_ANNOTATIONS = (("annotation",), ("module_fqn",), ("name",))
_COPY = ("copy kind", "src kind", "dst kind")
_NUMBERS = (
    *_IDS,
    *_SYNCHRONIZATION,
    *_IN_GRAPH,
    *_PYTHON,
    *_MEMORY,
    "bytes",
    "shared memory",
    "Sequence number",
    "Fwd thread id",
)
_TEXTS = (
    *_SHAPES,
    *_COLLECTIVE,
    *chain(*_ANNOTATIONS),
    *_COPY,
    "memory bandwidth (GB/s)",
    "grid",  # the blocks of a kernel in three dimensions
    "kernel",  # the name of the kernel that a launch on ROCm starts
    "labels",  # of a metadata event
    "Call stack",
    "",  # the value of a counter of the GPU
)
#: Name of an argument that is read → its attribute of `Event.args`.
ARGUMENTS = {name: re.sub(r"\W", "_", name) or "counter" for name in _NUMBERS + _TEXTS}
_Args: Any = msgspec.defstruct(
    "_Args",
    [
        (
            attribute,
            Raw,
            field(default=MISSING_TOKEN if name in _NUMBERS else NO_TEXT, name=name),
        )
        for name, attribute in ARGUMENTS.items()
    ],
    frozen=True,
    gc=False,
)


class Event(Struct, gc=False):
    """The fields of an event that are read. Numbers are raw JSON."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = "?"
    tid: int | str = "?"
    ts: Raw = MISSING_TOKEN
    dur: Raw = NO_DURATION
    id: Raw = MISSING_TOKEN
    args: _Args = _Args()


#: Name under which the `id` of a flow event is stored among its arguments.
FLOW_ID = "flow id"


class ArgumentPlan:
    """The arguments that events of some kinds keep.

    Args:
        kinds: the kinds of events.
        numbers: names of arguments that are whole numbers.
        texts: groups of names of arguments that are texts. An event without the first argument of a
            group is assumed to have none of the group.

    Attributes:
        includes_kind: kind → whether it is one of the kinds, also for events that only begin,
            (256,).
        numbers: as above.
        texts: as above.
    """

    def __init__(
        self,
        *kinds: EventKind,
        numbers: Sequence[str],
        texts: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self.includes_kind = np.isin(np.arange(256) & ~BEGIN, kinds)
        self.numbers = numbers
        self.texts = texts


#: What is kept of the arguments of events, for groups of kinds of events.
ARGUMENT_PLANS = (
    ArgumentPlan(
        EventKind.CPU_OP,
        EventKind.USER_ANNOTATION,
        numbers=("External id", "Sequence number", "Fwd thread id"),
        texts=(_SHAPES, _COLLECTIVE, ("Call stack",)),
    ),
    ArgumentPlan(
        EventKind.RUNTIME, EventKind.DRIVER, numbers=_IDS, texts=(("kernel",),)
    ),
    ArgumentPlan(
        EventKind.KERNEL,
        numbers=_IDS + ("device", "stream", "shared memory") + _IN_GRAPH,
        texts=(_COLLECTIVE, *_ANNOTATIONS, ("grid",)),
    ),
    ArgumentPlan(
        EventKind.MEMCPY,
        EventKind.MEMSET,
        numbers=_IDS + ("device", "stream", "bytes") + _IN_GRAPH,
        texts=(("memory bandwidth (GB/s)",), _COPY, *_ANNOTATIONS),
    ),
    ArgumentPlan(EventKind.PYTHON_FUNCTION, numbers=_PYTHON),
    ArgumentPlan(EventKind.FLOW_START, EventKind.FLOW_END, numbers=(FLOW_ID,)),
    ArgumentPlan(EventKind.INSTANT, numbers=_MEMORY),
    ArgumentPlan(
        EventKind.OTHER, numbers=("correlation",) + _SYNCHRONIZATION, texts=(("",),)
    ),
)

#: Categories of runtime calls, driver calls and kernels, which differ between accelerators.
_RUNTIMES = (
    "cuda_runtime",
    "xpu_runtime",
    "mtia_runtime",
    "glow_runtime",
    "privateuse1_runtime",
    "runtime",
    "hpu_op",
    "collective_comm",
)
_DRIVERS = ("cuda_driver", "xpu_driver", "privateuse1_driver", "driver")
_KERNELS = ("kernel", "mtia_ccp_events")
#: Category in lower case → kind of its complete events.
KIND_OF_CATEGORY: Mapping[str, int] = {
    **dict.fromkeys(("cpu_op", "operator"), EventKind.CPU_OP),
    "user_annotation": EventKind.USER_ANNOTATION,
    "python_function": EventKind.PYTHON_FUNCTION,
    **dict.fromkeys(_RUNTIMES, EventKind.RUNTIME),
    **dict.fromkeys(_DRIVERS, EventKind.DRIVER),
    **dict.fromkeys(_KERNELS, EventKind.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), EventKind.MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), EventKind.MEMSET),
    "gpu_user_annotation": EventKind.GPU_ANNOTATION,
}
#: Kind → its category as Kineto writes it today: the first one above.
CATEGORY_OF_KIND: Mapping[int, str] = {
    kind: category for category, kind in reversed(list(KIND_OF_CATEGORY.items()))
}
#: Two kinds beside those of `EventKind`: events that name something, and events without a phase.
#: They are larger than all others, which `is_on_timeline` and the compiled reader rely on.
METADATA = 254
NO_PHASE = 255
#: Phase → kind of its events, for all phases except those of complete events.
KIND_OF_PHASE: Mapping[str, int] = {
    "M": METADATA,
    "E": END,
    "s": EventKind.FLOW_START,
    **dict.fromkeys("tf", EventKind.FLOW_END),
    **dict.fromkeys("iI", EventKind.INSTANT),
}


#: Categories of complete events that have no `EventKind` of their own. They are known, so they are
#: not reported as unread.
_EXPECTED_OTHERS = frozenset(
    {
        "cuda_event",
        "cuda_profiler_range",
        "cuda_sync",
        "external_correlation",
        "overhead",
        "trace",
        "xpu_sync",
    }
)
#: Phase whose events are not read → their name in messages.
_UNREAD_PHASES: Mapping[str, str] = {
    "C": "counter events",
    **dict.fromkeys("bne", "asynchronous events"),
}


def kind_of(phase: str, category: str) -> int:
    """Return the kind of an event: an `EventKind`, `METADATA`, `NO_PHASE` or `END`.

    For an event that only begins, the kind of the whole event plus `BEGIN` is returned.
    """
    if not phase:
        return NO_PHASE
    if phase not in ("X", "B"):
        return KIND_OF_PHASE.get(phase, EventKind.OTHER)
    kind = KIND_OF_CATEGORY.get(category.lower(), EventKind.OTHER)
    return kind + BEGIN if phase == "B" else kind


def is_on_timeline(kind: IntArray) -> BoolArray:
    """Return True for each kind of event that has a place in time, which metadata has not."""
    on_timeline: BoolArray = kind < METADATA
    return on_timeline


def unread_text(phase: str, category: str, process: str) -> str:
    """Return the name of a kind of events that is not read; empty for a kind that is read.

    Args:
        phase: the `ph` of the events.
        category: their `cat`; empty if they have none.
        process: the name of their process; empty if it has none.
    """
    if phase in _UNREAD_PHASES:
        text = _UNREAD_PHASES[phase]
        if category:
            text += f" ({category})"
        return text
    if phase not in ("X", "B") or category.lower() in _EXPECTED_OTHERS:
        return ""
    if category.lower() in KIND_OF_CATEGORY:
        return ""
    text = category or "without a category"
    return f"{text} of {process}" if process else text
