"""The operations that launched GPU work: instructions of the HLO, as events of the host.

A profile says of each kernel which instruction it is of, and has no event of the host for it. So
one is made around the launches of each call of an instruction, in an annotation with its scope
(`jit(f)/jit(main)/conv_general_dilated`).

Launches that follow one another on a thread belong to one call, as long as they are for the same
instruction and device and the first kernel does not come again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.readers.xplane.hlo import Arguments
    from tracelens_ext.readers.xplane.recording import Events
    from tracelens_ext.trace import BoolArray, Int64Array

#: Arguments of operations, as PyTorch's traces call them.
_ARGUMENTS = ("Input Dims", "Input type", "Concrete Inputs")


@dataclass(frozen=True, eq=False)
class Operations:
    """Events that are made for a recording of n events, k of them."""

    kind: Int64Array  #: an `EventKind`, (k,)
    ts: Int64Array  #: ns, (k,)
    dur: Int64Array  #: ns, (k,)
    name: Int64Array  #: code of its name, (k,)
    like: Int64Array  #: an event of its thread, (k,)
    #: argument → (rows of operations, those of the recording too, ascending; JSON)
    arguments: dict[str, tuple[Int64Array, list[bytes]]]
    #: of the same rows, as `Trace.instructions` has them
    instructions: tuple[Int64Array, Int64Array]


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls of instructions, k of them, in order of thread and start."""

    event: Int64Array  #: a GPU event of each, (k,)
    launch: Int64Array  #: its first launch, (k,)
    start: Int64Array  #: ns, (k,)
    end: Int64Array  #: ns, (k,)


def find_operations(
    events: Events, arguments_of: Callable[[int, str, str], Arguments | None]
) -> Operations:
    """The operations of a recording.

    `arguments_of` tells what the HLO says of one: by the program's id (`NONE` for unknown), the
    module's and the operation's name.
    """
    texts = [*events.texts, ""]
    calls = _calls(events, *_launched(events))
    hlo_op, scope = (events.stats[stat].at(calls.event) for stat in ("hlo_op", "name"))
    scoped = np.flatnonzero(scope != NONE)
    used, place = np.unique(np.concatenate((scope[scoped], hlo_op)), return_inverse=True)
    names = np.array([events.names[texts[code]] for code in used.tolist()], dtype=np.int64)
    # Scopes come first: of equal intervals the first is the parent.
    kind = [EventKind.USER_ANNOTATION] * len(scoped) + [EventKind.CPU_OP] * len(hlo_op)
    both = np.concatenate((scoped, np.arange(len(hlo_op))))
    on_host = np.flatnonzero(events.kind == EventKind.CPU_OP)
    rows = np.arange(len(hlo_op)) + len(events.kind) + len(scoped)
    asked = np.concatenate((on_host, calls.event))
    known, found = _arguments(events, asked, np.concatenate((on_host, rows)), arguments_of)
    return Operations(
        np.array(kind, dtype=np.int64),
        calls.start[both],
        (calls.end - calls.start)[both],
        names[place.reshape(-1)],
        calls.launch[both],
        {
            name: (known, [(each.dims, each.types, each.concrete)[i] for each in found])
            for i, name in enumerate(_ARGUMENTS)
        },
        (known, np.array([each.instruction for each in found], dtype=np.int64)),
    )


def _launched(events: Events) -> tuple[Int64Array, Int64Array]:
    """GPU events of instructions that have a launch of their own, and that launch.

    A launch of kernels of several instructions is that of a graph.
    """
    gpu = events.gpu[events.stats["hlo_op"].at(events.gpu) != NONE]
    launches = events.calls[np.argsort(events.columns["ts"][events.calls], kind="stable")]
    launches = launches[np.argsort(events.correlation[launches], kind="stable")]
    ids, wanted = events.correlation[launches], events.correlation[gpu]
    place = np.searchsorted(ids, wanted, side="right") - 1
    found = (place >= 0) & (wanted > 0)
    found[found] &= ids[place[found]] == wanted[found]
    gpu, launch = gpu[found], launches[place[found]]
    key = events.stats["hlo_op"].at(gpu)
    order = np.lexsort((key, launch))
    several = (np.diff(launch[order]) == 0) & (np.diff(key[order]) != 0)
    alone = ~np.isin(launch, launch[order][1:][several])
    return gpu[alone], launch[alone]


def _calls(events: Events, gpu: Int64Array, launch: Int64Array) -> _Calls:
    """The calls of instructions, of GPU events and their launches."""
    start, lane = events.columns["ts"], events.columns["lane"]
    order = np.lexsort((start[gpu], start[launch], lane[launch]))
    gpu, launch = gpu[order], launch[order]
    key = numbered(events.stats["program_id"].at(gpu), events.stats["hlo_module"].at(gpu))
    for column in (events.device[gpu], events.stats["hlo_op"].at(gpu)):
        key = numbered(key, column)
    first = _begins(key, lane[launch])
    again = events.columns["name"][gpu] == _of_first(events.columns["name"][gpu], first)
    again[1:] &= np.diff(launch) != 0
    begins = np.flatnonzero(first | again)
    ends = events.columns["ts"][launch] + events.columns["dur"][launch]
    return _Calls(
        gpu[begins],
        launch[begins],
        start[launch[begins]],
        np.maximum.reduceat(ends, begins) if len(begins) else ends,
    )


def _begins(*columns: Int64Array) -> BoolArray:
    """Where one of several columns changes, and at the first row."""
    result = np.zeros(len(columns[0]), dtype=bool)
    result[:1] = True
    for column in columns:
        result[1:] |= np.diff(column) != 0
    return result


def _of_first(values: Int64Array, first: BoolArray) -> Int64Array:
    """The value at the last of `first` up to each row."""
    places = np.flatnonzero(first)
    return np.repeat(values[places], np.diff(np.append(places, len(values))))


def numbered(a: Int64Array, b: Int64Array) -> Int64Array:
    """A number for each distinct pair."""
    a, b = (np.unique(column, return_inverse=True)[1].reshape(-1) for column in (a, b))
    return a * (int(b.max(initial=0)) + 1) + b


def _arguments(
    events: Events,
    asked: Int64Array,
    rows: Int64Array,
    arguments_of: Callable[[int, str, str], Arguments | None],
) -> tuple[Int64Array, list[Arguments]]:
    """The rows of operations of which the HLO knows the arguments, and these.

    Of each, `asked` is an event whose statistics name it, and `rows` where it is in the trace,
    ascending.
    """
    program, module, hlo_op = (
        events.stats[stat].at(asked) for stat in ("program_id", "hlo_module", "hlo_op")
    )
    texts = [*events.texts, ""]
    _, first, number = np.unique(
        numbered(numbered(program, module), hlo_op), return_index=True, return_inverse=True
    )
    found = [
        arguments_of(int(program[at]), texts[module[at]], texts[hlo_op[at]])
        for at in first.tolist()
    ]
    known = np.flatnonzero(np.array([each is not None for each in found], dtype=bool)[number])
    of_each = [found[i] for i in number[known].tolist()]
    return rows[known], [each for each in of_each if each is not None]
