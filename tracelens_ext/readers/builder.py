"""Builds a `Trace` from the columns of readers; impossible events are dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import numpy as np

from tracelens_ext.trace import NONE, ArgColumn, Device, Provenance, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from tracelens_ext.trace import Int32Array, Int64Array, IntArray

K = TypeVar("K", bound=Hashable)

#: Times beyond these (the year 2116, 36 years before zero, 104 days; ns) are dropped. Within them
#: differences and ends fit in 64 bits. `decimals.MISSING_NS` is beyond them.
_MOST_START, _MOST_BEFORE_ZERO, _MOST_DURATION = 2**62, 2**60, 2**53


class Interner(dict[K, int], Generic[K]):
    """Distinct values → small numbers in order of first sight; `interner[value]` adds it."""

    def __missing__(self, value: K) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[K], count: int) -> Int32Array:
        """The numbers of `count` values, shape (count,)."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=count)


class _Column:
    """An array that grows a piece at a time and is joined once."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._pieces: list[npt.NDArray[np.generic]] = []

    def add(self, piece: npt.NDArray[np.generic]) -> None:
        self._pieces.append(piece.astype(self._dtype, copy=False))

    def join(self) -> npt.NDArray[np.generic]:
        """The whole column; its pieces are released, to have only one column in memory twice."""
        pieces, self._pieces = self._pieces, []
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=self._dtype)


class _ArgPieces:
    def __init__(self) -> None:
        self.rows = _Column(np.int32)
        self.values = _Column(np.int64)

    def join(self, texts: list[str] | None) -> ArgColumn:
        return ArgColumn(self.rows.join(), self.values.join(), texts)  # type: ignore[arg-type]


@dataclass
class Labels:
    """What a trace calls its processes and threads."""

    processes: dict[int | str, str] = field(default_factory=dict)
    process_labels: dict[int | str, str] = field(default_factory=dict)
    threads: dict[tuple[int | str, int | str], str] = field(default_factory=dict)


class TraceBuilder:
    """Collects events and makes the `Trace`.

    Attributes:
        names, threads, categories: interners for the codes that `add` takes.
        texts: an interner for the raw texts of all text arguments, as bytes.
        dropped: reason → events left out.
    """

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.threads: Interner[tuple[int | str, int | str]] = Interner()
        self.categories: Interner[str] = Interner()
        self.texts: Interner[bytes] = Interner()
        self.dropped: Counter[str] = Counter()
        self.metadata_events = 0
        self._rows = 0
        self._columns = {
            "ts": _Column(np.int64),
            "dur": _Column(np.int64),
            "name": _Column(np.int32),
            "kind": _Column(np.uint8),
            "thread": _Column(np.int32),
            "category": _Column(np.int32),
        }
        self._numbers: dict[str, _ArgPieces] = {}
        self._texts: dict[str, _ArgPieces] = {}

    @property
    def present(self) -> int:
        """Events so far: those added, metadata, and those left out."""
        return self._rows + self.metadata_events + sum(self.dropped.values())

    def add(
        self,
        columns: Mapping[str, IntArray],
        numbers: Mapping[str, tuple[IntArray, IntArray]],
        texts: Mapping[str, tuple[IntArray, IntArray]],
    ) -> None:
        """Add events.

        Args:
            columns: `ts` and `dur` in ns, `name`, `kind`, `thread`, `category`, each shape (m,).
            numbers: argument → (rows among these m, integer values).
            texts: argument → (rows among these m, codes of `texts`).
        """
        ts, dur = columns["ts"], columns["dur"]
        timeless = (ts <= -_MOST_BEFORE_ZERO) | (ts >= _MOST_START)
        bad = timeless | (dur < 0) | (dur >= _MOST_DURATION)
        renumber: Int32Array | None = None
        if bad.any():
            self.dropped["no usable start time (ts)"] += int(timeless.sum())
            self.dropped["no usable duration (dur)"] += int((bad & ~timeless).sum())
            keep = ~bad
            columns = {name: column[keep] for name, column in columns.items()}
            renumber = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
        for name, column in columns.items():
            self._columns[name].add(column)
        for given, store in ((numbers, self._numbers), (texts, self._texts)):
            for name, (rows, values) in given.items():
                self._add_arg(store.setdefault(name, _ArgPieces()), rows, values, renumber)
        self._rows += len(columns["ts"])

    def _add_arg(
        self, pieces: _ArgPieces, rows: IntArray, values: IntArray, renumber: Int32Array | None
    ) -> None:
        if renumber is not None:
            rows = renumber[rows]
            values, rows = values[rows >= 0], rows[rows >= 0]
        pieces.rows.add(rows + self._rows)
        pieces.values.add(values)

    def finish(
        self,
        *,
        path: str,
        format_name: str,
        bytes_read: int = 0,
        devices: tuple[Device, ...] = (),
        metadata: Mapping[str, object] | None = None,
        labels: Labels | None = None,
        notes: tuple[str, ...] = (),
    ) -> Trace:
        """The trace of all that was added; times become relative to the first event."""
        labels = labels or Labels()
        columns = {name: column.join() for name, column in self._columns.items()}
        ts: Int64Array = columns["ts"]  # type: ignore[assignment]
        base = int(ts.min()) if len(ts) else 0
        ts -= base
        args = {name: pieces.join(None) for name, pieces in self._numbers.items()}
        texts, same_text = _without_spelling(self.texts)
        for name, pieces in self._texts.items():
            column = pieces.join(texts)
            args[name] = ArgColumn(column.rows, same_text[column.values], texts)
        dropped = {reason: count for reason, count in self.dropped.items() if count}
        return Trace(
            correlation=_dense(args.pop("correlation", None), len(ts)),
            external_id=_dense(args.pop("External id", None), len(ts)),
            names=list(self.names),
            threads=list(self.threads),
            categories=list(self.categories),
            args=args,
            base_ns=base,
            devices=devices,
            metadata=metadata or {},
            process_names=labels.processes,
            process_labels=labels.process_labels,
            thread_names=labels.threads,
            provenance=Provenance(
                path=path,
                format=format_name,
                bytes_read=bytes_read,
                present=len(ts) + self.metadata_events + sum(dropped.values()),
                metadata_events=self.metadata_events,
                dropped=dropped,
                notes=notes,
            ),
            **columns,  # type: ignore[arg-type]
        )


def _without_spelling(texts: Iterable[bytes]) -> tuple[list[str], Int64Array]:
    """The distinct texts without insignificant white space; and old code → new code."""
    distinct: Interner[str] = Interner()
    codes = [distinct[_compact(text)] for text in texts]
    return list(distinct), np.array(codes, dtype=np.int64)


def _compact(text: bytes) -> str:
    with suppress(msgspec.DecodeError, RecursionError):
        text = msgspec.json.format(text, indent=-1)
    return text.decode("utf-8", "replace")


def _dense(column: ArgColumn | None, length: int) -> Int64Array:
    return column.dense(length) if column else np.full(length, NONE, dtype=np.int64)
