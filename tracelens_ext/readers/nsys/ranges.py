"""NVTX of an Nsight Systems export as events: ranges, marks, and the names they give to things."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Interner, distinct_rows
from tracelens_ext.readers.nsys.places import PROCESS_SHIFT, emitted_op
from tracelens_ext.readers.sqlite_columns import MISSING
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.readers.builder import TraceBuilder
    from tracelens_ext.readers.nsys.places import Places
    from tracelens_ext.readers.nsys.sqlite import NsysDatabase
    from tracelens_ext.trace import Int32Array, Int64Array

    Names = dict[tuple[int, ...], bytes]

TABLE = "NVTX_EVENTS"
#: Numbers of `ENUM_NSYS_EVENT_TYPE`: the same in all versions of the export.
_CATEGORY, _MARK, _PUSH_POP, _START_END, _DOMAIN = 33, 34, 59, 60, 75
_NAMING = (_CATEGORY, 39, _DOMAIN, 76, 97, 98, 99)  # of threads, devices, contexts, streams too

DOMAIN, CATEGORY = "NVTX domain", "NVTX category"
_NO_TEXT = b"(no text)"
#: The trace's own word for an event's kind.
_STYLES = {_MARK: "nvtx_mark", _PUSH_POP: "nvtx_push_pop", _START_END: "nvtx_start_end"}
_KNOWN = ("name", "kind", "External id", "Sequence number", "Input Dims")
_COLUMNS = ("start", "end", "eventType", "globalTid", "domainId", "category", "textId")


class NvtxRanges:
    """Adds the NVTX events of an export to a trace.

    A range is a `USER_ANNOTATION` called by its text; one that PyTorch's `emit_nvtx` wrote is the
    `CPU_OP` that it tells of. Domain and category are arguments, where they are not the default.

    Attributes:
        open_ranges: ranges that had not ended when recording did; they are given no length.
    """

    def __init__(self, database: NsysDatabase, builder: TraceBuilder, places: Places) -> None:
        self._database = database
        self._builder = builder
        self._places = places
        self._texts = _RangeTexts(builder)
        self.open_ranges = 0

    def read(self) -> None:
        """Add all of them."""
        domains = self._named(_DOMAIN, "domainId")
        categories = self._named(_CATEGORY, "domainId", "category")
        texts = self._database.texts(TABLE, "text")
        for chunk in self._database.chunks(TABLE, _COLUMNS):
            own = list(islice(texts, len(chunk["start"])))
            naming = np.isin(chunk["eventType"], _NAMING)
            rows = np.flatnonzero(np.isin(chunk["eventType"], (_MARK, _PUSH_POP, _START_END)))
            others = len(own) - len(rows) - int(naming.sum())
            self._builder.metadata_events += int(naming.sum())
            self._builder.dropped["an NVTX event that is no range and no mark"] += others
            if not len(rows):
                continue
            if len(rows) < len(own):
                chunk = {name: column[rows] for name, column in chunk.items()}
                own = [own[row] for row in rows.tolist()]
            text = self._texts.codes(self._filled(own, chunk["textId"]))
            process = chunk["globalTid"] >> PROCESS_SHIFT
            self._add(
                chunk,
                text,
                {
                    "Input Dims": self._texts.column("Input Dims", text),
                    DOMAIN: self._group(domains, "domain", process, chunk["domainId"]),
                    CATEGORY: self._group(
                        categories, "category", process, chunk["domainId"], chunk["category"]
                    ),
                },
            )

    def _filled(self, own: Sequence[bytes | None], text_id: Int64Array) -> list[bytes]:
        """The text of each event: its own, else the registered one."""
        lacking = [at for at, text in enumerate(own) if not text]
        texts = [text or _NO_TEXT for text in own]
        found = self._database.strings(text_id[lacking]) if lacking else []
        for at, text in zip(lacking, found, strict=True):
            if text:
                texts[at] = text.encode()
        return texts

    def _named(self, event_type: int, *columns: str) -> Names:
        """What a process calls its domains or categories: (process, id …) → JSON text."""
        if "eventType" not in self._database.tables.get(TABLE, ()):
            return {}
        where = f" WHERE eventType = {event_type}"
        own = list(self._database.texts(TABLE, "text", where))
        names: Names = {}
        at = 0
        for chunk in self._database.chunks(TABLE, ("globalTid", "textId", *columns), where):
            process = (chunk["globalTid"] >> PROCESS_SHIFT).tolist()
            keys = zip(process, *(chunk[name].tolist() for name in columns), strict=True)
            texts = self._filled(own[at : at + len(process)], chunk["textId"])
            at += len(process)
            for key, text in zip(keys, texts, strict=True):
                names[key] = msgspec.json.encode(text.decode("utf-8", "replace"))
        return names

    def _group(self, names: Names, what: str, *key: Int64Array) -> Int64Array:
        """The text of each event's domain or category, `NONE` of the default one, (m,)."""
        distinct, number = distinct_rows(*key)
        codes = [
            NONE
            if ids[-1] in (MISSING, 0)
            else self._builder.texts[names.get(ids) or msgspec.json.encode(f"{what} {ids[-1]}")]
            for ids in distinct
        ]
        return np.array(codes, dtype=np.int64)[number]

    def _add(
        self, chunk: dict[str, Int64Array], text: Int32Array, arguments: dict[str, Int64Array]
    ) -> None:
        style = chunk["eventType"]
        is_open = (style != _MARK) & (chunk["end"] == MISSING)
        self.open_ranges += int(is_open.sum())
        category = np.empty(len(style), dtype=np.int64)
        for number, word in _STYLES.items():
            category[style == number] = self._builder.categories[word]
        momentary = is_open | (style == _MARK)
        chunk["end"] = np.where(momentary, chunk["start"], chunk["end"])
        name, kind, *numbers = (self._texts.column(of, text) for of in _KNOWN[:4])
        kind = np.where(style == _MARK, EventKind.INSTANT, kind)
        thread = self._places.host_threads(chunk["globalTid"])
        told = dict(zip(_KNOWN[2:], numbers, strict=False))
        self._builder.add_rows(chunk, name, kind, thread, category, told, arguments)


class _RangeTexts:
    """What is to be known of each distinct text of a range, worked out once."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._distinct: Interner[bytes] = Interner()
        self._table = np.empty((5, 0), dtype=np.int64)

    def codes(self, texts: Sequence[bytes]) -> Int32Array:
        """The number of each text, for `column`."""
        codes = self._distinct.codes(texts, len(texts))
        fresh = list(islice(self._distinct, self._table.shape[1], None))
        if fresh:
            rows = np.array(list(map(self._row, fresh)), dtype=np.int64)
            self._table = np.concatenate((self._table, rows.T), axis=1)
        return codes

    def column(self, name: str, codes: Int32Array) -> Int64Array:
        """One thing about the texts: shape as `codes`, `NONE` where there is nothing to tell."""
        column: Int64Array = self._table[_KNOWN.index(name)][codes]
        return column

    def _row(self, text: bytes) -> tuple[int, ...]:
        operation = emitted_op(text)
        if operation is None:
            return self._name(text), EventKind.USER_ANNOTATION, NONE, NONE, NONE
        name, sequence, op_id, sizes = operation
        dims = self._builder.texts[sizes] if sizes else NONE
        return self._name(name), EventKind.CPU_OP, op_id, sequence, dims

    def _name(self, text: bytes) -> int:
        return self._builder.names[text.decode("utf-8", "replace")]
