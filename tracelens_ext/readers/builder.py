"""Collects the events that readers find and makes the `Trace`; drops and counts impossible events.

All readers go through `TraceBuilder`, so every trace has passed the same checks.
"""

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
#: Name of an argument → rows of the events that have it, and its values or codes.
Arguments = Mapping[str, tuple[IntArray, IntArray]]


#: Events with a start from the year 2116 on, a start more than 36 years before zero, or a duration
#: of more than 104 days are dropped. Up to these limits (ns) differences and ends fit in 64 bits.
#: `kineto.schema.MISSING_NS` is beyond them.
_MOST_START = 2**62
_MOST_BEFORE_ZERO = 2**60
_MOST_DURATION = 2**53
#: Events that begin more than a year (ns) from the middle event are dropped, since no recording
#: lasts that long. If most events do, it is unclear which are wrong, and the limit is ten years.
_MOST_DISTANCE = 365 * 86_400 * 10**9
#: An event with a start and end of 0 has no recorded time, unless another event begins within this
#: time (ns) of zero.
_NEAR_ZERO = 10**6
#: An event with a start of 0 and an end has no recorded start if it is longer than this (ns), and
#: no other event begins within this time.
_TOO_LONG_FROM_ZERO = 3600 * 10**9
#: The durations of a trace must add up to less than this (146 years, ns), to fit in 64 bits.
_MOST_TOTAL_DURATION = 2**62


