"""Blocks of memory as tables, and their sums by owner."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens_ext.analysis.memory.events import MemoryEvents
from tracelens_ext.analysis.memory.owners import Owners
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array
from tracelens_ext.trace.grouping import texts

#: Stands for the owner of memory that was allocated before the recording.
BEFORE = "(before the recording)"
#: Stands for the owner of memory that recorded totals contain, but no recorded event allocates.
LOST = "(events lost)"
#: Column of a table → the column of the blocks that is aggregated, and how.
Aggregations = Mapping[str, tuple[str, str]]
_SIZES: Aggregations = {
    "blocks": ("bytes", "size"),
    "bytes": ("bytes", "sum"),
    "largest_bytes": ("bytes", "max"),
}


def blocks_of(
    events: MemoryEvents,
    owners: Owners,
    chosen: Int64Array | slice = slice(None),
) -> pd.DataFrame:
    """Return a row per block: its device, the codes of its owners, and its bytes.

    Args:
        events: the memory events.
        owners: the owners of each event.
        chosen: indices of the blocks to return; all blocks by default.
    """
    birth = events.blocks.birth[chosen]
    columns: dict[str, object] = {"device_index": events.device_index[birth]}
    for name, owner in owners.items():
        columns[name] = owner.codes[birth]
    columns["bytes"] = events.size[birth]
    return pd.DataFrame(columns)


def by_owner(
    owners: Owners,
    blocks: pd.DataFrame,
    aggregations: Aggregations = _SIZES,
    *,
    sort: bool = True,
) -> pd.DataFrame:
    """Aggregate the rows of `blocks_of` by device and owners, and turn owners into texts.

    Args:
        owners: the owners to group by.
        blocks: the blocks.
        aggregations: the columns of the result.
        sort: whether to sort by device and owners, instead of the order of first blocks.
    """
    groups = blocks.groupby(["device_index"] + list(owners), sort=sort)
    frame = groups.agg(**aggregations).reset_index()
    for name, owner in owners.items():
        frame[name] = text_column(texts(frame[name].to_numpy(), owner.labels))
    return frame


def text_column(values: list[str]) -> pd.api.extensions.ExtensionArray:
    """Return texts as a column, which has a text type even if it is empty."""
    return pd.array(values, dtype="str")
