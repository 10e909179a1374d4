"""Extract one of the ranks that were merged into a file as a trace of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.text import one_line
from tracelens_ext.trace.corrections import corrected
from tracelens_ext.trace.merged_ranks import (
    MOST_NAMED,
    MergedRank,
    find_merged_ranks,
    is_of_processes,
    labels_of_processes,
    listed_infos,
)
from tracelens_ext.trace.trace import (
    ArgColumn,
    BoolArray,
    IntArray,
    Provenance,
    Trace,
    distributed_info,
)


def rank_of_merged_file(trace: Trace, number: int) -> Trace:
    """Return the events of one rank of a file.

    Raises:
        UsageError: the file does not contain that rank.
    """
    ranks = find_merged_ranks(trace)
    for rank in ranks:
        if rank.number == number:
            return trace_of_rank(trace, rank)
    recorded = distributed_info(trace.metadata).get("rank")
    if not ranks and recorded in (None, number):
        return trace
    numbers = ", ".join(str(rank.number) for rank in ranks[:MOST_NAMED])
    content = f"contains the ranks {numbers}" if ranks else f"is of rank {recorded}"
    raise UsageError(f"{trace.provenance.path}: {content}, not rank {number}")


def trace_of_rank(trace: Trace, rank: MergedRank) -> Trace:
    """Return the events of one rank as a trace, as if the rank had a file of its own."""
    is_kept = rank.rows
    if is_kept is None:
        is_kept = is_of_processes(trace, rank.processes)[trace.thread]
    rows = np.flatnonzero(is_kept)
    new_row = (np.cumsum(is_kept) - 1).astype(np.int32)
    start = trace.ts[rows]
    first = int(start.min(initial=2**62)) if len(rows) else 0
    names = _UsedCodes.of(trace.name[rows])
    threads = _UsedCodes.of(trace.thread[rows])
    categories = _UsedCodes.of(trace.category[rows])
    # The process of each label is spelled without it: `83` instead of `[TP00] 83`.
    labels = labels_of_processes(trace)
    spelled = {process: process for process, _ in trace.threads}
    spelled |= {process: label.process for process, label in labels.items()}
    kept_threads = [trace.threads[code] for code in threads.old_codes]
    of_rank = replace(
        trace,
        ts=start - first,
        dur=trace.dur[rows],
        name=names.new_codes,
        kind=trace.kind[rows],
        thread=threads.new_codes,
        correlation=trace.correlation[rows],
        external_id=trace.external_id[rows],
        category=categories.new_codes,
        names=[trace.names[code] for code in names.old_codes],
        threads=[(spelled[process], thread) for process, thread in kept_threads],
        categories=[trace.categories[code] for code in categories.old_codes],
        args=_arguments_of(trace.args, is_kept, new_row),
        base_ns=trace.base_ns + first,
        metadata=_metadata_of(trace.metadata, rank.number),
        process_names=_texts_of(trace.process_names, rank, spelled),
        process_labels=_texts_of(trace.process_labels, rank, spelled),
        thread_names={
            (spelled[process], thread): name
            for (process, thread), name in trace.thread_names.items()
            if process in rank.processes
        },
        provenance=_provenance_of(whole=trace.provenance, rank=rank, count=len(rows)),
        instructions=trace.instructions.selected(is_kept, new_row),
    )
    return corrected(of_rank)


class _UsedCodes(NamedTuple):
    """The codes that occur in a column, renumbered from 0 in the order of their first rows.

    A column [7, 5, 7] has the old codes [7, 5] and the new codes [0, 1, 0].
    """

    old_codes: list[int]  #: the old code of each new code
    new_codes: Any  #: the column in new codes, int32, (m,)

    @classmethod
    def of(cls, column: IntArray) -> _UsedCodes:
        """Renumber the codes of a column."""
        distinct, first, rank = np.unique(
            column, return_index=True, return_inverse=True
        )
        order = np.argsort(first, kind="stable")
        new_code_of_rank = np.empty(len(distinct), dtype=np.int32)
        new_code_of_rank[order] = np.arange(len(distinct), dtype=np.int32)
        return cls(distinct[order].tolist(), new_code_of_rank[rank])


def _arguments_of(
    args: Mapping[str, ArgColumn], is_kept: BoolArray, new_row: IntArray
) -> dict[str, ArgColumn]:
    columns = {}
    for name, column in args.items():
        selected = column.selected(is_kept, new_row)
        if len(selected.rows):
            columns[name] = selected
    return columns


def _texts_of(
    texts: Mapping[int | str, str],
    rank: MergedRank,
    spelled: Mapping[int | str, int | str],
) -> dict[int | str, str]:
    kept = {}
    for process, text in texts.items():
        if process in rank.processes:
            kept[spelled[process]] = text
    return kept


def _metadata_of(metadata: Mapping[str, object], number: int) -> dict[str, object]:
    """Return the metadata of one rank.

    If the file has the `distributedInfo` of another rank only, the result keeps what holds for all
    ranks: the size of the world, and the process groups that contain the rank.
    """
    for info in listed_infos(metadata):
        if info.get("rank") == number:
            return {**metadata, "distributedInfo": dict(info)}
    shared = dict(distributed_info(metadata))
    if shared.get("rank") != number:
        groups = shared.get("pg_config")
        if isinstance(groups, list):
            shared["pg_config"] = [
                group for group in groups if _group_contains(group, number)
            ]
        else:
            shared.pop("pg_config", None)
    return {**metadata, "distributedInfo": {**shared, "rank": number}}


def _group_contains(group: object, rank: int) -> bool:
    if not isinstance(group, dict):
        return False
    members = group.get("ranks")
    if not isinstance(members, list):
        return False
    return rank in members


def _provenance_of(whole: Provenance, rank: MergedRank, count: int) -> Provenance:
    """Return the provenance of the events of one rank.

    Dropped and unread events of the file are not known by rank; they are in the notes.
    """
    notes = list(whole.all_notes)
    label = f" ({one_line(rank.label)})" if rank.label else ""
    notes.append(
        "The file contains several ranks; these are the events of rank "
        f"{rank.number}{label}."
    )
    return replace(
        whole,
        present=count,
        metadata_events=0,
        dropped={},
        unread={},
        notes=tuple(notes),
    )
