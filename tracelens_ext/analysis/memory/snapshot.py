"""Snapshots of PyTorch's CUDA allocator, as `torch.cuda.memory._dump_snapshot` pickles them.

A snapshot has the segments with their blocks at the end, and for each device the last events before
it. Format: `torch/csrc/cuda/memory_snapshot.cpp`. A block is held from `alloc` to `free_completed`;
sizes are those asked for. Nothing in the file is run: only plain containers, texts and numbers are
unpickled.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from tracelens_ext.analysis.memory.events import MemoryEvents
from tracelens_ext.analysis.memory.usage import BEFORE, blocks_of, by_owner
from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable, one_line
from tracelens_ext.trace import NONE, NS_PER_MS, Int64Array
from tracelens_ext.trace.grouping import percent, sums

NO_FRAME = "(no frame)"
_REMEDY: Final = "record it with torch.cuda.memory._dump_snapshot('snapshot.pickle')"
_MOST: Final = 2**48
_FREES: Final = "free_completed"
_NOT_USERS: Final = re.compile(r"(?:^|[/\\])(?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*)[/\\]")
#: What unpickling may take beyond what is in use: so much, and so many times the file.
_ROOM = 2**28
_TIMES = 60


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a snapshot tells."""

    path: str
    #: allocations and frees. What was held before the first event is allocated before it.
    events: MemoryEvents
    frame: Int64Array  #: who allocated, index into `frames`, of each event, (k,)
    frames: list[str]
    recorded: np.ndarray  #: whether the file has each event, (k,)
    #: (device, type, stream, total, allocated, active, requested) of each segment
    segments: list[tuple[int, str, int, int, int, int]]
    iterations: dict[int, Int64Array]  #: device → ns when a step of the profiler began, ascending
    dropped: int  #: events without a usable size, address or time


def is_snapshot(path: str | os.PathLike[str]) -> bool:
    """Whether a file may be a pickle, by its name or its first byte."""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((".pickle", ".pkl")):
        return True
    with suppress(OSError), Path(path).open("rb") as file:
        head = file.read(2)
        return head[:1] == b"\x80" and head[1:] <= b"\x05"
    return False


