"""NVTX events of an Nsight Systems export: ranges, marks, names of domains and categories.

A range is a `USER_ANNOTATION` called by its text; one that PyTorch's `emit_nvtx` wrote is the
`CPU_OP` that it describes. Domain and category are arguments, where they are not the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from tracelens_ext.readers.builder import (
    TraceBuilder,
    map_distinct_ids,
    map_distinct_rows,
)
from tracelens_ext.readers.emitted_operations import describe_ranges
from tracelens_ext.readers.nsys.export_schema import (
    NVTX,
    PROCESS_SHIFT,
    STRINGS,
    Columns,
    Identities,
)
from tracelens_ext.readers.tables import MISSING, Equal, Tables
from tracelens_ext.trace import NONE, EventKind, Int64Array

#: The arguments of an event that have its domain and its category.
DOMAIN = "NVTX domain"
CATEGORY = "NVTX category"

#: Numbers of `ENUM_NSYS_EVENT_TYPE`: the same in all versions of the export.
_NAMES_CATEGORY = 33
_MARK = 34
_NAMES_THREAD = 39
_PUSH_POP = 59
_START_END = 60
_NAMES_DOMAIN = 75
_NAMES_DEVICES_AND_STREAMS = (76, 97, 98, 99)
_NAMING = (_NAMES_CATEGORY, _NAMES_THREAD, _NAMES_DOMAIN) + _NAMES_DEVICES_AND_STREAMS
#: The trace's own word for an event's kind.
_STYLES = {_MARK: "nvtx_mark", _PUSH_POP: "nvtx_push_pop", _START_END: "nvtx_start_end"}
_COLUMNS = ("start", "end", "eventType", "globalTid", "domainId", "category")
_NO_TEXT = b"(no text)"

#: (process, id …) of a domain or category → its name as JSON text.
_GroupNames = dict[tuple[int, ...], bytes]


class NvtxEvents:
    """Adds the NVTX events of an export to a trace.

    Attributes:
        open_ranges: ranges that have no end so far, so they get no length.
    """

    def __init__(
        self, database: Tables, builder: TraceBuilder, identities: Identities
    ) -> None:
        self._database = database
        self._builder = builder
        self._identities = identities
        self.open_ranges = 0

    def add_all(self) -> None:
        """Add all NVTX events."""
        domain_names = self._group_names(_NAMES_DOMAIN, "domainId")
        category_names = self._group_names(_NAMES_CATEGORY, "domainId", "category")
        for chunk, texts in self._chunks(*_COLUMNS):
            is_naming = np.isin(chunk["eventType"], _NAMING)
            rows = np.flatnonzero(np.isin(chunk["eventType"], list(_STYLES)))
            naming_count = int(is_naming.sum())
            other_count = len(texts) - len(rows) - naming_count
            self._builder.metadata_events += naming_count
            self._builder.dropped[
                "an NVTX event that is neither a range nor a mark"
            ] += other_count
            if len(rows):
                events = {name: column[rows] for name, column in chunk.items()}
                texts_of_events = [texts[row] for row in rows.tolist()]
                self._add(events, texts_of_events, domain_names, category_names)

    def _add(
        self,
        events: Columns,
        texts: list[bytes],
        domain_names: _GroupNames,
        category_names: _GroupNames,
    ) -> None:
        """Add ranges and marks, m of them."""
        style = events["eventType"]
        is_mark = style == _MARK
        is_open = ~is_mark & (events["end"] == MISSING)
        self.open_ranges += int(is_open.sum())
        events["end"] = np.where(is_open | is_mark, events["start"], events["end"])
        process = events["globalTid"] >> PROCESS_SHIFT
        domain = self._group_codes(domain_names, "domain", process, events["domainId"])
        category = self._group_codes(
            category_names, "category", process, events["domainId"], events["category"]
        )
        ranges = describe_ranges(texts, self._builder)
        self._builder.add_rows(
            events,
            ranges.name,
            np.where(is_mark, EventKind.INSTANT, ranges.kind),
            self._identities.cpu_threads(events["globalTid"]),
            map_distinct_ids(style, self._style_codes),
            {
                "External id": ranges.call,
                "Sequence number": ranges.sequence,
            },
            {
                "Input Dims": ranges.dims,
                DOMAIN: domain,
                CATEGORY: category,
            },
        )

    def _style_codes(self, styles: Int64Array) -> list[int]:
        return [self._builder.categories[_STYLES[style]] for style in styles.tolist()]

    def _chunks(
        self, *columns: str, where: Equal | None = None
    ) -> Iterator[tuple[Columns, list[bytes]]]:
        """Yield events, and the text of each: its own, else the registered one."""
        own_texts = self._database.texts(NVTX, "text", where)
        for chunk in self._database.chunks(NVTX, columns + ("textId",), where):
            texts = list(islice(own_texts, len(chunk["textId"])))
            rows_without = [row for row, text in enumerate(texts) if not text]
            if rows_without:
                registered = self._database.look_up(
                    *STRINGS, chunk["textId"][rows_without]
                )
                for row, registered_text in zip(rows_without, registered, strict=True):
                    texts[row] = registered_text.encode() if registered_text else None
            yield chunk, [text or _NO_TEXT for text in texts]

    def _group_names(self, event_type: int, *id_columns: str) -> _GroupNames:
        """Return what processes call their domains or categories."""
        names: _GroupNames = {}
        if "eventType" not in self._database.tables.get(NVTX, ()):
            return names
        where = Equal("eventType", event_type)
        for chunk, texts in self._chunks("globalTid", *id_columns, where=where):
            process = (chunk["globalTid"] >> PROCESS_SHIFT).tolist()
            ids = [chunk[name].tolist() for name in id_columns]
            keys = zip(process, *ids, strict=True)
            for key, text in zip(keys, texts, strict=True):
                names[key] = msgspec.json.encode(text.decode("utf-8", "replace"))
        return names

    def _group_codes(
        self, names: _GroupNames, what: str, *key: Int64Array
    ) -> Int64Array:
        """Return the text of each event's domain or category, `NONE` of the default one, (m,)."""

        def code(*ids: int) -> int:
            group_id = ids[-1]
            if group_id in (MISSING, 0):
                return NONE
            name = names.get(ids) or msgspec.json.encode(f"{what} {group_id}")
            return self._builder.texts[name]

        return map_distinct_rows(code, *key)
