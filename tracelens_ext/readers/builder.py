"""The one door into a `Trace`: collects columns of readers, drops and counts what cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers import begin_end
from tracelens_ext.trace import (
    ArgColumn,
    BoolArray,
    Int32Array,
    Int64Array,
    IntArray,
    Trace,
)
from tracelens_ext.trace import trace as model
from tracelens_ext.trace.corrections import corrected

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
        code = len(self)
        self[value] = code
        return code

    def codes(self, values: Iterable[K], count: int) -> Int32Array:
        """Return the numbers of `count` values, shape (count,)."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=count)


class DistinctRows(NamedTuple):
    """The distinct rows of several columns."""

    rows: list[tuple[int, ...]]  #: ascending
    number: Int64Array  #: the place of each row of the columns among them, (n,)


def distinct_rows(*columns: IntArray) -> DistinctRows:
    """Return the distinct rows of columns, each of shape (n,)."""
    frame = pd.DataFrame(dict(enumerate(columns)))
    groups = frame.groupby(list(frame))
    number = np.asarray(groups.ngroup(), dtype=np.int64)
    count = int(number.max(initial=-1)) + 1
    example = np.zeros(count, dtype=np.int64)
    example[number] = np.arange(len(number))
    values = [column[example].tolist() for column in columns]
    rows = list(zip(*values, strict=True))
    return DistinctRows(rows, number)


def map_distinct_rows(find: Callable[..., int], *columns: IntArray) -> Int64Array:
    """Return what rows of columns stand for, asked once for each distinct one, (n,)."""
    distinct = distinct_rows(*columns)
    answers = [find(*row) for row in distinct.rows]
    return np.array(answers, dtype=np.int64)[distinct.number]


def map_distinct_ids(
    ids: IntArray, find: Callable[[Int64Array], Sequence[int]]
) -> Int64Array:
    """Return what ids stand for, asked once for each distinct one; shape as `ids`."""
    number, distinct = pd.factorize(ids, sort=True)
    answers = find(np.asarray(distinct, dtype=np.int64))
    return np.array(answers, dtype=np.int64)[number]


#: Columns of one number an event, and their types.
_COLUMNS: Final = {
    "ts": np.int64,
    "dur": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "category": np.int32,
}


class Labels(msgspec.Struct):
    """What a trace calls its processes and threads."""

    processes: dict[int | str, str] = {}
    process_labels: dict[int | str, str] = {}
    threads: dict[tuple[int | str, int | str], str] = {}


