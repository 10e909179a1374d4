"""Ranks that were merged into one file: told apart, and taken out of it as traces of their own.

Processes are labeled by those who merge (SGLang writes `[TP00] 83` and `[TP01] 83`, others
`rank 3`, `83_0`), or named so by metadata events. Without labels every process that launches GPU
work is a rank where correlation ids repeat, if it is certain which GPU is whose: ranks that stand
one after another in the file, or launches that only one of the processes can have made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.text import one_line
from tracelens_ext.trace.trace import (
    LAUNCH_KINDS,
    BoolArray,
    Int64Array,
    Trace,
)

_IN_BRACKETS: Final = re.compile(
    r"\[([^\[\]]{1,40}\d[^\[\]]{0,40})\]\s*(.*)", re.DOTALL
)
_RANK_FIRST: Final = re.compile(
    r"(rank[ _:.-]?\d{1,7})(?!\d)[\s:,/_-]*(.*)", re.DOTALL | re.IGNORECASE
)
_RANK_LAST: Final = re.compile(r"(.+)_(\d{1,7})", re.DOTALL)
_RANK: Final = re.compile(r"rank[ _:.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: A place in a kind of parallelism, such as `TP00`, `dp-1`.
_PLACE: Final = re.compile(r"([A-Za-z]+)[-_ ]?(\d{1,7})(?!\d)")
#: Kinds of parallelism that make ranks, the outermost first.
_AXES: Final = ("PP", "DP", "TP")
#: Share of the GPU events of a device that must have a launch before them in its process.
_LEAST_SHARE: Final = 0.99
#: Share of the launches of a process that must have a GPU event beside them in the file.
_LEAST_STARTED: Final = 0.9
#: Clocks of CPU and GPU may differ by this, ns.
_CLOCKS_NS: Final = 1_000_000
MOST_NAMED: Final = 8


class Label(NamedTuple):
    """What the label of a process says."""

    rank_text: str  #: `TP00-DP01`, `rank 3`
    process: int | str  #: the process without it


@dataclass(frozen=True, eq=False)
class MergedRank:
    """A rank in a file of several."""

    number: int  #: its rank
    label: str  #: what the file calls it; empty where it has no label
    processes: tuple[int | str, ...]  #: its processes, as the file spells them
    #: which events are its own, (n,), where GPUs of several ranks have the same process; None: all
    #: events of its processes
    rows: BoolArray | None = None


def find_merged_ranks(trace: Trace) -> tuple[MergedRank, ...]:
    """Return the ranks that share a file, in the order of their numbers; none of an ordinary file.

    None are returned either where it is not certain which events are of which rank.
    """
    if trace.conventions.gpu_by_process:
        return ()
    labels = labels_of_processes(trace)
    if labels:
        return _by_label(trace, labels)
    return _by_process(trace)


# By labels.


def label_of(process: int | str) -> Label | None:
    """Return the label of a process; None for a process without one."""
    if not isinstance(process, str):
        return None
    match = _IN_BRACKETS.fullmatch(process) or _RANK_FIRST.fullmatch(process)
    if match is None:
        return None
    words = match[1].split()
    number = _process_number(match[2])
    return Label(" ".join(words), number)


def _process_number(text: str) -> int | str:
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return text


def labels_of_processes(trace: Trace) -> dict[int | str, Label]:
    """Return the labels of processes, as far as they have any; none if all say the same."""
    process_of_thread = [process for process, _ in trace.threads]
    processes = list(dict.fromkeys(process_of_thread))
    labels = {}
    for process in processes:
        label = label_of(process)
        if label is None:
            label = _label_by_name(trace, process)
        if label is not None:
            labels[process] = label
    if not labels:
        labels = _labels_at_the_end(processes)
    rank_texts = {label.rank_text for label in labels.values()}
    if len(rank_texts) < 2:
        return {}
    return labels


def _label_by_name(trace: Trace, process: int | str) -> Label | None:
    """Return the label that metadata events give a process."""
    for names in (trace.process_names, trace.process_labels):
        name = names.get(process, "")
        label = label_of(name)
        if label is not None:
            return Label(label.rank_text, process)
    return None


def _labels_at_the_end(processes: Sequence[int | str]) -> dict[int | str, Label]:
    """Return the labels of processes such as `83_0`, if all have such a label."""
    labels: dict[int | str, Label] = {}
    for process in processes:
        match = _RANK_LAST.fullmatch(str(process))
        if match is None:
            return {}
        labels[process] = Label(
            rank_text=f"rank {match[2]}", process=_process_number(match[1])
        )
    return labels


def _by_label(
    trace: Trace, labels: Mapping[int | str, Label]
) -> tuple[MergedRank, ...]:
    processes_of_label: dict[str, list[int | str]] = {}
    for process, label in labels.items():
        processes_of_label.setdefault(label.rank_text, []).append(process)
    texts = [
        text
        for text, processes in processes_of_label.items()
        if _has_events_of_gpus_or_launches(trace, processes)
    ]
    if len(texts) < 2:
        return ()
    ranks = [
        MergedRank(number=number, label=text, processes=tuple(processes_of_label[text]))
        for text, number in zip(texts, _numbers_of_labels(texts), strict=True)
    ]
    return tuple(sorted(ranks, key=lambda rank: rank.number))


def _has_events_of_gpus_or_launches(
    trace: Trace, processes: Sequence[int | str]
) -> bool:
    is_of_process = is_of_processes(trace, processes)
    launches = trace.rows_of(*LAUNCH_KINDS)
    rows = np.concatenate((trace.gpu_rows, launches))
    is_row_of_process = is_of_process[trace.thread[rows]]
    return bool(is_row_of_process.any())


def _numbers_of_labels(texts: Sequence[str]) -> list[int]:
    """Return the rank of each label.

    `rank 3` is 3. Of SGLang's labels the place on the only axis is the rank; of several it counts
    on from the innermost, which is tensor parallelism. Other labels are numbered in their order.
    """
    ranks = [_RANK.search(text) for text in texts]
    if all(ranks):
        numbers = [int(match[1]) for match in ranks if match is not None]
        if len(set(numbers)) == len(numbers):
            return numbers
    places = [_places(text) for text in texts]
    for axes in (("TP",), ("PP", "TP"), _AXES, ("PP",), ("DP",), ("EP",)):
        numbers = _numbers_on_axes(places, axes)
        if len(set(numbers)) == len(texts):
            return numbers
    return list(range(len(texts)))


def _places(text: str) -> dict[str, int]:
    return {axis.upper(): int(number) for axis, number in _PLACE.findall(text)}


def _numbers_on_axes(
    places: Sequence[Mapping[str, int]], axes: Sequence[str]
) -> list[int]:
    """Return the number of each place, counted with the last axis fastest; empty without one."""
    for place in places:
        if any(axis not in place for axis in axes):
            return []
    numbers = [0] * len(places)
    for axis in axes:
        size = max(place[axis] for place in places) + 1
        numbers = [
            number * size + place[axis]
            for number, place in zip(numbers, places, strict=True)
        ]
    return numbers


# By processes.


def _by_process(trace: Trace) -> tuple[MergedRank, ...]:
    """Return the ranks of a file in which processes reuse correlation ids, if that is certain."""
    processes = _Processes(trace)
    if len(processes.hosts) < 2 or not processes.reuse_ids:
        return ()
    host_of_gpu = processes.hosts_of_gpus()
    if set(host_of_gpu.values()) != set(processes.hosts):
        return _by_place(trace, processes)
    numbers = _recorded_ranks(trace, len(processes.hosts))
    ranks = []
    for number, host in zip(numbers, processes.hosts_in_file_order, strict=True):
        codes = [host, *(gpu for gpu, owner in host_of_gpu.items() if owner == host)]
        codes += processes.others_beside(host)
        names = tuple(processes.names[code] for code in dict.fromkeys(codes))
        ranks.append(MergedRank(number=number, label="", processes=names))
    return tuple(sorted(ranks, key=lambda rank: rank.number))


def _by_place(trace: Trace, processes: _Processes) -> tuple[MergedRank, ...]:
    """Return the ranks of a file in which their events stand one after another, if they do.

    Their GPUs may have the same process, as where every rank sees one GPU, with the number 0.
    """
    host_of_row = processes.hosts_of_rows()
    if host_of_row is None:
        return ()
    numbers = _recorded_ranks(trace, len(processes.hosts))
    ranks = []
    for number, host in zip(numbers, processes.hosts_in_file_order, strict=True):
        rows = host_of_row == host
        threads = np.unique(trace.thread[rows]).tolist()
        names = dict.fromkeys(trace.threads[thread][0] for thread in threads)
        ranks.append(
            MergedRank(number=number, label="", processes=tuple(names), rows=rows)
        )
    return tuple(sorted(ranks, key=lambda rank: rank.number))


def reuses_ids(trace: Trace) -> bool:
    """Tell if processes of a trace reuse each other's correlation ids, as merged ranks do.

    Where GPU events are filed under the processes that launched them, ids count within these.
    """
    processes = _Processes(trace)
    return processes.reuse_ids and not processes.launch_on_themselves


def _recorded_ranks(trace: Trace, count: int) -> list[int]:
    """Return the ranks that `distributedInfo` lists for the parts of a file, else their places."""
    numbers = []
    for info in listed_infos(trace.metadata):
        rank = info.get("rank")
        if type(rank) is int and rank >= 0:
            numbers.append(rank)
    are_distinct = len(set(numbers)) == len(numbers)
    if are_distinct and len(numbers) == count:
        return numbers
    return list(range(count))


class _RowRange(NamedTuple):
    """From the first to the last event of a process, as rows."""

    first: int
    last: int


class _Processes:
    """The processes of a trace, which launches they make, and where they stand in the file.

    Attributes:
        names: the processes as the file spells them, by code.
        hosts: codes of those that make launches, ascending.
        reuse_ids: True if launches of two of them have the same correlation id.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.names = list(dict.fromkeys(process for process, _ in trace.threads))
        gpu_rows = trace.gpu_rows
        self._gpu_rows = gpu_rows[trace.correlation[gpu_rows] > 0]
        self._gpu_process = self._codes(self._gpu_rows)
        launches = trace.rows_of(*LAUNCH_KINDS)
        launching_processes = np.count_nonzero(np.bincount(self._codes(launches)))
        if launching_processes < 2:
            # The trace is an ordinary one, for which the rest would cost time for nothing.
            launches = launches[:0]
        else:
            ids_of_gpu = trace.correlation[self._gpu_rows]
            launches = launches[np.isin(trace.correlation[launches], ids_of_gpu)]
        order = np.lexsort((trace.ts[launches], trace.correlation[launches]))
        self._launches = launches[order]
        self._launch_process = self._codes(self._launches)
        self.hosts: list[int] = np.unique(self._launch_process).tolist()
        ids = trace.correlation[self._launches]
        is_reused = (np.diff(ids) == 0) & (np.diff(self._launch_process) != 0)
        self.reuse_ids = bool(is_reused.any())

    @property
    def launch_on_themselves(self) -> bool:
        """Tell if GPU events are filed under processes that launch."""
        return bool(np.isin(self.hosts, self._gpu_process).any())

    def _codes(self, rows: Int64Array) -> Int64Array:
        trace = self._trace
        return trace.process_of_thread[trace.thread[rows]].astype(np.int64)

    @cached_property
    def _ranges(self) -> dict[int, _RowRange]:
        codes = self._codes(np.arange(len(self._trace)))
        present, first = np.unique(codes, return_index=True)
        _, first_from_end = np.unique(codes[::-1], return_index=True)
        last = len(codes) - 1 - first_from_end
        return {
            code: _RowRange(start, end)
            for code, start, end in zip(
                present.tolist(), first.tolist(), last.tolist(), strict=True
            )
        }

    @property
    def hosts_in_file_order(self) -> list[int]:
        """The hosts in the order of their first events."""
        return sorted(self.hosts, key=lambda host: self._ranges[host].first)

    @cached_property
    def _stand_apart(self) -> bool:
        """Tell if each host's events end before the next host's begin."""
        ranges = [self._ranges[host] for host in self.hosts_in_file_order]
        return all(before.last < after.first for before, after in pairwise(ranges))

    def hosts_of_gpus(self) -> dict[int, int]:
        """Return the host of each process with GPU events; none if one of them is not certain."""
        owners = {}
        for gpu in np.unique(self._gpu_process).tolist():
            if gpu in self.hosts:
                return {}
            owner = self._host_of_gpu(gpu)
            if owner is None:
                return {}
            owners[gpu] = owner
        return owners

    def _host_of_gpu(self, gpu: int) -> int | None:
        is_of_gpu = self._gpu_process == gpu
        events = self._gpu_rows[is_of_gpu]
        possible = []
        for host in self.hosts:
            share = self._launched_share(host, events)
            if share >= _LEAST_SHARE:
                possible.append(host)
        if self._stand_apart:
            beside = self._host_beside(events)
            return beside if beside in possible else None
        if len(possible) != 1:
            return None
        return possible[0]

    def hosts_of_rows(self) -> Int64Array | None:
        """Return the host among whose events each event stands, (n,); None if that is not certain.

        Between two hosts an event is of the first, unless only the second can have launched it.
        """
        if not self._stand_apart:
            return None
        hosts = self.hosts_in_file_order
        starts = [self._ranges[host].first for host in hosts]
        rows = np.arange(len(self._trace))
        place = np.maximum(np.searchsorted(starts, rows, "right") - 1, 0)
        place_of_event = place[self._gpu_rows]
        could_launch = np.array(
            [self._could_launch(host, self._gpu_rows) for host in hosts]
        )
        next_place = np.minimum(place_of_event + 1, len(hosts) - 1)
        events = np.arange(len(self._gpu_rows))
        ends = np.array([self._ranges[host].last for host in hosts])
        is_between = self._gpu_rows > ends[place_of_event]
        belongs_to_next = is_between & ~could_launch[place_of_event, events]
        belongs_to_next &= could_launch[next_place, events]
        place_of_event = np.where(belongs_to_next, next_place, place_of_event)
        if could_launch[place_of_event, events].mean() < _LEAST_SHARE:
            return None
        place[self._gpu_rows] = place_of_event
        host_of_row = np.array(hosts, dtype=np.int64)[place]
        for host in hosts:
            if self._started_share(host, host_of_row) < _LEAST_STARTED:
                return None
        return host_of_row

    def _started_share(self, host: int, host_of_row: Int64Array) -> float:
        """Return the share of the launches of a host of which a GPU event is its own."""
        trace = self._trace
        is_launch_of_host = self._launch_process == host
        launches = self._launches[is_launch_of_host]
        is_event_of_host = host_of_row[self._gpu_rows] == host
        events = self._gpu_rows[is_event_of_host]
        has_event = np.isin(trace.correlation[launches], trace.correlation[events])
        return float(has_event.mean())

    def _launched_share(self, host: int, events: Int64Array) -> float:
        """Return the share of GPU events that a launch of a process may have started."""
        return float(self._could_launch(host, events).mean())

    def _could_launch(self, host: int, events: Int64Array) -> BoolArray:
        """Return which GPU events a launch of a process may have started, shape of `events`."""
        trace = self._trace
        is_of_host = self._launch_process == host
        launches = self._launches[is_of_host]
        ids = trace.correlation[launches]
        wanted = trace.correlation[events]
        last_place = len(ids) - 1
        place = np.minimum(np.searchsorted(ids, wanted), last_place)
        earliest_start = trace.ts[launches[place]] - _CLOCKS_NS
        could_launch: BoolArray = ids[place] == wanted
        could_launch &= trace.ts[events] >= earliest_start
        return could_launch

    def _host_beside(self, events: Int64Array) -> int:
        """Return the host among whose events in the file most of some events stand."""
        hosts = self.hosts_in_file_order
        starts = [self._ranges[host].first for host in hosts]
        hosts_begun = np.searchsorted(starts, events, "right")
        place = np.maximum(hosts_begun - 1, 0)
        most_frequent = int(np.bincount(place).argmax())
        return hosts[most_frequent]

    def others_beside(self, host: int) -> list[int]:
        """Return the processes without launches or GPU events that stand among those of a host."""
        if not self._stand_apart:
            return []
        gpus = set(np.unique(self._gpu_process).tolist())
        others = []
        for code, rows in self._ranges.items():
            if code not in self.hosts and code not in gpus:
                middle = np.array([(rows.first + rows.last) // 2])
                if self._host_beside(middle) == host:
                    others.append(code)
        return others


def is_of_processes(trace: Trace, processes: Sequence[int | str]) -> BoolArray:
    """Return which of the threads of a trace are of some processes, (len(threads),)."""
    wanted = set(processes)
    is_wanted = [process in wanted for process, _ in trace.threads]
    return np.array(is_wanted, dtype=bool)


def listed_infos(metadata: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the `distributedInfo` of the parts of a file, where it is a list."""
    listed = metadata.get("distributedInfo")
    if not isinstance(listed, list):
        return []
    return [info for info in listed if isinstance(info, dict)]


def rank_labels(ranks: Sequence[MergedRank]) -> str:
    """Return the numbers of ranks, with their labels, for a message."""
    texts = []
    for rank in ranks[:MOST_NAMED]:
        text = str(rank.number)
        label = one_line(rank.label)
        if label and not _RANK.fullmatch(label):
            text = f"{text} ({label})"
        texts.append(text)
    if len(ranks) > MOST_NAMED:
        texts.append("…")
    return ", ".join(texts)
