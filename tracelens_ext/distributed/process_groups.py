"""The process groups of a rank: their ranks, their keys, and what markers note of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tracelens_ext.lazy import pd
from tracelens_ext.text import json_value
from tracelens_ext.trace import distributed_info

#: The columns of `rank_calls` that together identify a process group.
GROUP_COLUMNS = ("Process Group Name", "Process Group Ranks", "Group size")
#: The profiler ends a long list of ranks with an ellipsis.
_ELLIPSIS = "..."
_DIGEST_BYTES = 6

#: Name of a process group → its ranks, in the order of the group.
ConfiguredGroups = Mapping[str, Sequence[int]]


def communication_about(
    configured: ConfiguredGroups,
    tables: Mapping[str, pd.DataFrame],
    ranks: Sequence[int],
    world_size: int | None,
) -> dict[str, Any]:
    """Return what a marker notes of the communication of a trace, as JSON.

    Args:
        configured: the process groups that the trace's metadata lists.
        tables: the tables of the trace, by name. Without `rank_calls`, no groups are noted.
        ranks: the ranks of the trace, ascending.
        world_size: the number of ranks of the job; None if the trace does not record it.

    Returns:
        `ranks`; `groups`, the keys of the groups whose calls the trace contains; `sets`, a digest
        of the ranks of each process group; and `positions`, which maps the key of each group that
        contains the first rank to a tuple: the index of that rank in the group, the size of the
        group, and whether the group contains all ranks of the job.
    """
    calls = tables.get("rank_calls")
    if calls is None:
        return {"ranks": list(ranks), "groups": [], "sets": [], "positions": {}}
    key_of_group = _keys_of_groups(calls)
    members_of_group: dict[tuple[str, str], Sequence[int]] = {
        (name, str(members)): members for name, members in configured.items()
    }
    for name, ranks_text in key_of_group:
        members_of_group.setdefault((name, ranks_text), numbers_in(ranks_text))
    first_rank = ranks[0]
    positions = {}
    for (name, ranks_text), members in members_of_group.items():
        if first_rank not in members:
            continue
        size = len(members)
        key = key_of_group.get((name, ranks_text))
        if key is None:
            key = _group_key(
                name=name,
                ranks_text=ranks_text,
                size=float(size),
            )
        positions[key] = (members.index(first_rank), size, size == world_size)
    sets = {_digest(str(sorted(members))) for members in members_of_group.values()}
    return {
        "ranks": list(ranks),
        "groups": sorted(set(calls["key"])),
        "sets": sorted(sets),
        "positions": positions,
    }


def _keys_of_groups(calls: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the key of each process group, by its name and the text of its ranks."""
    calls_with_key = calls[calls["key"] != ""]
    distinct_groups = calls_with_key.drop_duplicates(list(GROUP_COLUMNS) + ["key"])
    keys = {}
    for _, group in distinct_groups.iterrows():
        name = group["Process Group Name"]
        ranks_text = group["Process Group Ranks"]
        keys[name, ranks_text] = group["key"]
    return keys


def numbers_in(text: str) -> list[int]:
    """Return the ranks in a text such as `[0, 8]`, in their order."""
    return [int(rank) for rank in re.findall(r"\d{1,9}", text)]


def configured_groups(metadata: Mapping[str, object]) -> dict[str, list[int]]:
    """Return the ranks of each process group in the `distributedInfo` of a trace, by name."""
    pg_config = distributed_info(metadata).get("pg_config")
    if isinstance(pg_config, str):
        pg_config = json_value(pg_config)
    if not isinstance(pg_config, list):
        return {}
    groups = {}
    for group in pg_config:
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            groups[str(group.get("pg_name", ""))] = ranks
    return groups


def complete_groups(calls: pd.DataFrame, configured: ConfiguredGroups) -> None:
    """Complete the process groups of `rank_calls` in place.

    Lists of ranks that the profiler shortened are replaced by those of the metadata. The new
    column `key` identifies the group of each call; it is empty if the group is not known.
    """
    name = calls["Process Group Name"]
    ranks = calls["Process Group Ranks"]
    text_of_configured = {name: str(members) for name, members in configured.items()}
    configured_ranks = name.map(text_of_configured)
    is_shortened = ranks.str.contains(_ELLIPSIS, regex=False)
    is_configured = configured_ranks.notna()
    ranks = configured_ranks.where(is_shortened & is_configured, ranks)
    calls["Process Group Ranks"] = ranks
    size = calls["Group size"].map(str).astype("str")
    # A digest for each distinct group, not for each call.
    identities = name + "|" + ranks + "|" + size
    key_of_identity = {identity: _digest(identity) for identity in identities.unique()}
    keys = identities.map(key_of_identity).astype("str")
    has_group = (name != "") | (ranks != "")
    is_known = has_group & (calls["Collective name"] != "")
    calls["key"] = keys.where(is_known, "")


def _group_key(name: str, ranks_text: str, size: float) -> str:
    """Return the key of a process group: a digest of its name, ranks and size."""
    return _digest(f"{name}|{ranks_text}|{size}")


def _digest(text: str) -> str:
    content = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