class _Plain(pickle.Unpickler):
    """Makes containers, texts and numbers, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  # as the base class
        raise pickle.UnpicklingError(f"asks for {module}.{name}, and only plain data is read")


def read_snapshot(
    path: str | os.PathLike[str], reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Snapshot:
    """Read a snapshot."""
    with ByteSource(path, reading=reading) as source:
        content = _unpickled(source.path, source.read_all())
        if not isinstance(content, dict) or not isinstance(content.get("device_traces"), list):
            raise TraceFormatError(source.path, "is a pickle, but no memory snapshot", _REMEDY)
        try:
            return _read(source.path, content)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError):
            raise TraceFormatError(source.path, "is a damaged memory snapshot", _REMEDY) from None


def _unpickled(path: str, data: bytes) -> object:
    """The content of a pickle; in a thread with room for hashes of what is deeply nested."""

    def load() -> object:
        with _bounded_memory(len(data)):
            stream = io.BufferedReader(io.BytesIO(data))
            parts = {name: getattr(stream, name) for name in ("read", "readline", "peek")}
            return _Plain(SimpleNamespace(**parts)).load()

    before = threading.stack_size(min(2**30, 2**26 + 256 * len(data)))
    try:
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(load)
    finally:
        threading.stack_size(before)
    if (error := loaded.exception()) is None:
        return loaded.result()
    if isinstance(error, EOFError) or "truncated" in str(error):
        raise TraceCutOffError(path, "the pickle ends in the middle", "copy or record it again")
    why = "asks for more memory than it can need" if isinstance(error, MemoryError) else ""
    why = why or one_line(str(error)) or type(error).__name__
    raise TraceFormatError(path, f"is no memory snapshot: the pickle {why}", _REMEDY)


@contextmanager
def _bounded_memory(size: int) -> Iterator[None]:
    """Let the process have only so much more memory as a file of a size may need, on Linux."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + _ROOM + _TIMES * size
        if before[0] != resource.RLIM_INFINITY:
            limit = min(limit, before[0])
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _read(path: str, content: dict[str, Any]) -> Snapshot:
    """The arrays of the dicts of a snapshot."""
    frames = _Frames()
    held = []
    segments = [each for each in content.get("segments") or [] if isinstance(each, dict)]
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] in {"active_allocated", "active_pending_free"}:
                size = block.get("requested_size") or block["size"]
                where = segment.get("device", 0), block.get("address", at)
                held.append((*where, size, frames.code(block)))
            at += block["size"]
    used = []
    for device, trace in enumerate(content["device_traces"]):
        for event in trace:
            if (action := event["action"]) in {"alloc", _FREES}:
                told = event.get("addr", NONE), event.get("size", NONE), event.get("time_us", 0)
                frame = NONE if action == _FREES else frames.code(event)
                used.append((device, *told, frame, action == _FREES))
    columns = ["device", "address", "size", "time", "frame", "frees"]
    all_events = pd.DataFrame(used, columns=columns, dtype=np.int64).astype({"frees": bool})
    usable = all_events["size"].between(0, _MOST - 1) & (all_events["address"] >= 0)
    usable &= all_events["time"].abs() < _MOST * 2**10
    events = _with_older(all_events[usable], held, frames.names[BEFORE])
    recorded = events["recorded"].to_numpy(dtype=bool)
    time = events["time"].to_numpy() * 1000
    start = int(time[recorded].min()) if recorded.any() else 0
    devices, place = np.unique(events["device"].to_numpy(), return_inverse=True)
    nothing = np.full(len(events), NONE, dtype=np.int64)
    of = dict.fromkeys(("row", "thread", "total", "reserved"), nothing)
    of |= {"time": np.where(recorded, time - start, 0), "address": events["address"].to_numpy()}
    of["size"] = np.where(events["frees"], -events["size"], events["size"])
    memory = MemoryEvents(**of, place=place.reshape(-1), devices=devices, unusable=0)
    of_segments = [_segment(each) for each in segments]
    codes = events["frame"].to_numpy()
    iterations = _iterations(content.get("external_annotations") or [], start)
    dropped = int((~usable).sum())
    names = list(frames.names)
    return Snapshot(path, memory, codes, names, recorded, of_segments, iterations, dropped)


def _with_older(
    events: pd.DataFrame, held: list[tuple[int, int, int, int]], before: int
) -> pd.DataFrame:
    """The events, and as allocations before them what was held before the first of each device.

    That is what is freed without having been allocated, and blocks of the end (device, address,
    size, frame) that no event has allocated.
    """
    place = ["device", "address"]
    older = events[events["frees"] & ~events.duplicated(place)].sort_values(place)
    last = events[~events["frees"] & ~events.duplicated(place, keep="last")]
    ours = set(zip(last["device"], last["address"], strict=True))
    left = [b for b in held if b[:2] not in ours and 0 <= b[1] < 2**63 and 0 <= b[2] < _MOST]
    kept = pd.DataFrame(left, columns=[*place, "size", "frame"], dtype=np.int64)
    parts = [older.assign(frame=before), kept.assign(time=0), events]
    every = pd.concat([part.assign(recorded=part is events) for part in parts])
    every["frees"] = every["frees"].eq(True) & every["recorded"]
    return every.sort_values("device", kind="stable")


