"""What holds of every file there is, broken or not; each function raises when it does not."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import os
import pickle
import sqlite3
from contextlib import ExitStack, closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from tests.support.make_trace import rows_read
from tracelens_ext.errors import TraceError, TracelensError
from tracelens_ext.readers import json_events, read_trace
from tracelens_ext.readers.kineto import PURE_PYTHON
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelens_ext.trace import Trace

SMALL_SLICE = 64


def accounted_for(trace: Trace) -> None:
    """Check that no event is lost without a reason, and that the trace is consistent."""
    made = trace.provenance
    assert made.present == len(trace) + made.metadata_events + sum(
        made.dropped.values()
    )
    assert all(count > 0 for count in made.dropped.values())
    assert not len(trace) or int(trace.ts.min()) == 0
    assert (trace.dur >= 0).all()
    assert (trace.end >= trace.ts).all()
    for column in trace.args.values():
        assert (np.diff(column.rows) > 0).all()
        assert not len(column.rows) or column.rows[-1] < len(trace)
    for name in trace.names:
        name.encode()


def gpu_time_is_that_of(data: bytes, suffix: str, trace: Trace) -> None:
    """The GPU time of a trace of which nothing was dropped is that which other means sum up."""
    if trace.provenance.dropped or trace.provenance.notes:
        return
    expected = _GPU_TIMES[suffix](data)
    if expected is not None:
        low, high = expected
        assert low <= int(trace.dur[trace.gpu_rows].sum()) <= high


def _gpu_time_of_json(data: bytes) -> tuple[int, int] | None:
    """The least and the most that the durations add up to, ns; None if they are unusual."""
    try:
        document = json.loads(
            data, parse_float=Decimal, object_pairs_hook=_each_key_once
        )
        events = document["traceEvents"] if isinstance(document, dict) else document
        if not any("cat" in event for event in events):
            # JAX's for viewers: what is GPU work, the names of its lines say
            return None
        found = [
            event["dur"]
            for event in events
            if str(event.get("cat")).lower() in ("kernel", "gpu_memcpy", "gpu_memset")
            and event.get("ph") == "X"
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not all(type(each) in (int, Decimal) for each in found):
        return None
    total = int(sum(found) * 1000)
    return total - len(found), total + len(found)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary; for a repeated key, `json` would keep only the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _gpu_time_of_database(data: bytes) -> tuple[int, int] | None:
    total = 0
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.deserialize(data)
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            for (name,) in connection.execute(query).fetchall():
                if str(name).startswith(_GPU_TABLES):
                    table = str(name).replace('"', '""')
                    query = f'SELECT start, "end" FROM "{table}" NOT INDEXED'  # noqa: S608
                    total += sum(
                        end - start for start, end in connection.execute(query)
                    )
        except (sqlite3.Error, TypeError, UnicodeError, OverflowError):
            return None
    return total, total


def _gpu_time_of_results(data: bytes) -> tuple[int, int] | None:
    """What SQL says of rocprof's own databases: kernels are in KERN where OPS has none."""
    times = 'SELECT BeginNs, EndNs FROM "{}" NOT INDEXED'
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.deserialize(data)
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND typeof(sql) = 'text'"
            tables = {name for (name,) in connection.execute(query)}
            found: list[tuple[Any, Any]] = []
            for name in ("OPS", "KERN", "COPY"):
                if name in tables and not (name == "KERN" and found):
                    found += connection.execute(times.format(name)).fetchall()
        except (sqlite3.Error, UnicodeError):
            return None
    if not all(type(each) is int for both in found for each in both):
        return None
    total = sum(end - begin for begin, end in found)
    return total, total


def _gpu_time_of_table(data: bytes) -> tuple[int, int] | None:
    try:
        rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
        if not rows or "Kernel_Name" not in rows[0]:
            return None
        total = sum(
            int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows
        )
    except (ValueError, LookupError, TypeError, csv.Error):
        return None
    return total, total


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of the fields of a protobuf message."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place = place + 1
            value = value | (byte & 0x7F) << shift
            shift = shift + 7
            if byte < 0x80:
                return value & (1 << 64) - 1

    while place < len(data):
        key = varint()
        if not key & 7:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        if key & 7 not in (1, 2, 5) or place + size > len(data):
            raise IndexError
        place += size
        yield key >> 3, data[place - size : place]


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    return (
        value
        for key, value in _fields(data)
        if key == number and isinstance(value, bytes)
    )


def _gpu_time_of_profile(data: bytes) -> tuple[int, int] | None:
    """What events of GPU planes with a `correlation_id` add up to, ns; picoseconds are rounded."""
    total = count = 0
    try:
        for plane in _messages(data, 1):
            if not b"".join(_messages(plane, 2)).startswith(b"/device:GPU"):
                continue
            stats = [dict(_fields(each)) for each in _messages(plane, 5)]
            linking = [each[1] for each in stats if b"correlation_id" in each[2]]
            for line in _messages(plane, 3):
                for event in _messages(line, 4):
                    told = [dict(_fields(stat)).get(1) for stat in _messages(event, 4)]
                    if any(stat in linking for stat in told):
                        total += int(dict(_fields(event)).get(3, 0))
                        count += 1
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return total // 1000 - count, total // 1000 + count


