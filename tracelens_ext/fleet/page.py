"""The page of a fleet: who waits when and what for, bandwidths by size, what does not match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.report.html import write_html

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CHARTS = (
    Chart("Waits by rank and iteration", "waits", "rank", "wait_ms", "stacked", 64, "iteration"),
    Chart("Waits by the rank they come from", "origins", "rank", "wait_ms", "stacked", 64, "cause"),
    Chart("Bus bandwidth by size, in the median", "bandwidths", "size", "median (GB/s)"),
    Chart("Bus bandwidth by size, the best", "bandwidths", "size", "best (GB/s)"),
)


def write_page(path: Path, tables: Mapping[str, pd.DataFrame], notes: Sequence[str]) -> None:
    """Write the page of the tables over all ranks."""
    sync = tables["collective_sync"]
    calls = sync.set_index("call")["iteration"]
    waits = tables["collective_waits"].assign(wait_ms=tables["collective_waits"]["wait_us"] / 1e3)
    waits["iteration"] = waits["call"].map(calls)
    waits = waits.groupby(["rank", "iteration"])["wait_ms"].sum().reset_index()
    known = sync[sync["bus_bandwidth_gb_s"].notna()]
    bits = np.ceil(np.log2(known["bytes"].to_numpy(np.float64)))
    sizes = [f" up to {2**bit:,.0f} bytes" for bit in bits.tolist()]
    labels = known["collective"] + pd.Series(sizes, index=known.index, dtype="str")
    rates = known["bus_bandwidth_gb_s"].groupby(labels.rename("size"))
    bandwidths = rates.agg(["size", "median", "max"]).reset_index(names="label")
    bandwidths.columns = pd.Index(["size", "calls", "median (GB/s)", "best (GB/s)"])
    sheets = {
        "verdicts": tables["verdicts"],
        "waits": waits,
        "origins": tables["wait_origins"],
        "bandwidths": bandwidths,
        "not_matched": sync[sync["state"] != "complete"],
        "clocks": tables["clocks"],
        "overlap": tables["overlap"],
    }
    charts = [chart for chart in _CHARTS if chart.fits(sheets[chart.sheet])]
    write_html(path, sheets, charts=charts, notes=notes, title="The ranks of a job")