class _Frames:
    """The innermost Python frames of users' own, each asked for once."""

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self._codes = dict[int, int]()
        self._labels = dict[int, str]()

    def code(self, holder: dict[str, Any]) -> int:
        """The code of the frame of a block or an event."""
        frames = holder.get("frames") or ()
        if id(frames) not in self._codes:
            label = next(filter(None, map(self._label, frames)), NO_FRAME)
            self._codes[id(frames)] = self.names[label]
        return self._codes[id(frames)]

    def _label(self, frame: dict[str, Any]) -> str:
        """`FILE(LINE): NAME`; empty of a frame that is no Python or not the user's."""
        if id(frame) not in self._labels:
            file, line, name = (frame.get(key) for key in ("filename", "line", "name"))
            label = ""
            if isinstance(file, str) and file.endswith(".py") and not _NOT_USERS.search(file):
                known = isinstance(line, int) and isinstance(name, str)
                label = encodable(f"{file}({line}): {name}" if known else file)
            self._labels[id(frame)] = label
        return self._labels[id(frame)]


def _segment(segment: dict[str, Any]) -> tuple[int, str, int, int, int, int]:
    names = "device", "stream", "total_size", "allocated_size", "active_size"
    device, stream, total, allocated, active = (int(segment.get(name, 0)) for name in names)
    kind = segment.get("segment_type")
    text = encodable(kind) if isinstance(kind, str) else ""
    return device, text, stream, total, allocated, active


def _iterations(annotations: Sequence[dict[str, Any]], start: int) -> dict[int, Int64Array]:
    """When each device began the steps of the profiler, ns."""
    found: dict[int, list[int]] = {}
    for each in annotations:
        if each.get("stage") == "START" and str(each.get("name")).startswith("ProfilerStep#"):
            found.setdefault(int(each.get("device", 0)), []).append(each["time_us"] * 1000 - start)
    return {device: np.array(sorted(times), dtype=np.int64) for device, times in found.items()}


_SEGMENT: Final = ["device", "segment_type", "stream"]
_SIZES: Final = ["total_bytes", "allocated_bytes", "active_bytes"]
_LEAST_UNUSED = 0.2
_LEAST_ITERATIONS = 3
_MOST_ITERATIONS = 50
_MEGABYTE: Final = 1e6


def snapshot_tables(snapshot: Snapshot) -> dict[str, pd.DataFrame]:
    """`memory_peaks`, `memory_at_peak`, `memory_at_end`, `memory_segments`, `findings`."""
    events = snapshot.events
    count = len(snapshot.events.devices)
    segments = pd.DataFrame(snapshot.segments, columns=[*_SEGMENT, *_SIZES])
    reserved = segments.groupby("device")["total_bytes"].sum()
    peaks = pd.DataFrame({"device": events.devices})
    for name, those in (("allocations", events.size > 0), ("frees", events.size < 0)):
        peaks[name] = np.bincount(events.place[snapshot.recorded & those], minlength=count)
    peaks["peak_allocated_bytes"] = events.level[events.peak]
    peaks["peak_at_ms"] = events.time[events.peak] / NS_PER_MS
    peaks["end_total_bytes"] = events.level[events.last]
    peaks["reserved_bytes"] = reserved.reindex(events.devices, fill_value=0).to_numpy()
    of_segments = segments.groupby(_SEGMENT)[_SIZES]
    table = of_segments.sum()
    table.insert(0, "segments", of_segments.size())
    tables = {"memory_peaks": peaks, "memory_at_peak": _held(snapshot, events.peak)}
    tables["memory_at_end"] = _held(snapshot, events.last)
    tables["memory_segments"] = table.reset_index()
    return tables | {"findings": _findings(snapshot, tables)}


def _held(snapshot: Snapshot, moments: Int64Array) -> pd.DataFrame:
    """What is held after an event of each device, by frame, the most first."""
    events = snapshot.events
    owners = {"python_frame": (snapshot.frame, snapshot.frames)}
    table = by_owner(owners, blocks_of(events, owners, events.alive_at(moments)))
    table = table.sort_values(["place", "bytes"], ascending=[True, False], ignore_index=True)
    place = table.pop("place").to_numpy()
    table.insert(0, "device", events.devices[place])
    table["% of all"] = percent(table["bytes"].to_numpy(), events.level[moments][place])
    return table


