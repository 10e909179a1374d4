"""Merges the traces of ranks into one file, as several programs do."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Document = dict[str, Any]


def documents_in(folder: Path) -> list[Document]:
    """The traces of ranks, with numbers as texts that `text_of` writes as they were."""
    paths = sorted(folder.glob("rank*.json.gz"))
    return [
        json.loads(gzip.decompress(path.read_bytes()), parse_float=lambda t: f"@{t}@")
        for path in paths
    ]


def text_of(document: object) -> str:
    return json.dumps(document).replace('"@', "").replace('@"', "")


def _labelled(
    documents: Sequence[Document], process: Callable[[int, Any], object]
) -> list[dict[str, Any]]:
    return [
        {**event, "pid": process(rank, event["pid"])}
        for rank, document in enumerate(documents)
        for event in document["traceEvents"]
    ]


def _with_first_members(
    documents: Sequence[Document], events: list[dict[str, Any]]
) -> Document:
    return {**documents[0], "traceEvents": events}


def as_sglang(documents: Sequence[Document]) -> Document:
    """Labels such as `[TP00]`; of other members the first rank's."""
    events = _labelled(documents, lambda rank, pid: f"[TP{rank:02d}] {pid}")
    return _with_first_members(documents, events)


def as_named_ranks(documents: Sequence[Document]) -> Document:
    events = _labelled(documents, lambda rank, pid: f"rank {rank}: {pid}")
    return _with_first_members(documents, events)


def as_process_names(documents: Sequence[Document]) -> Document:
    """Numbers as processes, which metadata events name."""
    events = _labelled(documents, lambda rank, pid: 10_000 * (rank + 1) + pid)
    pids = {event["pid"] for event in events}
    for pid in sorted(pids):
        name = {"name": f"rank {pid // 10_000 - 1} python"}
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": name})
    return _with_first_members(documents, events)


def as_numbers_at_the_end(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """A list of events whose processes and threads have the rank at their end."""
    events = _labelled(documents, lambda rank, pid: f"{pid}_{rank}")
    world = len(documents)
    for event in events:
        rank = int(event["pid"].rsplit("_", 1)[1])
        event["tid"] = event["tid"] * world + rank
    return events


def as_list_of_documents(documents: Sequence[Document]) -> list[Document]:
    return list(documents)


def as_list_of_infos(documents: Sequence[Document]) -> Document:
    """Events one after another, and `distributedInfo` of all parts."""
    events = _labelled(documents, lambda _, pid: pid)
    infos = [document["distributedInfo"] for document in documents]
    return {**documents[0], "traceEvents": events, "distributedInfo": infos}


def as_processes(documents: Sequence[Document]) -> Document:
    """Events one after another, as they are."""
    return _with_first_members(documents, _labelled(documents, lambda _, pid: pid))


MERGED: dict[str, Callable[[Sequence[Document]], object]] = {
    "sglang": as_sglang,
    "named ranks": as_named_ranks,
    "process names": as_process_names,
    "numbers at the end": as_numbers_at_the_end,
    "list of documents": as_list_of_documents,
    "list of infos": as_list_of_infos,
    "processes": as_processes,
}


def write_merged(folder: Path, form: str, path: Path) -> Path:
    """Merge the traces of a folder into a file."""
    text = text_of(MERGED[form](documents_in(folder)))
    path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    return path