class Interner(dict[K, int], Generic[K]):
    """Numbers distinct values from 0, in the order in which they first occur.

    `interner[value]` returns the number (code) of a value, and adds a value that is new.
    """

    def __missing__(self, value: K) -> int:
        code = len(self)
        self[value] = code
        return code

    def codes(self, values: Iterable[K], count: int) -> Int32Array:
        """Return the codes of `count` values, (count,)."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=count)


class DistinctRows(NamedTuple):
    """The distinct rows of several columns."""

    rows: list[tuple[int, ...]]  #: ascending
    row_index: Int64Array  #: for each row of the columns, its index in `rows`, (n,)


def distinct_rows(*columns: IntArray) -> DistinctRows:
    """Return the distinct rows of columns, each of shape (n,)."""
    frame = pd.DataFrame(dict(enumerate(columns)))
    groups = frame.groupby(list(frame))
    index = np.asarray(groups.ngroup(), dtype=np.int64)
    count = int(index.max(initial=-1)) + 1
    # For each distinct row, one of the rows of the columns that are equal to it.
    example = np.zeros(count, dtype=np.int64)
    example[index] = np.arange(len(index))
    values = [column[example].tolist() for column in columns]
    rows = list(zip(*values, strict=True))
    return DistinctRows(rows, index)


def map_distinct_rows(function: Callable[..., int], *columns: IntArray) -> Int64Array:
    """Return `function(*row)` for each row of columns, (n,).

    The function is called once for each distinct row.
    """
    distinct = distinct_rows(*columns)
    results = [function(*row) for row in distinct.rows]
    return np.array(results, dtype=np.int64)[distinct.row_index]


def map_distinct_ids(
    ids: IntArray, function: Callable[[Int64Array], Sequence[int]]
) -> Int64Array:
    """Return the number that a function gives for each id; shape as `ids`.

    The function is called once, with all distinct ids, and returns a number for each of them.
    """
    index, distinct_ids = pd.factorize(ids, sort=True)
    results = function(np.asarray(distinct_ids, dtype=np.int64))
    return np.array(results, dtype=np.int64)[index]


#: Columns with one number per event → their types.
_COLUMNS: Final = {
    "ts": np.int64,
    "dur": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "category": np.int32,
}


class Labels(msgspec.Struct):
    """The names of the processes and threads of a trace."""

    processes: dict[int | str, str] = {}
    process_labels: dict[int | str, str] = {}
    threads: dict[tuple[int | str, int | str], str] = {}


@dataclass(eq=False)
class _ArgumentPieces:
    """An argument, in a piece for each batch of events that was added."""

    rows: list[IntArray] = field(default_factory=list)
    values: list[IntArray] = field(default_factory=list)  #: or codes of `texts`


class TraceBuilder:
    """Collects events and makes the `Trace`.

    Attributes:
        names: names of events → the codes that `add` takes.
        threads: process and thread → code.
        categories: categories of events → code.
        texts: texts of arguments (as JSON, in bytes) → code.
        dropped: reason → number of events that were dropped for this reason.
        metadata_events: number of events that only name something.
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
        """The number of events so far, including metadata events and dropped events."""
        return self._rows + self.metadata_events + sum(self.dropped.values())

    def add(self, columns: Columns, numbers: Arguments, texts: Arguments) -> None:
        """Add m events.

        Args:
            columns: `ts` and `dur` in ns, `name`, `kind`, `thread` and `category`, each (m,). The
                begin and the end of an event may be separate, with the kinds that `begin_end.py`
                defines.
            numbers: argument → rows among these m events, and integers.
            texts: argument → rows among these m events, and codes of `texts`.
        """
        if any(find(columns).any() for find in _IMPOSSIBLE.values()):
            # Messages list the reasons in the order in which they first occur in the file.
            for reason in _IMPOSSIBLE:
                self.dropped.setdefault(reason, 0)
        for name, dtype in _COLUMNS.items():
            self._columns[name].append(columns[name].astype(dtype, copy=False))
        self._add_arguments(self._numbers, numbers)
        self._add_arguments(self._texts, texts)
        self._rows += len(columns["ts"])

    def _add_arguments(
        self, all_pieces: dict[str, _ArgumentPieces], arguments: Arguments
    ) -> None:
        for name, (rows, values) in arguments.items():
            pieces = all_pieces.setdefault(name, _ArgumentPieces())
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
        """Add m events whose arguments are columns with a value for each event.

        A negative value means that the event does not have the argument.

        Args:
            rows: `start` and `end` of each event, ns, (m,).
            name: code of `names`, (m,).
            kind: `EventKind` of each event, (m,), or of all.
            thread: code of `threads`, (m,).
            category: code of `categories`, of each event, (m,), or of all.
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
        text_arguments = {}
        for argument, codes in (texts or {}).items():
            if codes.max() >= 0:
                text_arguments[argument] = _present_values(codes)
        number_arguments = {}
        for argument, values in numbers.items():
            number_arguments[argument] = _present_values(values)
        self.add(columns, number_arguments, text_arguments)

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
        """Return the trace of all events that were added; times count from the first event.

        Args:
            path: the file as the user named it.
            format_name: what the trace reports as its format.
            bytes_read: the size of the file, decompressed.
            devices: the GPUs that the file describes.
            metadata: the other top-level members of the document.
            labels: the names of processes and threads.
            notes: sentences for the user about the file.
            unread: kind of event → number of events that were not read.
            streams_run_in_order: False if the streams of the file are hardware queues, which run
                the work of several streams side by side.

        Raises:
            TraceFormatError: the durations add up to so much that sums do not fit in 64 bits.
        """
        labels = labels or Labels()
        events = self._plausible_events()
        columns = events.columns
        args = events.args
        ts: Int64Array = columns["ts"]
        if columns["dur"].sum(dtype=np.float64) >= _MOST_TOTAL_DURATION:
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
        """Return the plausible events, and count the others as dropped.

        The columns of the builder are released.
        """
        events = self._joined_events()
        if (events.columns["kind"] >= begin_end.BEGIN).any():
            events = self._with_pairs(events)
        for reason, find in _IMPLAUSIBLE.items():
            events = self._without(events, reason, find(events.columns))
        return events

    def _joined_events(self) -> _Events:
        """Return all batches as whole columns."""
        columns = {
            name: _joined(self._columns[name], dtype)
            for name, dtype in _COLUMNS.items()
        }
        texts, new_code = _without_white_space(self.texts)
        args = {}
        for name, pieces in self._numbers.items():
            rows = _joined(pieces.rows, np.int32)
            args[name] = ArgColumn(rows, _joined(pieces.values, np.int64))
        for name, pieces in self._texts.items():
            rows = _joined(pieces.rows, np.int32)
            codes = new_code[_joined(pieces.values, np.int64)]
            args[name] = ArgColumn(rows=rows, values=codes, texts=texts)
        return _Events(columns, args)

    def _with_pairs(self, events: _Events) -> _Events:
        """Make one event of each begin and its end; drop those that have no counterpart."""
        events = self._without(events, _NO_START, _has_no_start(events.columns))
        columns = events.columns
        pairs = begin_end.find_pairs(
            kind=columns["kind"], thread=columns["thread"], ts=columns["ts"]
        )
        columns["dur"][pairs.begin] = (
            columns["ts"][pairs.end] - columns["ts"][pairs.begin]
        )
        columns["kind"][pairs.begin] -= begin_end.BEGIN
        if pairs.is_open.any():
            self.dropped[begin_end.NO_END] += int(pairs.is_open.sum())
        if pairs.is_stray.any():
            self.dropped[begin_end.NO_BEGIN] += int(pairs.is_stray.sum())
        return events.without(columns["kind"] >= begin_end.BEGIN)

    def _without(self, events: _Events, reason: str, is_bad: BoolArray) -> _Events:
        """Return the events without bad ones, which are counted as dropped."""
        if not is_bad.any():
            return events
        self.dropped[reason] += int(is_bad.sum())
        return events.without(is_bad)


@dataclass(frozen=True, eq=False)
class _Events:
    """All events of a trace as columns."""

    columns: dict[str, npt.NDArray[Any]]  #: those of `_COLUMNS`, each (n,)
    args: dict[str, ArgColumn]

    def without(self, is_dropped: BoolArray) -> _Events:
        """Return the events that are not dropped."""
        is_kept = ~is_dropped
        new_row = (np.cumsum(is_kept) - 1).astype(np.int32)
        columns = {name: column[is_kept] for name, column in self.columns.items()}
        args = {
            name: column.selected(is_kept, new_row)
            for name, column in self.args.items()
        }
        return _Events(columns, args)


def _joined(pieces: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the pieces of a column as one array, and release the pieces.

    Thus only one column at a time is in memory twice.
    """
    whole = np.concatenate([np.empty(0, dtype=dtype)] + pieces)
    pieces.clear()
    return whole


