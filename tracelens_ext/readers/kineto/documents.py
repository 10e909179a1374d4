"""Reads a document of Kineto, or a list of documents with one document per rank.

The rank of a document is in its `distributedInfo`. If not all documents have a rank of their own,
the rank is the index in the list. The process 83 of rank 3 is labeled `[rank 3] 83`; by such labels
`trace/merged_ranks.py` separates the ranks again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from tracelens_ext.errors import TraceCutOffError
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.kineto import compiled_reader, reader
from tracelens_ext.readers.kineto.reader import KinetoColumns, add_events
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN, in_a_line
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.trace import Trace

#: A larger rank is damaged.
_MOST_RANKS: Final = 10**7
_HEAD_BYTES = 4096
#: The beginning of a list of documents. A list of events has other keys.
_LIST_OF_DOCUMENTS = re.compile(
    rb'[\xef\xbb\xbf\s]*\[\s*\{\s*"(?:schemaVersion|deviceProperties|distributedInfo'
    rb"|traceEvents|displayTimeUnit|baseTimeNanoseconds|record_shapes|profile_memory"
    rb"|with_stack|with_flops|with_modules|traceName|trace_id|cupti_version"
    rb'|cuda_runtime_version|cuda_driver_version)"'
)


def read(source: ByteSource) -> Trace:
    """Read a document of Kineto, or a list of documents."""
    if _LIST_OF_DOCUMENTS.match(source.peek(_HEAD_BYTES)):
        return read_documents(source, KinetoColumns(compiled_reader()))
    return reader.read(source)


def read_documents(source: ByteSource, columns: KinetoColumns) -> Trace:
    """Read a list of documents, one per rank.

    Args:
        source: the file.
        columns: collects the events.

    Raises:
        TraceCutOffError: the list is damaged or cut off.
    """
    try:
        documents = msgspec.json.decode(source.read_all(), type=list[Raw])
        heads = [_head_of(document) for document in documents]
    except (msgspec.MsgspecError, RecursionError) as error:
        problem = f"is a damaged list of traces ({in_a_line(str(error))})"
        raise TraceCutOffError(source.path, problem, REMEDY_COPY_AGAIN) from None
    ranks = _ranks_of([head.distributedInfo for head in heads])
    members: dict[str, object] = {}
    for rank, document in zip(ranks, documents, strict=True):
        columns.rank_label = f"rank {rank}"
        with ByteSource(io.BytesIO(document), reading=source.reading) as part:
            stream = EventStream(part, columns)
            for batch in stream:
                columns.add(batch)
        for name, member in stream.members.items():
            members.setdefault(name, member)
    infos = [
        {**_object_of(head.distributedInfo), "rank": rank}
        for rank, head in zip(ranks, heads, strict=True)
    ]
    members["distributedInfo"] = infos
    return columns.finish(members, source.path, source.bytes_read)


class _DocumentHead(msgspec.Struct):
    """The member of a document that is needed before its events are read."""

    distributedInfo: Any = None  # noqa: N815  # the name in the file


def _head_of(document: Raw) -> _DocumentHead:
    return msgspec.json.decode(document, type=_DocumentHead)


def _object_of(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _ranks_of(infos: Sequence[object]) -> list[int]:
    """Return the rank of each document, given its `distributedInfo`.

    If not every document has a rank of its own, the ranks are the indices of the documents.
    """
    ranks = []
    for info in infos:
        rank = _object_of(info).get("rank")
        if type(rank) is int and 0 <= rank < _MOST_RANKS:
            ranks.append(rank)
    if len(ranks) == len(infos) == len(set(ranks)):
        return ranks
    return list(range(len(infos)))


def from_documents(documents: Sequence[Mapping[str, object]], path: str) -> Trace:
    """Return the trace of a list of documents, one per rank, that are already parsed.

    Args:
        documents: the parsed documents.
        path: what messages call the list.
    """
    columns = KinetoColumns()
    ranks = _ranks_of([document.get("distributedInfo") for document in documents])
    members: dict[str, object] = {}
    infos: list[dict[str, object]] = []
    for rank, document in zip(ranks, documents, strict=True):
        columns.rank_label = f"rank {rank}"
        events = document.get("traceEvents")
        add_events(columns, events if isinstance(events, list) else [])
        for name, member in document.items():
            if name != "traceEvents":
                members.setdefault(name, member)
        infos.append({**_object_of(document.get("distributedInfo")), "rank": rank})
    members["distributedInfo"] = infos
    return columns.finish(members, path)
