"""What is read of a Kineto event: its fields, its kind, and which arguments of which kinds.

Time stamps are decimal texts such as ``1712195495519689.047`` (µs since 1970 with ns), more
digits than a double holds. So numbers stay text until they are parsed as integers; no value ever
passes through a float.
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
from tracelens_ext.trace import EventKind, Int64Array

Buffer = bytes | Raw
ParseNumbers = Callable[[Sequence[Buffer]], Int64Array]

#: What stands for "this event has no such number". Never a time stamp that a trace may hold:
#: 285 years before zero, and times 1,000 it still fits in 64 bits.
MISSING = -9_000_000_000_000_000
MISSING_TOKEN = Raw(str(MISSING).encode())
#: ``MISSING`` as `parse_nanoseconds` answers it.
MISSING_NS = MISSING * 1000

_INT64_MAX = int(np.iinfo(np.int64).max)
_HALF = Decimal("0.5")
_MOST_DIGITS = 20


def parse_integers(tokens: Sequence[Buffer]) -> Int64Array:
    """The integers that JSON values stand for (``1e3`` and ``"12"`` too), `MISSING` for others."""
    return np.array([_number(bytes(token), 0) for token in tokens], dtype=np.int64)


def parse_nanoseconds(tokens: Sequence[Buffer]) -> Int64Array:
    """Times in µs (`12.5`) as exact ns, rounded; `MISSING_NS` of others, and beyond 64 bits."""
    return np.array([_number(bytes(token), 3) for token in tokens], dtype=np.int64)


def _number(token: bytes, decimals: int) -> int:
    """A token, whatever it is, times ten to the power of `decimals`."""
    missing: int = MISSING * 10**decimals
    whole, _, part = token.partition(b".")
    digits = whole.removeprefix(b"-") + part
    if len(part) <= decimals and digits.isdigit() and len(digits) < _MOST_DIGITS:
        value = int(whole + part.ljust(decimals, b"0"))
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
#: Of an instant event `[memory]`.
_MEMORY = (
    "Addr",
    "Bytes",
    "Device Id",
    "Device Type",
    "Total Allocated",
    "Total Reserved",
)
#: Of an event `cuda_sync`.
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
#: What is in a CUDA graph: a list of dicts, or their keys.
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
#: Also the blocks of a kernel in three dimensions; of a launch on ROCm the name of what it starts;
#: of metadata; the value of a counter of the GPU.
_TEXTS = (
    *_SHAPES,
    *_COLLECTIVE,
    *chain(*_ANNOTATIONS),
    *_COPY,
    "memory bandwidth (GB/s)",
    "grid",
    "kernel",
    "labels",
    "Call stack",
    "",
)
#: The arguments that are kept, as raw text, and what each is called in Python.
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
    """The fields of an event that are kept; numbers as raw text."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = "?"
    tid: int | str = "?"
    ts: Raw = MISSING_TOKEN
    dur: Raw = NO_DURATION
    id: Raw = MISSING_TOKEN
    args: _Args = _Args()


#: What the `id` of an event is called among arguments.
FLOW_ID = "flow id"


class Plan:
    """The arguments that are kept of some kinds of events; of a group of texts all or none."""

    def __init__(
        self,
        *kinds: EventKind,
        numbers: Sequence[str],
        texts: Sequence[tuple[str, ...]] = (),
    ) -> None:
        #: by kind; what only begins has the arguments of the event
        self.wanted = np.isin(np.arange(256) & ~BEGIN, kinds)
        self.numbers = numbers
        self.texts = texts


PLAN = (
    Plan(
        *(EventKind.CPU_OP, EventKind.USER_ANNOTATION),
        numbers=("External id", "Sequence number", "Fwd thread id"),
        texts=(_SHAPES, _COLLECTIVE, ("Call stack",)),
    ),
    Plan(EventKind.RUNTIME, EventKind.DRIVER, numbers=_IDS, texts=(("kernel",),)),
    Plan(
        EventKind.KERNEL,
        numbers=_IDS + ("device", "stream", "shared memory") + _IN_GRAPH,
        texts=(_COLLECTIVE, *_ANNOTATIONS, ("grid",)),
    ),
    Plan(
        *(EventKind.MEMCPY, EventKind.MEMSET),
        numbers=_IDS + ("device", "stream", "bytes") + _IN_GRAPH,
        texts=(("memory bandwidth (GB/s)",), _COPY, *_ANNOTATIONS),
    ),
    Plan(EventKind.PYTHON_FUNCTION, numbers=_PYTHON),
    Plan(EventKind.FLOW_START, EventKind.FLOW_END, numbers=(FLOW_ID,)),
    Plan(EventKind.INSTANT, numbers=_MEMORY),
    Plan(EventKind.OTHER, numbers=("correlation",) + _SYNCHRONIZATION, texts=(("",),)),
)

#: The kinds of complete events, by category in lower case; accelerators have their own words for
#: calls and for what runs on a device.
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
CATEGORIES: Mapping[str, int] = {
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
#: The category of each kind, as Kineto writes it today.
WORDS: Mapping[int, str] = {kind: word for word, kind in list(CATEGORIES.items())[::-1]}
#: Beyond the kinds of events: metadata, and what cannot be an event.
METADATA = 254
NO_PHASE = 255
#: The kinds of other events, by phase.
PHASES: Mapping[str, int] = {
    "M": METADATA,
    "E": END,
    "s": EventKind.FLOW_START,
    **dict.fromkeys("tf", EventKind.FLOW_END),
    **dict.fromkeys("iI", EventKind.INSTANT),
}


#: Categories of complete events that are of no `EventKind` of their own, and expected.
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
#: Phases of events that nothing is read of, and what such events are called.
_UNREAD_PHASES: Mapping[str, str] = {
    "C": "counter events",
    **dict.fromkeys("bne", "asynchronous events"),
}


def kind_of(phase: str, category: str) -> int:
    """Return the kind of an event.

    That is an `EventKind`, `METADATA`, `NO_PHASE` or `END`; of what only begins, `BEGIN` more.
    """
    if not phase:
        return NO_PHASE
    if phase not in ("X", "B"):
        return PHASES.get(phase, EventKind.OTHER)
    kind = CATEGORIES.get(category.lower(), EventKind.OTHER)
    return kind + BEGIN if phase == "B" else kind


def unread_text(phase: str, category: str, process: str) -> str:
    """Return what to call an event of which nothing is read; empty for one that is read.

    Args:
        phase: the `ph` of the event.
        category: its `cat`, empty without one.
        process: the name of its process, empty without one.
    """
    if phase in _UNREAD_PHASES:
        return (
            f"{_UNREAD_PHASES[phase]} ({category})"
            if category
            else _UNREAD_PHASES[phase]
        )
    if phase not in ("X", "B") or category.lower() in _EXPECTED_OTHERS:
        return ""
    if category.lower() in CATEGORIES:
        return ""
    text = category or "without a category"
    return f"{text} of {process}" if process else text