@dataclass(eq=False)
class _ArgumentPieces:
    """An argument, as it was added batch by batch."""

    rows: list[IntArray] = field(default_factory=list)
    values: list[IntArray] = field(default_factory=list)  #: or codes of `texts`


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
        self._columns: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in _COLUMNS
        }
        self._numbers: dict[str, _ArgumentPieces] = {}
        self._texts: dict[str, _ArgumentPieces] = {}

    @property
    def present(self) -> int:
        """Events so far: those added, metadata, and those left out."""
        return self._rows + self.metadata_events + sum(self.dropped.values())

    def add(self, columns: Columns, numbers: Arguments, texts: Arguments) -> None:
        """Add m events.

        Args:
            columns: `ts` and `dur` in ns, `name`, `kind`, `thread` and `category`, each (m,). The
                kind may be one of `begin_end`, for events of which begin and end are apart.
            numbers: argument → (rows among these m, integers).
            texts: argument → (rows among these m, codes of `texts`).
        """
        if any(find(columns).any() for find in _IMPOSSIBLE.values()):
            # so that reasons are told in the order of first sight
            for reason in _IMPOSSIBLE:
                self.dropped.setdefault(reason, 0)
        for name, dtype in _COLUMNS.items():
            self._columns[name].append(columns[name].astype(dtype, copy=False))
        self._add_arguments(self._numbers, numbers)
        self._add_arguments(self._texts, texts)
        self._rows += len(columns["ts"])

    def _add_arguments(
        self, kept: dict[str, _ArgumentPieces], given: Arguments
    ) -> None:
        for name, (rows, values) in given.items():
            pieces = kept.setdefault(name, _ArgumentPieces())
            pieces.rows.append((rows + self._rows).astype(np.int32, copy=False))
            pieces.values.append(values.astype(np.int64, copy=False))

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
        """Add m events whose arguments are full columns, negative where an event has none.

        Args:
            rows: `start` and `end` of each, ns, (m,).
            name: code of `names`, (m,).
            kind: an `EventKind`, of each or of all.
            thread: code of `threads`, (m,).
            category: code of `categories`, of each or of all.
            numbers: argument → integers, (m,).
            texts: argument → codes of `texts`, (m,).
        """
        zeros = np.zeros(len(rows["start"]), dtype=np.int64)
        columns = {
            "ts": rows["start"],
            "dur": rows["end"] - rows["start"],
            "name": name,
            "kind": zeros + kind,
            "thread": thread,
            "category": zeros + category,
        }
        given_texts = {}
        for argument, codes in (texts or {}).items():
            if codes.max() >= 0:
                given_texts[argument] = _present(codes)
        given_numbers = {
            argument: _present(values) for argument, values in numbers.items()
        }
        self.add(columns, given_numbers, given_texts)

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
        unread: Mapping[str, int] | None = None,
        streams_run_in_order: bool = True,
    ) -> Trace:
        """Return the trace of all that was added; times become relative to the first event.

        Args:
            path: the file as the user named it.
            format_name: what the reader calls the format.
            bytes_read: size of the text, decompressed.
            devices: the GPUs that the file describes.
            metadata: the other top-level members of the document.
            labels: what processes and threads are called.
            notes: what the user should know about the file, a sentence each.
            unread: kind of event → number of events of which nothing is read.
            streams_run_in_order: False where the streams of the file are hardware queues, on which
                work of several streams runs side by side.

        Raises:
            TraceFormatError: the events last so long that sums do not fit in 64 bits.
        """
        labels = labels or Labels()
        events = self._plausible_events()
        columns = events.columns
        args = events.args
        ts: Int64Array = columns["ts"]
        if columns["dur"].sum(dtype=np.float64) >= _MOST_IN_ALL:
            problem = "has events that add up to more than a century"
            remedy = "check the unit of its durations; Kineto's are µs"
            raise TraceFormatError(path, problem, remedy)
        base = 0
        if len(ts):
            base = int(ts.min())
        ts -= base
        dropped = {reason: count for reason, count in self.dropped.items() if count}

        trace = Trace(
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
                unread=dict(unread or {}),
            ),
            **columns,  # type: ignore[arg-type]
        )
        return corrected(trace, streams_run_in_order=streams_run_in_order)

    def _plausible_events(self) -> _Events:
        """Return the events that can be, and count the others; the builder is empty afterwards."""
        events = self._joined_events()
        if (events.columns["kind"] >= begin_end.BEGIN).any():
            events = self._with_pairs(events)
        for reason, find in _IMPLAUSIBLE.items():
            events = self._without(events, reason, find(events.columns))
        return events

    def _joined_events(self) -> _Events:
        """Return the batches as whole columns."""
        columns = {
            name: _joined(self._columns[name], dtype)
            for name, dtype in _COLUMNS.items()
        }
        texts, code_of_text = _without_spelling(self.texts)
        args = {}
        for name, pieces in self._numbers.items():
            rows = _joined(pieces.rows, np.int32)
            args[name] = ArgColumn(rows, _joined(pieces.values, np.int64))
        for name, pieces in self._texts.items():
            rows = _joined(pieces.rows, np.int32)
            codes = code_of_text[_joined(pieces.values, np.int64)]
            args[name] = ArgColumn(rows=rows, values=codes, texts=texts)
        return _Events(columns, args)

    def _with_pairs(self, events: _Events) -> _Events:
        """Make one event of each begin and its end; those without the other are dropped."""
        events = self._without(events, _NO_START, _has_no_start(events.columns))
        columns = events.columns
        pairs = begin_end.find_pairs(
            kind=columns["kind"], thread=columns["thread"], ts=columns["ts"]
        )
        columns["dur"][pairs.begin] = (
            columns["ts"][pairs.end] - columns["ts"][pairs.begin]
        )
        columns["kind"][pairs.begin] -= begin_end.BEGIN
        for reason, is_single in (
            (begin_end.NO_END, pairs.is_open),
            (begin_end.NO_BEGIN, pairs.is_stray),
        ):
            if is_single.any():
                self.dropped[reason] += int(is_single.sum())
        return events.without(columns["kind"] >= begin_end.BEGIN)

    def _without(self, events: _Events, reason: str, is_bad: BoolArray) -> _Events:
        """Return the events without bad ones, which are counted."""
        if not is_bad.any():
            return events
        self.dropped[reason] += int(is_bad.sum())
        return events.without(is_bad)


