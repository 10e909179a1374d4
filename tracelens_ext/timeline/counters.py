"""How much launched work waits for each stream, and how fast copies are."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.tables.table import Table
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from tracelens_ext.work.gpu_work import GpuWork

#: So many launches wait at most: the host waits when a stream's queue is full.
FULL_QUEUE = 1024
_BANDWIDTH = "memory bandwidth (GB/s)"
_DIRECTION = re.compile(r"\b([HDPA])to([HDPA])\b")
_WORDS = re.compile(r"(Host|Device|Peer)(?: ?(?:->|-to-|[tT]o) ?)(Host|Device|Peer)")


def queue_levels(work: GpuWork) -> pd.DataFrame:
    """How many GPU events are launched and not begun (`level`), a row a change by stream and time.

    A launch adds one for each GPU event that it starts; the start of a GPU event takes one away.
    Of changes at one instant launches come first.
    """
    linked = np.flatnonzero(work.tree.linked)
    device, stream = work.trace.device[linked], work.trace.stream[linked]
    launched = work.trace.ts[work.tree.launch_of_gpu[linked]]
    frame = pd.DataFrame(
        {
            "device": np.tile(device, 2),
            "stream": np.tile(stream, 2),
            "time_ns": np.concatenate((launched, work.start[linked])),
            "begins": np.repeat((False, True), len(linked)),
        }
    ).sort_values(["device", "stream", "time_ns", "begins"], kind="stable", ignore_index=True)
    change = np.where(frame.pop("begins"), -1, 1)
    frame["level"] = pd.Series(change).groupby([frame["device"], frame["stream"]]).cumsum()
    return frame


def queue_length(work: GpuWork) -> pd.DataFrame:
    """A row a stream; see the sheet `queue_length`."""
    levels = queue_levels(work)
    streams = levels.groupby(["device", "stream"])
    lasts = streams["time_ns"].shift(-1).sub(levels["time_ns"]).fillna(0)
    keys = [levels["device"], levels["stream"]]
    full = lasts.where(levels["level"] >= FULL_QUEUE, 0).groupby(keys).sum()
    whole = lasts.groupby(keys).sum()
    table = streams["level"].agg(changes="size", mean="mean", max="max")
    table[f"time at {FULL_QUEUE} (%)"] = (100 * full / whole.where(whole > 0)).fillna(0.0)
    return table.reset_index()


def copies(work: GpuWork) -> pd.DataFrame:
    """The copies whose speed is known: as recorded, else of its bytes and its duration."""
    trace = work.trace
    at = np.flatnonzero(work.kind == EventKind.MEMCPY)
    rows = work.rows[at]
    size = trace.arg("bytes").at(rows)
    column = trace.arg(_BANDWIDTH)
    told = pd.Series([*(column.texts or ()), ""], dtype="str").str.strip('"')
    speed = pd.to_numeric(told, errors="coerce").to_numpy(np.float64)[column.at(rows)]
    speed = np.where((speed > 0) & (speed < np.inf), speed, np.nan)
    duration = work.duration[at]
    computed = (size > 0) & (duration > 0) & np.isnan(speed)
    speed[computed] = size[computed] / duration[computed]
    names = [_direction(name) for name in trace.names]
    frame = pd.DataFrame(
        {
            "start_ns": work.start[at],
            "end_ns": work.end[at],
            "device": trace.device[at],
            "direction": [names[code] for code in work.name[at].tolist()],
            "bytes": np.maximum(size, 0),
            "gb_per_s": speed,
        }
    )
    return frame[frame["gb_per_s"].notna()].reset_index(drop=True)


def copy_bandwidth(work: GpuWork) -> pd.DataFrame:
    """A row a device and direction; see the sheet `copy_bandwidth`."""
    groups = copies(work).groupby(["device", "direction"])
    table = pd.DataFrame(groups["gb_per_s"].agg(copies="size", mean="mean", max="max"))
    table["bytes"] = groups["bytes"].sum()
    return table.reset_index()


def _direction(name: str) -> str:
    """`HtoD` of a copy's name, in any profiler's words; `other` where it does not say."""
    if found := _DIRECTION.search(name):
        return f"{found[1]}to{found[2]}"
    if found := _WORDS.search(name):
        return f"{found[1][0]}to{found[2][0]}"
    return "other"


def _copy_bandwidth(work: GpuWork) -> pd.DataFrame | None:
    return table if len(table := copy_bandwidth(work)) else None


_table = partial(Table, asked_by="counters")
TABLES = [
    _table(
        name="queue_length",
        shows="How much launched work waits for each stream",
        columns="""
            device, stream: whose queue it is
            changes [changes]: launches and starts of GPU events that have a launch
            mean [GPU events]: launched and not begun, on average after each change
            max [GPU events]: likewise, at most
            time at 1024 (%): share of the time in which so many wait that the host must wait too
            """,
        table=queue_length,
        screen="Launched and not begun, by stream",
    ),
    _table(
        name="copy_bandwidth",
        shows="How fast copies are, by direction",
        columns="""
            device: its number
            direction: `HtoD`, `DtoH`, `DtoD`, `HtoH`, `PtoP`; or `other`
            copies [copies]: those whose speed is known
            mean [GB/s]: as recorded, else bytes by duration; 10⁹ bytes
            max [GB/s]: likewise, the fastest
            bytes [bytes]: copied
            """,
        table=_copy_bandwidth,
        screen="Speed of copies, GB/s",
    ),
]
