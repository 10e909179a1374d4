"""Whom a rank sends to and receives from, as ranks of the job."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens_ext.lazy import pd


def peers_in_job(
    peer: pd.Series,
    rank: pd.Series,
    members: Sequence[int],
    *,
    count_in_group: bool = False,
) -> pd.Series:
    """Return the peers of the sends and receives of a process group as ranks of the job.

    PyTorch counts peers in the group or in the job, depending on its version. Both are tried: as a
    rule, one of them alone makes every peer another member of the group.

    Args:
        peer: as the trace has it, NaN where it does not tell.
        rank: the ranks that send and receive.
        members: of the group, in its order; empty if they are not known.
        count_in_group: some peers are known to count in the group.

    Returns:
        The peers, NaN where they are not known.
    """
    if len(members) == 2:
        # A pair leaves no choice.
        return float(sum(members)) - rank.where(rank.isin(members))
    if not members:
        return peer
    in_group = peer.map(dict(enumerate(map(float, members))))
    is_valid_in_job = peer.isin(members) & (peer != rank)
    is_valid_in_group = in_group.notna() & (in_group != rank)
    all_valid_in_job = bool(is_valid_in_job[peer.notna()].all())
    if all_valid_in_job and not count_in_group:
        return peer
    if is_valid_in_job.sum() > is_valid_in_group.sum():
        return peer.where(is_valid_in_job)
    return in_group.where(is_valid_in_group)
