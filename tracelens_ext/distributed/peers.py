"""Converts the peers of sends and receives to ranks of the job."""

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

    PyTorch records peers as ranks of the group or as ranks of the job, depending on its version.
    Both readings are tried. Usually, only one of them makes every peer another member of the group.

    Args:
        peer: the peers as the trace records them, NaN if it does not.
        rank: the ranks of the job that send and receive.
        members: the ranks of the group, in the order of the group; empty if they are not known.
        count_in_group: True if some peers are known to be ranks of the group.

    Returns:
        The peers as ranks of the job, NaN if they are not known.
    """
    if len(members) == 2:
        # The peer is the other one of the two members.
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
