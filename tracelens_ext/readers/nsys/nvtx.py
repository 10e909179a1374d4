"""Reads the NVTX events of an Nsight Systems export: ranges and marks.

A range becomes a `USER_ANNOTATION` with the text of the range as its name. A range of PyTorch's
`emit_nvtx` becomes the `CPU_OP` that its text describes. Domain and category become arguments,
unless they are the default ones.
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

#: Names of the arguments for the domain and the category of an event.
DOMAIN = "NVTX domain"
CATEGORY = "NVTX category"

#: Types of events, as `ENUM_NSYS_EVENT_TYPE` numbers them in all versions of the export.
_NAMES_CATEGORY = 33
_MARK = 34
_NAMES_THREAD = 39
_PUSH_POP = 59
_START_END = 60
_NAMES_DOMAIN = 75
_NAMES_DEVICES_AND_STREAMS = (76, 97, 98, 99)
#: Events that give a name to something, and are not events of the program.
_NAMING = (_NAMES_CATEGORY, _NAMES_THREAD, _NAMES_DOMAIN) + _NAMES_DEVICES_AND_STREAMS
#: Type of an event → its category in the trace.
_CATEGORY_OF_TYPE = {
    _MARK: "nvtx_mark",
    _PUSH_POP: "nvtx_push_pop",
    _START_END: "nvtx_start_end",
}
_COLUMNS = ("start", "end", "eventType", "globalTid", "domainId", "category")
_NO_TEXT = b"(no text)"

#: Process and id of a domain, or process, domain and id of a category → its name as JSON text.
_GroupNames = dict[tuple[int, ...], bytes]


class NvtxEvents:
    """Adds the NVTX events of an export to a trace.

    Attributes:
        open_ranges: number of ranges without an end, which become events without a length.
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
            has_category = np.isin(chunk["eventType"], list(_CATEGORY_OF_TYPE))
            rows = np.flatnonzero(has_category)
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
        """Add m ranges and marks."""
        event_type = events["eventType"]
        is_mark = event_type == _MARK
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
            map_distinct_ids(event_type, self._category_codes),
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

    def _category_codes(self, event_types: Int64Array) -> list[int]:
        categories = self._builder.categories
        return [
            categories[_CATEGORY_OF_TYPE[number]] for number in event_types.tolist()
        ]

    def _chunks(
        self, *columns: str, where: Equal | None = None
    ) -> Iterator[tuple[Columns, list[bytes]]]:
        """Yield chunks of NVTX events with the text of each event.

        An event without a text of its own has the id of a string that the program registered.
        """
        own_texts = self._database.texts(NVTX, "text", where)
        for chunk in self._database.chunks(NVTX, columns + ("textId",), where):
            texts = list(islice(own_texts, len(chunk["textId"])))
            rows = [row for row, text in enumerate(texts) if not text]
            if rows:
                registered = self._database.look_up(*STRINGS, chunk["textId"][rows])
                for row, registered_text in zip(rows, registered, strict=True):
                    texts[row] = (registered_text or "").encode()
            yield chunk, [text or _NO_TEXT for text in texts]

    def _group_names(self, event_type: int, *id_columns: str) -> _GroupNames:
        """Return the names that processes gave to domains or categories.

        Args:
            event_type: the type of the events that give such names.
            id_columns: the columns that identify a domain or category within its process.
        """
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
        self, names: _GroupNames, noun: str, *key_columns: Int64Array
    ) -> Int64Array:
        """Return the code of the name of the domain or category of each event, (m,).

        The code is `NONE` for the default domain or category.

        Args:
            names: the names that processes gave.
            noun: "domain" or "category", for one without a name.
            key_columns: the parts of the keys of `names`, each (m,).
        """

        def code(*key: int) -> int:
            group_id = key[-1]
            if group_id in (MISSING, 0):
                return NONE
            name = names.get(key) or msgspec.json.encode(f"{noun} {group_id}")
            return self._builder.texts[name]

        return map_distinct_rows(code, *key_columns)
