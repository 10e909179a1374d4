"""Builds a `Trace` from the columns of readers; impossible events are dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import ArgColumn, BoolArray, Int32Array, Int64Array, IntArray, Trace
from tracelens_ext.trace import trace as model

K = TypeVar("K", bound=Hashable)
Columns = Mapping[str, IntArray]
Arguments = Mapping[str, tuple[IntArray, IntArray]]  # rows, and values or codes


#: Times beyond these (the year 2116, 36 years before zero, 104 days; ns) are dropped. Within them
#: differences and ends fit in 64 bits. `decimals.MISSING_NS` is beyond them.
_MOST_START = 2**62
_MOST_BEFORE_ZERO = 2**60
_MOST_DURATION = 2**53
#: So is what begins farther from the middle event, as no recording lasts for a year; ten years
#: where most events do, as then nothing tells which are wrong.
_MOST_AWAY = 365 * 86_400 * 10**9
#: A time of 0 was never set, unless another event begins so soon that the trace begins there; but
#: one with an end was set, unless it lasts for hours, and nothing else begins meanwhile.
_SOON = 10**6
_HOURS = 3600 * 10**9
#: Sums of the durations of a trace, ns, fit in 64 bits below this, 146 years.
_MOST_IN_ALL = 2**62


class Interner(dict[K, int], Generic[K]):
    """Distinct values → small numbers in order of first sight; `interner[value]` adds it."""

    def __missing__(self, value: K) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[K], count: int) -> Int32Array:
        """The numbers of `count` values, shape (count,)."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=count)


def distinct_rows(*columns: IntArray) -> tuple[list[tuple[int, ...]], Int64Array]:
    """The distinct rows of columns, ascending, and every row's number among them, (n,)."""
    frame = pd.DataFrame(dict(enumerate(columns)))
    number = np.asarray(frame.groupby(list(frame)).ngroup(), dtype=np.int64)
    example = np.zeros(int(number.max(initial=-1)) + 1, dtype=np.int64)
    example[number] = np.arange(len(number))
    return list(zip(*(column[example].tolist() for column in columns), strict=True)), number


def of_rows(find: Callable[..., int], *columns: IntArray) -> Int64Array:
    """What rows of columns stand for, asked once for each distinct one, (n,)."""
    distinct, number = distinct_rows(*columns)
    return np.array([find(*row) for row in distinct], dtype=np.int64)[number]


def looked_up(ids: IntArray, find: Callable[[Int64Array], Sequence[int]]) -> Int64Array:
    """What ids stand for, asked once for each distinct one; shape as `ids`."""
    number, distinct = pd.factorize(ids, sort=True)
    return np.array(find(np.asarray(distinct, dtype=np.int64)), dtype=np.int64)[number]


#: Columns of one number an event, and their types.
_COLUMNS: Final = {
    "ts": np.int64,
    "dur": np.int64,
    "kind": np.uint8,
    **dict.fromkeys(("name", "thread", "category"), np.int32),
}