def _growth(snapshot: Snapshot, place: int) -> tuple[str, int, int] | None:
    """The frame whose blocks grow with each iteration: bytes an iteration, over how many."""
    events = snapshot.events
    blocks = snapshot.events.blocks
    first = events.first[place]
    last = events.last[place]
    begins = snapshot.iterations.get(int(events.devices[place]), np.empty(0, dtype=np.int64))
    at = np.searchsorted(events.time[first : last + 1], begins[-_MOST_ITERATIONS:]) - 1 + first
    at = at[at >= first]
    if len(at) < _LEAST_ITERATIONS:
        return None
    those = (events.place[blocks.birth] == place) & snapshot.recorded[blocks.birth]
    birth = blocks.birth[those]
    death = blocks.death[those]
    held = []
    for moment in at.tolist():
        alive = birth[(birth <= moment) & ((death < 0) | (death > moment))]
        held.append(sums(snapshot.frame[alive], events.size[alive], len(snapshot.frames)))
    grows = (np.diff(held, axis=0) > 0).all(axis=0)
    amount = np.where(grows, held[-1] - held[0], 0)
    most = int(amount.argmax())
    growth = int(amount[most]) // (len(at) - 1)
    return (snapshot.frames[most], growth, len(at)) if amount[most] else None


def _findings(snapshot: Snapshot, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """What to look at, by device; the largest frames that can be changed are named."""
    rows = []
    for place, peak in enumerate(tables["memory_peaks"].to_dict("records")):
        device = peak["device"]
        most = peak["peak_allocated_bytes"]
        held = tables["memory_at_peak"]
        held = held[(held["device"] == device) & ~held["python_frame"].str.startswith("(")]
        frame = held["python_frame"].iloc[0] if len(held) else NO_FRAME
        size = int(held["bytes"].iloc[0]) if len(held) else 0
        title = f"{most / _MEGABYTE:,.0f} MB at the peak, {size / _MEGABYTE:,.0f} MB of one frame"
        rows.append(("memory-peak", device, title, size, frame, "keep less of it, or later"))
        unused = peak["reserved_bytes"] - peak["end_total_bytes"]
        if unused > _LEAST_UNUSED * peak["reserved_bytes"]:
            title = f"{unused / _MEGABYTE:,.0f} MB are reserved and not in use at the end"
            advice = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            rows.append(("fragmentation", device, title, unused, "", advice))
        if (found := _growth(snapshot, place)) is not None:
            frame, size, iterations = found
            title = f"{size / _MEGABYTE:,.1f} MB more are held at each of {iterations} iterations"
            rows.append(("leak", device, title, size, frame, "drop what refers to them"))
    return pd.DataFrame(
        rows, columns=["finding", "device", "title", "bytes", "python_frame", "advice"]
    )


def compare_snapshots(first: Snapshot, second: Snapshot) -> dict[str, pd.DataFrame]:
    """Peaks, and what was held at them and at the end by frame, of two snapshots side by side."""
    tables = [snapshot_tables(each) for each in (first, second)]
    result = {}
    for name in ("memory_peaks", "memory_at_peak", "memory_at_end"):
        keys = ["device"] if name == "memory_peaks" else ["device", "python_frame"]
        a, b = (each[name].set_index(keys) for each in tables)
        columns: dict[str, pd.Series] = {}
        for column in a.columns if len(keys) == 1 else ["blocks", "bytes"]:
            pair = pd.concat([a[column], b[column]], axis=1, keys=["A", "B"]).fillna(0)
            columns |= {f"{column} {letter}": pair[letter] for letter in "AB"}
            columns[f"{column} B - A"] = pair["B"] - pair["A"]
        table = pd.DataFrame(columns).reset_index()
        if len(keys) > 1:
            change = table["bytes B - A"].abs()
            table = table.iloc[np.lexsort((-change, table["device"]))].reset_index(drop=True)
        result[name] = table
    return result
