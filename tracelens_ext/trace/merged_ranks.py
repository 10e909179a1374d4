"""Find the ranks that were merged into one file.

Programs that merge traces label the processes (SGLang writes `[TP00] 83` and `[TP01] 83`, others
`rank 3` or `83_0`), or metadata events name the processes so.

Without labels, processes that launch GPU work are ranks if they use the same correlation ids, and
if it is certain which GPU belongs to which process: because the events of the ranks follow one
another in the file, or because only one of the processes can have made the launches.
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

# Labels of processes, with the text of the rank and the process without it as groups:
# `[TP00] 83`, `rank 3: python` and `83_0`.
_IN_BRACKETS: Final = re.compile(
    r"\[([^\[\]]{1,40}\d[^\[\]]{0,40})\]\s*(.*)", re.DOTALL
)
_RANK_FIRST: Final = re.compile(
    r"(rank[ _:.-]?\d{1,7})(?!\d)[\s:,/_-]*(.*)", re.DOTALL | re.IGNORECASE
)
_RANK_LAST: Final = re.compile(r"(.+)_(\d{1,7})", re.DOTALL)
#: The number of a rank anywhere in a text.
_RANK: Final = re.compile(r"rank[ _:.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: A position along an axis of parallelism, such as `TP00` or `dp-1`.
_PLACE: Final = re.compile(r"([A-Za-z]+)[-_ ]?(\d{1,7})(?!\d)")
#: The axes of parallelism that multiply to the number of ranks, the outermost first.
_AXES: Final = ("PP", "DP", "TP")
#: A device belongs to a process if at least this share of its GPU events has a launch there.
_LEAST_LAUNCHED: Final = 0.99
#: Ranks follow one another if this share of the launches of each has a GPU event in its part.
_LEAST_STARTED: Final = 0.9
#: A GPU event may seem to start this much before its launch, as clocks differ, ns.
_CLOCK_TOLERANCE_NS: Final = 1_000_000
#: The most ranks that a message names.
MOST_NAMED: Final = 8


class Label(NamedTuple):
    """The label of a process, in parts."""

    rank_text: str  #: `TP00-DP01`, `rank 3`
    process: int | str  #: the process without the label


@dataclass(frozen=True, eq=False)
class MergedRank:
    """One of the ranks in a file."""

    number: int  #: the number of the rank
    label: str  #: the label of its processes in the file; empty if they have none
    processes: tuple[int | str, ...]  #: its processes, as the file spells them
    #: True for each event of the rank, (n,); None if the rank has all events of its processes
    rows: BoolArray | None = None


def find_merged_ranks(trace: Trace) -> tuple[MergedRank, ...]:
    """Return the ranks that share a file, in the order of their numbers.

    The result is empty for an ordinary file, and if it is not certain which events belong to which
    rank.
    """
    if trace.conventions.gpu_by_process:
        return ()
    labels = labels_of_processes(trace)
    if labels:
        return _by_label(trace, labels)
    return _by_process(trace)


# By labels.


def label_of(process: int | str) -> Label | None:
    """Return the label of a process, or of a name of it; None if there is no label."""
    if not isinstance(process, str):
        return None
    match = _IN_BRACKETS.fullmatch(process) or _RANK_FIRST.fullmatch(process)
    if match is None:
        return None
    words = match[1].split()
    return Label(" ".join(words), _process_number(match[2]))


def _process_number(text: str) -> int | str:
    """Return the number in a text that fits in 64 bits, else the text."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return text


def labels_of_processes(trace: Trace) -> dict[int | str, Label]:
    """Return the labels of processes that have one; empty if all labels name the same rank."""
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
        labels = _labels_of_suffixes(processes)
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


def _labels_of_suffixes(processes: Sequence[int | str]) -> dict[int | str, Label]:
    """Return the labels of processes such as `83_0`; empty unless all have such a suffix."""
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
        if _have_launches_or_gpu_events(trace, processes)
    ]
    if len(texts) < 2:
        return ()
    ranks = [
        MergedRank(number=number, label=text, processes=tuple(processes_of_label[text]))
        for text, number in zip(texts, _numbers_of_labels(texts), strict=True)
    ]
    return tuple(sorted(ranks, key=lambda rank: rank.number))