def _has_no_start(columns: Columns) -> BoolArray:
    """Return whether each event has no start time, or an implausible one, (n,)."""
    no_start: BoolArray = columns["ts"] <= -_MOST_BEFORE_ZERO
    no_start |= columns["ts"] >= _MOST_START
    return no_start


def _has_no_duration(columns: Columns) -> BoolArray:
    """Return whether each event has a negative duration, or one of months, (n,)."""
    no_duration: BoolArray = columns["dur"] < 0
    no_duration |= columns["dur"] >= _MOST_DURATION
    return no_duration


def _is_unset(columns: Columns) -> BoolArray:
    """Return whether each event has a start of 0 because its time was not recorded, (n,).

    An event without a duration has no recorded time if it is a GPU event (the GPU did not run it),
    or if no other event begins near 0. An event with a duration has no recorded start if it would
    last for hours, and no other event begins in that time.
    """
    ts = columns["ts"]
    dur = columns["dur"]
    is_zero = ts == 0
    if not is_zero.any() or is_zero.all():
        return np.zeros_like(is_zero)
    nearest_ns = int(np.abs(ts).min(where=~is_zero, initial=_MOST_START))
    is_gpu_event = np.isin(columns["kind"], model.GPU_KINDS)
    has_no_time = (nearest_ns > _NEAR_ZERO) | is_gpu_event
    is_too_long = np.minimum(dur, nearest_ns) > _TOO_LONG_FROM_ZERO
    is_unset: BoolArray = is_zero & np.where(dur == 0, has_no_time, is_too_long)
    return is_unset


def _is_years_away(columns: Columns) -> BoolArray:
    """Return whether each event begins years before or after the middle event, (n,)."""
    ts = columns["ts"]
    is_far: BoolArray = np.zeros(len(ts), dtype=bool)
    if not len(ts):
        return is_far
    span = int(ts.max()) - int(ts.min())
    if span <= _MOST_DISTANCE:
        return is_far
    middle_index = len(ts) // 2
    middle = np.partition(ts, middle_index)[middle_index]
    distance = np.abs(ts - middle)
    is_far = distance > _MOST_DISTANCE
    if 2 * np.count_nonzero(is_far) >= len(ts):
        is_far = distance > 10 * _MOST_DISTANCE
    return is_far


_NO_START: Final = "no usable start time (ts)"
#: Reason for dropping events → function that finds them. Each event by itself shows these.
_IMPOSSIBLE: Final[Mapping[str, Callable[[Columns], BoolArray]]] = {
    _NO_START: _has_no_start,
    "no usable duration (dur)": _has_no_duration,
}
#: All reasons, with those that only a comparison with the other events shows.
_IMPLAUSIBLE: Final = {
    **_IMPOSSIBLE,
    "no time collected (start and end are 0)": _is_unset,
    "a start time (ts) years away from the others": _is_years_away,
}


class _CompactTexts(NamedTuple):
    """JSON texts in their shortest form."""

    texts: list[str]  #: distinct
    new_code: Int64Array  #: code of an original text → index in `texts`


def _without_white_space(texts: Iterable[bytes]) -> _CompactTexts:
    """Return JSON texts without insignificant white space; some become equal by that."""
    distinct: Interner[str] = Interner()
    codes = []
    for text in texts:
        compact = text
        with suppress(msgspec.DecodeError, RecursionError):
            compact = msgspec.json.format(text, indent=-1)
        codes.append(distinct[compact.decode("utf-8", "replace")])
    return _CompactTexts(texts=list(distinct), new_code=np.array(codes, dtype=np.int64))


def _present_values(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows that have a value (one that is not negative), and their values."""
    rows = np.flatnonzero(values >= 0)
    return rows, values[rows]