def _gpu_time_of_perfetto(data: bytes) -> tuple[int, int] | None:
    """What slices of kernels and copies last whose categories are inline, ns."""
    total = 0
    opened = dict[object, list[tuple[int, bool]]]()
    try:
        for packet in map(dict, map(_fields, _messages(data, 1))):
            if isinstance(packet.get(11), bytes):
                event = dict(_fields(packet[11]))
                if 3 in event or (
                    event.get(9) == 1 and event.get(22) not in _KNOWN_CATEGORIES
                ):
                    return None  # an interned category, or a damaged one
                stack = opened.setdefault(event.get(11), [])
                if event.get(9) == 1:
                    stack.append((packet[8], event.get(22) != b"cpu_op"))
                elif event.get(9) == 2 and stack:
                    start, of_gpu = stack.pop()
                    total += of_gpu * (packet[8] - start)
    except (IndexError, TypeError, ValueError, LookupError):
        return None
    return total, total


_KNOWN_CATEGORIES = (b"kernel", b"gpu_memcpy", b"cpu_op")
_GPU_TABLES = (
    "rocpd_kernel_dispatch",
    "rocpd_memory_copy",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
_GPU_TIMES: dict[str, Callable[[bytes], tuple[int, int] | None]] = {
    ".json": _gpu_time_of_json,
    ".sqlite": _gpu_time_of_database,
    ".db": _gpu_time_of_database,
    "_kernel_trace.csv": _gpu_time_of_table,
    ".pftrace": _gpu_time_of_perfetto,
    ".xplane.pb": _gpu_time_of_profile,
    ".csv": lambda _: None,  # what it sums up is not durations of events
    "results.db": _gpu_time_of_results,
}


def what_was_read(trace: Trace) -> tuple[object, ...]:
    """Return the whole content of a trace in a form that can be compared."""
    made = trace.provenance
    # NaN is no equal of itself; as text it is
    rows = json.dumps(rows_read(trace), sort_keys=True)
    labels = trace.process_names, trace.process_labels, trace.thread_names
    return rows, dict(made.dropped), made.metadata_events, made.present, labels


def result_of(
    data: bytes,
    *,
    allow_truncated: bool = False,
    slice_bytes: int | None = None,
    oracle: str = ".json",
) -> Any:
    """What reading a file gives: all that was read, or which error.

    Any error but our own goes on to the caller.
    """
    with ExitStack() as stack:
        if slice_bytes is not None:
            stack.enter_context(
                mock.patch.object(json_events, "SLICE_BYTES", slice_bytes)
            )
        try:
            trace = read_trace(
                io.BytesIO(data),
                reading=ReadingOptions(allow_truncated=allow_truncated),
            )
        except TraceError as error:
            message = str(error)
            assert "\n" not in message, message
            assert "; " in message, message
            return type(error).__name__, message
    accounted_for(trace)
    gpu_time_is_that_of(data, oracle, trace)
    return what_was_read(trace)


def readers_agree(data: bytes, slice_bytes: int, *, allow_truncated: bool) -> None:
    """The compiled reader and Python's give the same trace, or the same error."""
    found = []
    for pure in ("", "1"):
        with (
            mock.patch.dict(os.environ, {PURE_PYTHON: pure}),
            mock.patch.object(json_events, "SLICE_BYTES", slice_bytes),
        ):
            found.append(_trace_or_error(data, allow_truncated=allow_truncated))
    assert_same(*found)


def _trace_or_error(data: bytes, *, allow_truncated: bool) -> Trace | tuple[str, str]:
    try:
        return read_trace(
            io.BytesIO(data), reading=ReadingOptions(allow_truncated=allow_truncated)
        )
    except TraceError as error:
        return type(error).__name__, str(error)


def assert_same(one: object, other: object) -> None:
    """Check that all fields are equal, including orders and types of arrays."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict)
        assert list(map(repr, one)) == list(map(repr, other))
        for a, b in zip(one.values(), other.values(), strict=True):
            assert_same(a, b)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert repr(one) == repr(other)


def reading_is_safe_and_steady(data: bytes) -> None:
    """Check for TraceErrors only, complete counts, and the same result in slices and gzipped."""
    whole = result_of(data)
    _same(result_of(data, slice_bytes=SMALL_SLICE), whole, data)
    if not _is_gzipped(data):
        _same(result_of(gzip.compress(data, 1, mtime=0)), whole, data)


def salvage_is_safe_and_steady(data: bytes) -> None:
    """As without, and what can be read whole is read whole."""
    whole = result_of(data)
    saved = result_of(data, allow_truncated=True)
    if not _is_error(whole):
        _same(saved, whole, data)
    _same(result_of(data, allow_truncated=True, slice_bytes=SMALL_SLICE), saved, data)


def _is_gzipped(data: bytes) -> bool:
    return data.startswith(b"\x1f\x8b")


def _is_error(result: tuple[object, ...]) -> bool:
    return len(result) == 2


def _same(result: tuple[object, ...], other: tuple[object, ...], data: bytes) -> None:
    """Two ways of reading give the same, errors too.

    Of a damaged gzip stream, how much is unpacked before the damage shows depends on how much is
    asked for at a time; so which of its errors comes first does.
    """
    if _is_gzipped(data) and (_is_error(result) or _is_error(other)):
        return
    assert result == other


def a_report_is_safe(data: bytes) -> None:
    """All tables of a whole report, and its texts: a result or one of our errors."""
    from tracelens_ext import TreePerfAnalyzer
    from tracelens_ext.perf_report import build_perf_report
    from tracelens_ext.report.writing import OutputFormat, report_text

    try:
        trace = read_trace(io.BytesIO(data))
        analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
        report = build_perf_report(analyzer, short_kernel_study=True, gaps=True)
    except TracelensError:
        return
    json.loads("".join(report_text(report, OutputFormat.json)))
    "".join(report_text(report, OutputFormat.markdown)).encode()


def a_file_is_safe(suffix: str) -> Callable[[bytes], None]:
    """A property: a file of a name that ends so is a trace, or one of our errors."""

    def check(data: bytes) -> None:
        def check_file(path: Path) -> None:
            trace = read_trace(path)
            accounted_for(trace)
            gpu_time_is_that_of(data, suffix, trace)

        _load(data, suffix, check_file)

    return check


def a_nsys_report_is_safe(data: bytes) -> None:
    """A report of Nsight Systems, whole or salvaged: the same by both decoders, or our error."""
    for allow_truncated in (False, True):
        result_of(data, allow_truncated=allow_truncated, oracle=".csv")
        readers_agree(data, SMALL_SLICE, allow_truncated=allow_truncated)


def a_profile_is_safe(data: bytes) -> None:
    """A profile of JAX, whole or salvaged: a trace with all its tables, or one of our errors."""
    result_of(data, oracle=".xplane.pb"), result_of(data, allow_truncated=True)
    a_report_is_safe(data)


def a_snapshot_is_safe(data: bytes) -> None:
    """A snapshot of an allocator: its tables, which hold all memory, or one of our errors."""
    from tracelens_ext.analysis.memory.snapshot import read_snapshot
    from tracelens_ext.analysis.memory.snapshot_tables import snapshot_tables

    def check(path: Path) -> None:
        segments = snapshot_tables(read_snapshot(path))["memory_segments"]
        expected = _reserved(data)
        assert expected is None or int(segments["total_bytes"].sum()) == expected

    _load(data, ".pickle", check)


class _Plain(pickle.Unpickler):
    """Numbers, texts, lists and dictionaries alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _reserved(data: bytes) -> int | None:
    """The bytes of all segments of a snapshot."""
    try:
        content = _Plain(io.BytesIO(data)).load()
        sizes = [segment["total_size"] for segment in content["segments"]]
    except Exception:  # noqa: BLE001  # damaged pickles raise anything
        return None
    return sum(sizes) if all(type(size) is int for size in sizes) else None


def statistics_tables_are_safe(data: bytes) -> None:
    """A table of `nsys stats`: its totals, or one of our errors."""
    from tracelens_ext.analysis.nsys_statistics.totals import (
        kernel_totals,
        memory_totals,
    )

    _load(data, ".csv", kernel_totals)
    _load(data, ".csv", memory_totals)


def configurations_are_safe(data: bytes) -> None:
    """A configuration or a class map, JSON with comments: what it says, or one of our errors."""
    from tracelens_ext.analysis.nsys_statistics.configuration import (
        load_class_map,
        load_configuration,
    )

    _load(data, ".json", load_configuration)
    _load(data, ".json", load_class_map)


def rules_are_safe(data: bytes) -> None:
    """A rule pack in TOML: a pack, or one of our errors."""
    from tracelens_ext.categorize.rule_files import load_pack

    _load(data, ".toml", load_pack)


def maps_are_safe(data: bytes) -> None:
    """An engine/model map in JSON: packs, or one of our errors."""
    from tracelens_ext.categorize.maps import load_map_file

    _load(data, ".json", load_map_file)


def a_cache_file_is_safe(data: bytes) -> None:
    """A file of columns: what it says, or that it is damaged."""
    from tracelens_ext.readers.cache.file import DamagedFileError, read_columns

    try:
        _load(data, ".columns", read_columns)
    except (DamagedFileError, KeyError, TypeError, ValueError, AttributeError):
        return  # what `TraceCache` takes for a damaged entry


def _load(data: bytes, suffix: str, load: Callable[..., Any]) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{suffix}"
        path.write_bytes(data)
        try:
            load(path)
        except TracelensError as error:
            assert "\n" not in str(error), str(error)