def _have_launches_or_gpu_events(trace: Trace, processes: Sequence[int | str]) -> bool:
    is_of_process = is_of_processes(trace, processes)
    launches = trace.rows_of(*LAUNCH_KINDS)
    rows = np.concatenate((trace.gpu_rows, launches))
    is_row_of_process = is_of_process[trace.thread[rows]]
    return bool(is_row_of_process.any())


def _numbers_of_labels(texts: Sequence[str]) -> list[int]:
    """Return the rank of each label.

    `rank 3` is rank 3. SGLang's labels have a position along one axis of parallelism or several;
    with several axes, ranks count up along the innermost one (tensor parallelism) first: of
    `PP1-TP0` in a world of two times two, the rank is 2. Other labels are numbered in their order.
    """
    ranks = [_RANK.search(text) for text in texts]
    if all(ranks):
        numbers = [int(match[1]) for match in ranks if match is not None]
        if len(set(numbers)) == len(numbers):
            return numbers
    positions = [_positions_on_axes(text) for text in texts]
    for axes in (("TP",), ("PP", "TP"), _AXES, ("PP",), ("DP",), ("EP",)):
        numbers = _numbers_on_axes(positions, axes)
        if len(set(numbers)) == len(texts):
            return numbers
    return list(range(len(texts)))


def _positions_on_axes(text: str) -> dict[str, int]:
    """Return the position along each axis that a label names: `TP00-DP01` → TP 0, DP 1."""
    return {axis.upper(): int(number) for axis, number in _PLACE.findall(text)}