def _joined(pieces: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The whole of pieces, which are released, to have only one column in memory twice."""
    whole = np.concatenate([np.empty(0, dtype=dtype), *pieces])
    pieces.clear()
    return whole


class Labels(msgspec.Struct):
    """What a trace calls its processes and threads."""

    processes: dict[int | str, str] = {}
    process_labels: dict[int | str, str] = {}
    threads: dict[tuple[int | str, int | str], str] = {}


class TraceBuilder:
    """Collects events and makes the `Trace`.

    Attributes: interners for the codes that `add` takes, `texts` of raw texts as bytes;
    `dropped`: reason → events left out.
    """

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.threads: Interner[tuple[int | str, int | str]] = Interner()
        self.categories: Interner[str] = Interner()
        self.texts: Interner[bytes] = Interner()
        self.dropped: Counter[str] = Counter()
        self.metadata_events = 0
        self._rows = 0
        self._columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _COLUMNS}
        #: (whether it is a text, name) → pieces of rows, and of values
        self._args: dict[tuple[bool, str], tuple[list[IntArray], list[IntArray]]] = {}

    @property
    def present(self) -> int:
        """Events so far: those added, metadata, and those left out."""
        return self._rows + self.metadata_events + sum(self.dropped.values())

    def add(self, columns: Columns, numbers: Arguments, texts: Arguments) -> None:
        """Add events: `ts`, `dur` in ns, `name`, `kind`, `thread`, `category`, each shape (m,).

        An argument is (rows among these m, integers or codes of `texts`).
        """
        if any(find(columns).any() for find in _IMPOSSIBLE.values()):
            self.dropped.update(dict.fromkeys(_IMPOSSIBLE, 0))  # reasons are told as they are met
        for name, dtype in _COLUMNS.items():
            self._columns[name].append(columns[name].astype(dtype, copy=False))
        for given, is_text in ((numbers, False), (texts, True)):
            for name, (rows, values) in given.items():
                pieces = self._args.setdefault((is_text, name), ([], []))
                pieces[0].append((rows + self._rows).astype(np.int32, copy=False))
                pieces[1].append(values.astype(np.int64, copy=False))
        self._rows += len(columns["ts"])

    def add_rows(
        self,
        rows: Columns,
        name: IntArray,
        kind: IntArray | int,
        thread: IntArray,
        category: IntArray | int,
        numbers: Columns,
        texts: Columns | None = None,
    ) -> None:
        """Add rows of `start` and `end`, ns, with arguments, each (m,); negative: without one."""
        every = np.zeros(len(rows["start"]), dtype=np.int64)
        start = rows["start"]
        columns = {"ts": start, "dur": rows["end"] - start, "name": name, "kind": every + kind}
        self.add(
            {**columns, "thread": thread, "category": every + category},
            {of: _present(values) for of, values in numbers.items()},
            {of: _present(codes) for of, codes in (texts or {}).items() if codes.max() >= 0},
        )

    def finish(
        self,
        *,
        path: str,
        format_name: str,
        bytes_read: int = 0,
        devices: tuple[model.Device, ...] = (),
        metadata: Mapping[str, object] | None = None,
        labels: Labels | None = None,
        notes: tuple[str, ...] = (),
    ) -> Trace:
        """The trace of all that was added; times become relative to the first event."""
        labels = labels or Labels()
        columns = {name: _joined(self._columns[name], dtype) for name, dtype in _COLUMNS.items()}
        texts, same_text = _without_spelling(self.texts)
        args = {}
        for (is_text, name), pieces in sorted(self._args.items(), key=lambda pair: pair[0][0]):
            rows, values = map(_joined, pieces, (np.int32, np.int64))
            values = same_text[values] if is_text else values
            args[name] = ArgColumn(rows, values, texts if is_text else None)
        for reason, find in _IMPLAUSIBLE.items():
            bad = find(columns)
            if bad.any():
                self.dropped[reason] += int(bad.sum())
                columns = {name: column[~bad] for name, column in columns.items()}
                place = (np.cumsum(~bad) - 1).astype(np.int32)
                for name, column in args.items():
                    having = ~bad[column.rows]
                    rows = place[column.rows[having]]
                    values = column.values[having]
                    args[name] = ArgColumn(rows, values, column.texts)
        ts: Int64Array = columns["ts"]
        if columns["dur"].sum(dtype=np.float64) >= _MOST_IN_ALL:
            problem = "has events that last for more than a century together"
            remedy = "check the unit of its durations; Kineto's are µs"
            raise TraceFormatError(path, problem, remedy)
        base = int(ts.min()) if len(ts) else 0
        ts -= base
        dropped = {reason: count for reason, count in self.dropped.items() if count}

        return Trace(
            correlation=args.pop("correlation", model.no_arg()).dense(len(ts)),
            external_id=args.pop("External id", model.no_arg()).dense(len(ts)),
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
            provenance=model.Provenance(
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


def _unset(columns: Columns) -> BoolArray:
    """Events whose time was never set: it is 0, and no other begins near, or a GPU never did it."""
    ts = columns["ts"]
    dur = columns["dur"]
    zero = ts == 0
    if not zero.any() or zero.all():
        return np.zeros_like(zero)
    nearest = int(np.abs(ts).min(where=~zero, initial=_MOST_START))
    timeless = (nearest > _SOON) | np.isin(columns["kind"], model.GPU_KINDS)
    unset: BoolArray = zero & np.where(dur == 0, timeless, np.minimum(dur, nearest) > _HOURS)
    return unset


def _years_away(columns: Columns) -> BoolArray:
    """Events that begin years from the one in the middle."""
    ts = columns["ts"]
    if not len(ts) or int(ts.max()) - int(ts.min()) <= _MOST_AWAY:
        return np.zeros(len(ts), dtype=bool)
    away = np.abs(ts - np.partition(ts, len(ts) // 2)[len(ts) // 2])
    few = 2 * np.count_nonzero(away > _MOST_AWAY) < len(ts)
    far: BoolArray = away > (_MOST_AWAY if few else 10 * _MOST_AWAY)
    return far


#: Why events are dropped → which.
_IMPOSSIBLE: Final[Mapping[str, Callable[[Columns], BoolArray]]] = {
    "no usable start time (ts)": lambda of: (
        (of["ts"] <= -_MOST_BEFORE_ZERO) | (of["ts"] >= _MOST_START)
    ),
    "no usable duration (dur)": lambda of: (of["dur"] < 0) | (of["dur"] >= _MOST_DURATION),
}
#: And those that only the others show to be wrong.
_IMPLAUSIBLE: Final = {
    **_IMPOSSIBLE,
    "no time collected (start and end are 0)": _unset,
    "a start time (ts) years from the others": _years_away,
}


def _without_spelling(texts: Iterable[bytes]) -> tuple[list[str], Int64Array]:
    """The distinct texts without insignificant white space; and old code → new code."""
    distinct: Interner[str] = Interner()
    codes = []
    for text in texts:
        with suppress(msgspec.DecodeError, RecursionError):
            text = msgspec.json.format(text, indent=-1)
        codes.append(distinct[text.decode("utf-8", "replace")])
    return list(distinct), np.array(codes, dtype=np.int64)


def _present(values: IntArray) -> tuple[IntArray, IntArray]:
    """The rows that have a value, and the values."""
    rows = np.flatnonzero(values >= 0)
    return rows, values[rows]
