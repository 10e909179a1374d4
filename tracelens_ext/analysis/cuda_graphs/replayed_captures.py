"""What the graph launches of a trace replay: captured operations, and captured graphs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captured_graphs import Capture
from tracelens_ext.analysis.cuda_graphs.replays import GraphReplays
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import (
    group_durations,
    number_groups,
    percent,
    texts,
)

#: The columns in which all rows of one replayed graph agree.
_REPLAY_KEYS = ["launch", "capture", "graph", "batch_size", "mode"]
#: Stands for the capture of a graph launch that no capture fits.
_NO_CAPTURE = Capture(file="", batch_size=None, mode="", graphs=[])


def captured_operations(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row per captured operation: the innermost CPU op around a captured launch."""
    trace = gpu_events.trace
    events = np.flatnonzero(gpu_events.tree.has_captured_op)
    op = gpu_events.tree.cpu_op_of_gpu[events]
    groups = group_durations([trace.name[op]], gpu_events.duration[events])
    first_event_of_op, _ = number_groups([op])
    calls = np.bincount(groups.group_index[first_event_of_op], minlength=len(groups))
    return pd.DataFrame(
        {
            "operation": pd.array(texts(groups.keys[0], trace.names), dtype="str"),
            "calls": calls,
            "kernels": groups.count,
            "total_time_us": groups.total / NS_PER_US,
        }
    )


class _ReplayRow(NamedTuple):
    """A graph launch and the captured graph that it replays; unknown numbers are `NONE`."""

    launch: str
    capture: str
    graph: int
    batch_size: int
    mode: str
    replays: int
    gpu_events: int
    matched: int
    inserted: int
    missing: int
    gpu_time_ms: int  #: ns at first; `replayed_captures` sums and converts it
    tokens: int  #: 0 if unknown
    steps_with_tokens: int  #: 1 if the tokens are known, else 0


def replayed_captures(replays: GraphReplays | None) -> pd.DataFrame:
    """Return a row per captured graph that is replayed, longest GPU time first.

    Raises:
        UsageError: the trace has no graph launch, or there is no capture.
    """
    if replays is None:
        raise UsageError(
            "this needs a trace with graph launches, and TreePerfAnalyzer(trace, "
            "capture=FILE_OR_FOLDER)"
        )
    launch_count = len(replays.launches.rows)
    rows = [_replay_row(replays, launch) for launch in range(launch_count)]
    launches = pd.DataFrame(rows, columns=_ReplayRow._fields)
    table = launches.groupby(_REPLAY_KEYS, sort=False, as_index=False).sum()
    steps_with_tokens = table.pop("steps_with_tokens").to_numpy()
    has_tokens = steps_with_tokens > 0
    batch_size = table["batch_size"].to_numpy()
    tokens_per_replay = table.pop("tokens").to_numpy() / np.maximum(
        steps_with_tokens, 1
    )
    padding = percent(batch_size - tokens_per_replay, batch_size)
    has_padding = has_tokens & (batch_size > 0)
    table["tokens_per_replay"] = np.where(has_tokens, tokens_per_replay, np.nan)
    table["padding_percent"] = np.where(has_padding, padding, np.nan)
    table["gpu_time_ms"] /= NS_PER_MS
    for column in ("graph", "batch_size"):
        numbers = table[column].astype("Int64")
        table[column] = numbers.where(numbers != NONE)
    return table.sort_values("gpu_time_ms", ascending=False, kind="stable").reset_index(
        drop=True
    )


def _replay_row(replays: GraphReplays, launch: int) -> _ReplayRow:
    """Return the row of a graph launch, given by its index among the graph launches."""
    trace = replays.tree.trace
    launches = replays.launches
    events = launches.events[launch]
    tokens = int(launches.tokens[launch])
    capture = _NO_CAPTURE
    graph = NONE
    node_count = 0
    matched = 0
    match = replays.matches[launch]
    if match is not None:
        capture = replays.captures[match.capture]
        graph = match.graph
        node_count = len(capture.graphs[graph].nodes)
        matched = int((match.node != NONE).sum())
    batch_size = capture.batch_size
    if batch_size is None:
        batch_size = capture.likely_size
    if batch_size is None:
        batch_size = NONE
    return _ReplayRow(
        launch=trace.name_of(int(launches.rows[launch])),
        capture=capture.file,
        graph=graph,
        batch_size=batch_size,
        mode=capture.mode,
        replays=1,
        gpu_events=len(events),
        matched=matched,
        inserted=len(events) - matched,
        missing=node_count - matched,
        gpu_time_ms=int(trace.dur[trace.gpu_rows[events]].sum()),
        tokens=max(tokens, 0),
        steps_with_tokens=int(tokens != NONE),
    )