@dataclass(frozen=True, eq=False)
class _Events:
    """All events of a trace as columns."""

    columns: dict[str, npt.NDArray[Any]]  #: those of `_COLUMNS`, each (n,)
    args: dict[str, ArgColumn]

    def without(self, is_left_out: BoolArray) -> _Events:
        """Return the other events."""
        is_kept = ~is_left_out
        new_row = (np.cumsum(is_kept) - 1).astype(np.int32)
        columns = {name: column[is_kept] for name, column in self.columns.items()}
        args = {
            name: column.selected(is_kept, new_row)
            for name, column in self.args.items()
        }
        return _Events(columns, args)


def _joined(pieces: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the whole of pieces, which are released, to have only one column in memory twice."""
    whole = np.concatenate([np.empty(0, dtype=dtype)] + pieces)
    pieces.clear()
    return whole


def _has_no_start(columns: Columns) -> BoolArray:
    """Return which events have no start time, or one in another age."""
    no_start: BoolArray = columns["ts"] <= -_MOST_BEFORE_ZERO
    no_start |= columns["ts"] >= _MOST_START
    return no_start


def _has_no_duration(columns: Columns) -> BoolArray:
    """Return which events have a negative duration, or one of months."""
    no_duration: BoolArray = columns["dur"] < 0
    no_duration |= columns["dur"] >= _MOST_DURATION
    return no_duration


def _is_unset(columns: Columns) -> BoolArray:
    """Return which events have a time of 0 that was never set.

    No other event begins near it, or it is of a GPU, which never ran it.
    """
    ts = columns["ts"]
    dur = columns["dur"]
    is_zero = ts == 0
    if not is_zero.any() or is_zero.all():
        return np.zeros_like(is_zero)
    nearest = int(np.abs(ts).min(where=~is_zero, initial=_MOST_START))
    is_timeless = (nearest > _SOON) | np.isin(columns["kind"], model.GPU_KINDS)
    is_too_long = np.minimum(dur, nearest) > _HOURS
    is_unset: BoolArray = is_zero & np.where(dur == 0, is_timeless, is_too_long)
    return is_unset


def _is_years_away(columns: Columns) -> BoolArray:
    """Return which events begin years from the one in the middle."""
    ts = columns["ts"]
    is_far: BoolArray = np.zeros(len(ts), dtype=bool)
    if not len(ts):
        return is_far
    length = int(ts.max()) - int(ts.min())
    if length <= _MOST_AWAY:
        return is_far
    middle_place = len(ts) // 2
    middle = np.partition(ts, middle_place)[middle_place]
    distance = np.abs(ts - middle)
    is_far = distance > _MOST_AWAY
    if 2 * np.count_nonzero(is_far) >= len(ts):
        is_far = distance > 10 * _MOST_AWAY
    return is_far


_NO_START: Final = "no usable start time (ts)"
#: Why events are dropped → which.
_IMPOSSIBLE: Final[Mapping[str, Callable[[Columns], BoolArray]]] = {
    _NO_START: _has_no_start,
    "no usable duration (dur)": _has_no_duration,
}
#: And those that only the others show to be wrong.
_IMPLAUSIBLE: Final = {
    **_IMPOSSIBLE,
    "no time collected (start and end are 0)": _is_unset,
    "a start time (ts) years away from the others": _is_years_away,
}


class _PlainTexts(NamedTuple):
    """Distinct texts."""

    texts: list[str]
    code_of_text: Int64Array  #: of each of the texts that there were before


def _without_spelling(texts: Iterable[bytes]) -> _PlainTexts:
    """Return the distinct texts without insignificant white space."""
    distinct: Interner[str] = Interner()
    codes = []
    for text in texts:
        plain = text
        with suppress(msgspec.DecodeError, RecursionError):
            plain = msgspec.json.format(text, indent=-1)
        codes.append(distinct[plain.decode("utf-8", "replace")])
    return _PlainTexts(
        texts=list(distinct), code_of_text=np.array(codes, dtype=np.int64)
    )


def _present(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows that have a value, and the values."""
    rows = np.flatnonzero(values >= 0)
    return rows, values[rows]
