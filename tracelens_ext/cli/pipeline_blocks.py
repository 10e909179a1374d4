"""The stages of a pipeline on a terminal, as `fleet` and `ranks` show them."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens_ext.cli.screen import Block, Part
from tracelens_ext.lazy import pd

#: The bubble comes before its parts, as the last columns are left out where room is short.
_COLUMNS = (
    "stage",
    "bubble_percent",
    "ideal_bubble_percent",
    "computation_ms",
    "transfer_ms",
    "wait_previous_ms",
    "wait_next_ms",
    "warmup_ms",
    "drain_ms",
    "bubble_ms",
)


def pipeline_blocks(stages: pd.DataFrame) -> Iterator[Block]:
    """Yield a table of how each stage spends an iteration; nothing without a pipeline."""
    if not len(stages):
        return
    means = stages.drop(columns="iteration").groupby("stage").mean().reset_index()
    fewest = stages["micro_batches"].min()
    most = stages["micro_batches"].max()
    micro_batches = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    count = stages["iteration"].nunique()
    iterations = "1 iteration" if count == 1 else f"mean of {count} iterations"
    title = (
        f"Pipeline: {len(means)} stages, {micro_batches} micro-batches, {iterations}"
    )
    yield Part(title=title, frame=means, columns=_COLUMNS)
