"""Finds out what each recorded event of a JAX profile is, and which GPU events belong to a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.readers.builder import Interner
from tracelens_ext.trace import (
    GPU_KINDS,
    NONE,
    ArgColumn,
    BoolArray,
    EventKind,
    Int64Array,
)

#: Statistics that are read: whole numbers, then texts.
NUMBERS: Final = ("correlation_id", "device_id", "program_id", "step_num")
TEXTS: Final = ("hlo_op", "hlo_module", "name", "memcpy_details", "memset_details")

_GPU_PLANE: Final = re.compile(r"/device:GPU:(\d{1,9})")
_DRIVER_CALL: Final = re.compile("cu[A-Z]")
_PYTHON_FRAME_PREFIX: Final = "$"


def gpu_of_plane(name: str) -> int:
    """Return the number of the GPU that a plane belongs to, by its name; `NONE` for no GPU."""
    match = _GPU_PLANE.match(name)
    if match is None:
        return NONE
    return int(match[1])


class RecordedEvents:
    """The n recorded events of a profile.

    Args:
        columns: `ts` and `dur` in ns, codes `name` and `lane`, each (n,).
        stats: the statistics of the events, by name.
        device: the GPU on whose plane an event is, `NONE` if it is on another plane, (n,).
        is_on_host: whether an event is on a plane of the host, (n,).
        names: the names of events → their codes; names of steps are added.

    Attributes:
        columns: as above; steps are renamed, so that each has its number in its name.
        stats: as above.
        device: as above.
        kind: the `EventKind` of each event, (n,).
        gpu_rows: the GPU events, ascending.
        call_rows: the events on the host that have a correlation id, ascending.
        correlation: an id that each GPU event shares only with its launch, (n,).
    """

    def __init__(
        self,
        columns: dict[str, Int64Array],
        stats: Mapping[str, ArgColumn],
        device: Int64Array,
        is_on_host: BoolArray,
        names: Interner[str],
    ) -> None:
        self.columns = columns
        self.stats = stats
        self.device = device
        self._names = names
        self.kind = self._kinds(is_on_host)
        self.gpu_rows = np.flatnonzero(np.isin(self.kind, GPU_KINDS))
        is_call = np.isin(self.kind, (EventKind.RUNTIME, EventKind.DRIVER))
        self.call_rows = np.flatnonzero(is_call)
        self.correlation = self._correlation()
        self._number_steps()

    def _kinds(self, is_on_host: BoolArray) -> Int64Array:
        """Return the `EventKind` of each event, (n,).

        The assignments go from general to special: a later one overrides an earlier one.
        """
        name = self.columns["name"]
        is_on_gpu = self.device != NONE
        kind = np.full(len(name), EventKind.OTHER, dtype=np.int64)
        kind[is_on_gpu] = EventKind.GPU_ANNOTATION

        kind[is_on_host] = EventKind.USER_ANNOTATION
        kind[is_on_host & (self.columns["dur"] == 0)] = EventKind.INSTANT
        is_frame_name = [text.startswith(_PYTHON_FRAME_PREFIX) for text in self._names]
        is_frame = np.array(is_frame_name, dtype=bool)[name]
        kind[is_on_host & is_frame] = EventKind.PYTHON_FUNCTION
        rows_with_operation = self.stats["hlo_op"].rows
        is_operation = is_on_host[rows_with_operation]
        kind[rows_with_operation[is_operation]] = EventKind.CPU_OP

        rows_with_correlation = self.stats["correlation_id"].rows
        calls = rows_with_correlation[is_on_host[rows_with_correlation]]
        is_driver_name = [_DRIVER_CALL.match(text) is not None for text in self._names]
        is_driver_call = np.array(is_driver_name, dtype=bool)[name[calls]]
        kind[calls] = np.where(is_driver_call, EventKind.DRIVER, EventKind.RUNTIME)

        gpu_rows = rows_with_correlation[is_on_gpu[rows_with_correlation]]
        is_memset = self.stats["memset_details"].at(gpu_rows) != NONE
        is_copy = self.stats["memcpy_details"].at(gpu_rows) != NONE
        kind[gpu_rows] = EventKind.KERNEL
        kind[gpu_rows[is_memset]] = EventKind.MEMSET
        kind[gpu_rows[is_copy]] = EventKind.MEMCPY
        return kind

    def _number_steps(self) -> None:
        """Rename `StepTraceAnnotation("train", step_num=3)` to `train#3`, as `ProfilerStep#3`."""
        steps = self.stats["step_num"]
        is_annotation = self.kind[steps.rows] == EventKind.USER_ANNOTATION
        rows = steps.rows[is_annotation]
        name_column = self.columns["name"]
        names = list(self._names)
        codes = name_column[rows].tolist()
        step_numbers = steps.at(rows).tolist()
        for row, code, step in zip(rows.tolist(), codes, step_numbers, strict=True):
            name_column[row] = self._names[f"{names[code]}#{step}"]

    def _correlation(self) -> Int64Array:
        """Return an id that each GPU event shares only with its launch, (n,); else `NONE`.

        The recorded ids are unique only within a device. If two devices use the same id, all ids
        are replaced by new ones, a different one for each pair of recorded id and device.

        A launch may not name its device, or name one that has no GPU event with the id. Such
        launches are assigned to the devices that are left for the id, in order of their start.
        Example: two GPUs have an event with the id 7, and two launches with the id 7 name no
        device. The earlier launch belongs to GPU 0, the later one to GPU 1.
        """
        correlation = self.stats["correlation_id"].dense(len(self.kind))
        gpu_rows = self.gpu_rows
        device_of_gpu_event = self.device[gpu_rows]
        ids = np.unique(correlation[gpu_rows])
        id_and_device = pair_numbers(correlation[gpu_rows], device_of_gpu_event)
        if len(np.unique(id_and_device)) == len(ids):
            return correlation

        calls = self.call_rows[np.isin(correlation[self.call_rows], ids)]
        by_id_and_time = np.lexsort((self.columns["ts"][calls], correlation[calls]))
        calls = calls[by_id_and_time]
        device_of_call = self.stats["device_id"].at(calls)

        rows = np.concatenate((gpu_rows, calls))
        device = np.concatenate((device_of_gpu_event, device_of_call))
        pair = pair_numbers(correlation[rows], device)
        pair_of_gpu_event, pair_of_call = np.split(pair, [len(gpu_rows)])
        gpu_is_left = ~np.isin(pair_of_gpu_event, pair_of_call)
        call_is_left = ~np.isin(pair_of_call, pair_of_gpu_event)
        turns = _turns_of_unmatched(
            pair_of_gpu_event=pair_of_gpu_event[gpu_is_left],
            id_of_gpu_event=correlation[gpu_rows[gpu_is_left]],
            id_of_call=correlation[calls[call_is_left]],
        )
        is_left = np.concatenate((gpu_is_left, call_is_left))
        turn = np.concatenate((turns.of_gpu_events, turns.of_calls))
        # A GPU event and a call with the same id and turn get the same substitute for a device.
        device[is_left] = NONE - 1 - turn  # below all numbers of devices
        first_free_id = int(correlation.max()) + 1
        correlation[rows] = pair_numbers(correlation[rows], device) + first_free_id
        return correlation


class _Turns(NamedTuple):
    """The turns of GPU events and of calls that share an id: those with the same turn match."""

    of_gpu_events: Int64Array
    of_calls: Int64Array


def _turns_of_unmatched(
    pair_of_gpu_event: Int64Array, id_of_gpu_event: Int64Array, id_of_call: Int64Array
) -> _Turns:
    """Number the devices of each id from 0, and the calls of each id from 0.

    Args:
        pair_of_gpu_event: number of the pair of id and device of g GPU events, (g,); it ascends
            with the id, then with the device.
        id_of_gpu_event: recorded correlation id of the same events, (g,).
        id_of_call: recorded correlation id of calls, ascending, calls of an id in order of start.

    Returns:
        The turn of each GPU event and each call. If an id has more calls than devices, the surplus
        calls have the turn of the last device.
    """
    # Several GPU events of a device may have the same id: turns count pairs.
    _, first_event, pair_index = np.unique(
        pair_of_gpu_event, return_index=True, return_inverse=True
    )
    id_of_pair = id_of_gpu_event[first_event]
    turn_of_gpu_event = _turns(id_of_pair)[pair_index.reshape(-1)]
    begin = np.searchsorted(id_of_pair, id_of_call, side="left")
    end = np.searchsorted(id_of_pair, id_of_call, side="right")
    last_turn = np.maximum(end - begin - 1, 0)
    turn_of_call = np.clip(_turns(id_of_call), 0, last_turn)
    return _Turns(of_gpu_events=turn_of_gpu_event, of_calls=turn_of_call)


def _turns(ids: Int64Array) -> Int64Array:
    """Number equal ids from 0; ids ascend. Example: 5 5 7 → 0 1 0."""
    first_of_id = np.searchsorted(ids, ids)
    return np.arange(len(ids)) - first_of_id


def pair_numbers(first: Int64Array, second: Int64Array) -> Int64Array:
    """Return a number for each pair, (n,), equal for equal pairs.

    Numbers ascend with the first value of the pair, then with the second.
    """
    first_rank = _ranks(first)
    second_rank = _ranks(second)
    highest_second_rank = int(second_rank.max(initial=0))
    return first_rank * (highest_second_rank + 1) + second_rank


def _ranks(values: Int64Array) -> Int64Array:
    """Return the rank of each value among the distinct values, from 0. Example: 9 4 9 → 1 0 1."""
    _, rank = np.unique(values, return_inverse=True)
    return rank.reshape(-1)