def _numbers_on_axes(
    positions: Sequence[Mapping[str, int]], axes: Sequence[str]
) -> list[int]:
    """Return the rank of each position, counted up along the last axis first.

    The result is empty if a position lacks an axis.
    """
    for position in positions:
        if any(axis not in position for axis in axes):
            return []
    numbers = [0] * len(positions)
    for axis in axes:
        size = max(position[axis] for position in positions) + 1
        numbers = [
            number * size + position[axis]
            for number, position in zip(numbers, positions, strict=True)
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
        return _by_part_of_file(trace, processes)
    numbers = _recorded_ranks(trace, len(processes.hosts))
    ranks = []
    for number, host in zip(numbers, processes.hosts_in_file_order, strict=True):
        codes = [host]
        codes += [gpu for gpu, owner in host_of_gpu.items() if owner == host]
        codes += processes.others_beside(host)
        names = tuple(processes.names[code] for code in dict.fromkeys(codes))
        ranks.append(MergedRank(number=number, label="", processes=names))
    return tuple(sorted(ranks, key=lambda rank: rank.number))


def _by_part_of_file(trace: Trace, processes: _Processes) -> tuple[MergedRank, ...]:
    """Return the ranks of a file if the events of one rank follow those of another.

    The GPUs of the ranks may have the same process: if every rank sees one GPU, its number is 0.
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
    """Return True if processes of a trace reuse each other's correlation ids, as merged ranks do.

    A trace whose GPU events belong to the launching processes is no such trace: there, ids are
    unique within a process only.
    """
    processes = _Processes(trace)
    return processes.reuse_ids and not processes.launch_on_themselves


def _recorded_ranks(trace: Trace, count: int) -> list[int]:
    """Return the ranks in the `distributedInfo` of a file's parts, else 0 to count - 1."""
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
    """The rows of the first and the last event of a process."""

    first: int
    last: int


class _Processes:
    """The processes of a trace: which launches they make, and where in the file their events are.

    A process is identified by its code in `Trace.process_of_thread`. A host is a process that makes
    launches.

    Attributes:
        names: the name of each process as the file spells it, by code.
        hosts: the codes of the hosts, ascending.
        reuse_ids: True if launches of two hosts have the same correlation id.
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
            # This is an ordinary trace. Without launches, the work below takes no time.
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
        """True if GPU events belong to the processes that launched them."""
        return bool(np.isin(self.hosts, self._gpu_process).any())

    def _codes(self, rows: Int64Array) -> Int64Array:
        """Return the process of each event."""
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
        """True if all events of a host come before those of the next host in the file."""
        ranges = [self._ranges[host] for host in self.hosts_in_file_order]
        return all(before.last < after.first for before, after in pairwise(ranges))

    def hosts_of_gpus(self) -> dict[int, int]:
        """Return the host of each process with GPU events; empty if any of them is uncertain."""
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
        """Return the host that launched the events of a process; None if that is uncertain."""
        is_of_gpu = self._gpu_process == gpu
        events = self._gpu_rows[is_of_gpu]
        possible = []
        for host in self.hosts:
            share = self._launched_share(host, events)
            if share >= _LEAST_LAUNCHED:
                possible.append(host)
        if self._stand_apart:
            beside = self._host_beside(events)
            return beside if beside in possible else None
        if len(possible) != 1:
            return None
        return possible[0]

    def hosts_of_rows(self) -> Int64Array | None:
        """Return the host of each event by its place in the file, (n,); None if that is uncertain.

        An event between the events of two hosts belongs to the first, unless only the second can
        have launched it.
        """
        if not self._stand_apart:
            return None
        hosts = self.hosts_in_file_order
        starts = [self._ranges[host].first for host in hosts]
        rows = np.arange(len(self._trace))
        # The part of the file, an index into `hosts`, that each event is in.
        part = np.maximum(np.searchsorted(starts, rows, "right") - 1, 0)
        part_of_event = part[self._gpu_rows]
        # Whether each host could have launched each GPU event, (hosts, events).
        could_launch = np.array(
            [self._could_launch(host, self._gpu_rows) for host in hosts]
        )
        next_part = np.minimum(part_of_event + 1, len(hosts) - 1)
        events = np.arange(len(self._gpu_rows))
        ends = np.array([self._ranges[host].last for host in hosts])
        is_between = self._gpu_rows > ends[part_of_event]
        belongs_to_next = is_between & ~could_launch[part_of_event, events]
        belongs_to_next &= could_launch[next_part, events]
        part_of_event = np.where(belongs_to_next, next_part, part_of_event)
        if could_launch[part_of_event, events].mean() < _LEAST_LAUNCHED:
            return None
        part[self._gpu_rows] = part_of_event
        host_of_row = np.array(hosts, dtype=np.int64)[part]
        for host in hosts:
            if self._started_share(host, host_of_row) < _LEAST_STARTED:
                return None
        return host_of_row

    def _started_share(self, host: int, host_of_row: Int64Array) -> float:
        """Return the share of a host's launches that have a GPU event of the same host."""
        trace = self._trace
        is_launch_of_host = self._launch_process == host
        launches = self._launches[is_launch_of_host]
        is_event_of_host = host_of_row[self._gpu_rows] == host
        events = self._gpu_rows[is_event_of_host]
        has_event = np.isin(trace.correlation[launches], trace.correlation[events])
        return float(has_event.mean())

    def _launched_share(self, host: int, events: Int64Array) -> float:
        """Return the share of GPU events that a launch of a host may have started."""
        return float(self._could_launch(host, events).mean())

    def _could_launch(self, host: int, events: Int64Array) -> BoolArray:
        """Return True for GPU events that a host may have launched, shape of `events`."""
        trace = self._trace
        is_of_host = self._launch_process == host
        launches = self._launches[is_of_host]
        # Launches are sorted by id, then by time: the search finds the first one with each id.
        launch_ids = trace.correlation[launches]
        event_ids = trace.correlation[events]
        found = np.searchsorted(launch_ids, event_ids)
        found = np.minimum(found, len(launch_ids) - 1)
        earliest_start = trace.ts[launches[found]] - _CLOCK_TOLERANCE_NS
        could_launch: BoolArray = launch_ids[found] == event_ids
        could_launch &= trace.ts[events] >= earliest_start
        return could_launch

    def _host_beside(self, events: Int64Array) -> int:
        """Return the host whose part of the file has the most of some events."""
        hosts = self.hosts_in_file_order
        starts = [self._ranges[host].first for host in hosts]
        hosts_so_far = np.searchsorted(starts, events, "right")
        part = np.maximum(hosts_so_far - 1, 0)
        most_frequent = int(np.bincount(part).argmax())
        return hosts[most_frequent]

    def others_beside(self, host: int) -> list[int]:
        """Return processes without launches and GPU events whose events are in a host's part."""
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
    """Return True for each thread of a trace that belongs to the processes, (len(threads),)."""
    wanted = set(processes)
    is_wanted = [process in wanted for process, _ in trace.threads]
    return np.array(is_wanted, dtype=bool)


def listed_infos(metadata: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the `distributedInfo` of the parts of a file; empty unless it is a list."""
    listed = metadata.get("distributedInfo")
    if not isinstance(listed, list):
        return []
    return [info for info in listed if isinstance(info, dict)]


def rank_labels(ranks: Sequence[MergedRank]) -> str:
    """Return the numbers of ranks with their labels, as text for a message."""
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
