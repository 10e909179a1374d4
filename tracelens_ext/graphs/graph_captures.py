"""Which captured graphs the graph launches of a trace replay, and how well they correspond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.grouping import percent

if TYPE_CHECKING:
    from tracelens_ext.graphs.replays import GraphReplays

_KEYS = ["launch", "capture", "graph", "batch_size", "mode"]


def graph_captures(replays: GraphReplays) -> pd.DataFrame:
    """Graph launches by the captured graph that they replay.

    Returns:
        Columns as the sheet `graph_captures`; longest GPU time first, ties in order of the trace.
    """
    trace, launches = replays.tree.trace, replays.launches
    duration = trace.dur[trace.gpu_rows]
    rows = []
    for number, match in enumerate(replays.matches):
        events = launches.events[number]
        row: dict[str, object] = {
            "launch": trace.name_of(int(launches.rows[number])),
            "capture": "",
            "graph": NONE,
            "batch_size": NONE,
            "mode": "",
            "replays": 1,
            "gpu_events": len(events),
            "matched": 0,
            "inserted": len(events),
            "missing": 0,
            "gpu_time_ms": int(duration[events].sum()),
            "tokens": max(int(launches.tokens[number]), 0),
            "told": int(launches.tokens[number] != NONE),
        }
        if match is not None:
            capture = replays.captures[match.capture]
            matched = int((match.node != NONE).sum())
            known = capture.likely_size if capture.batch_size is None else capture.batch_size
            row |= {
                "capture": capture.file,
                "graph": match.graph,
                "batch_size": NONE if known is None else known,
                "mode": capture.mode,
                "matched": matched,
                "inserted": len(events) - matched,
                "missing": len(capture.graphs[match.graph].nodes) - matched,
            }
        rows.append(row)
    frame = pd.DataFrame(rows).groupby(_KEYS, sort=False, as_index=False).sum()
    told, sizes = frame.pop("told").to_numpy(), frame["batch_size"].to_numpy()
    tokens = frame.pop("tokens").to_numpy() / np.maximum(told, 1)
    padded = (told > 0) & (sizes > 0)
    frame["tokens_per_replay"] = np.where(told > 0, tokens, np.nan)
    frame["padding (%)"] = np.where(padded, percent(sizes - tokens, sizes), np.nan)
    frame["gpu_time_ms"] /= NS_PER_MS
    for column in ("graph", "batch_size"):
        numbers = frame[column].astype("Int64")
        frame[column] = numbers.where(numbers != NONE)
    return frame.sort_values("gpu_time_ms", ascending=False, kind="stable").reset_index(drop=True)
