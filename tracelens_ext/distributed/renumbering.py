"""The numbers of ranks, once all traces are known.

A worker knows one trace only. Where the others matter for its ranks, it writes its parts with
numbers that may turn out wrong, and they are written again here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens_ext.distributed.job import (
    hints_in_marker,
    ranks_as_json,
    ranks_in_marker,
)
from tracelens_ext.distributed.process_groups import communication_about
from tracelens_ext.distributed.rank_numbers import RankHints, TraceRanks, number_ranks
from tracelens_ext.distributed.storage import ResultStore
from tracelens_ext.errors import OutputError

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class _Renumbering:
    """A trace whose parts have other ranks than it has."""

    store: ResultStore
    stem: str
    about: Mapping[str, Any]  #: what its marker notes
    ranks: TraceRanks  #: what it has

    def run(self) -> Mapping[str, Any]:
        """Write the parts and the marker again; return what the marker notes.

        Raises:
            OutputError: an earlier attempt was interrupted.
        """
        current = self.store.marker(self.stem)
        if current is None:
            problem = f"the parts of {self.about['trace']} are incomplete"
            raise OutputError(f"{problem}; run the same command again")
        old_ranks = ranks_in_marker(current)
        if old_ranks == self.ranks:
            return current  # an earlier attempt came that far
        new_rank = dict(zip(old_ranks.numbers, self.ranks.numbers, strict=True))
        self.store.remove_marker(self.stem)
        tables = {}
        for name in self.about["rows"]:
            frame = self.store.get_table(f"{name}/{self.stem}").to_pandas()
            frame["rank"] = frame["rank"].map(new_rank).astype("int64")
            self.store.put_table(f"{name}/{self.stem}", frame)
            tables[name] = frame
        communication = communication_about(
            configured=self.about["configured_groups"],
            tables=tables,
            ranks=self.ranks.numbers,
            world_size=self.about["world_size"],
        )
        about = {
            **self.about,
            **ranks_as_json(hints_in_marker(self.about), self.ranks),
            "communication": communication,
        }
        self.store.put_marker(self.stem, about)
        return about


def renumber_ranks(
    client: Client | None,
    store: ResultStore,
    abouts: Mapping[str, Mapping[str, Any] | None],
    rank_in_name: Mapping[str, int | None],
) -> dict[str, Mapping[str, Any]]:
    """Give every rank a number of its own, and write parts again that have another.

    Args:
        client: whose workers do it; None for this process.
        store: the folder of the results.
        abouts: stem of each trace, in order → what its marker notes; None if it failed.
        rank_in_name: stem of each trace → the rank in its name.

    Returns:
        What the markers note afterwards, by stem, without the traces that failed.
    """
    hints = []
    for stem, about in abouts.items():
        if about is None:
            hints.append(RankHints(in_name=rank_in_name[stem]))
        else:
            hints.append(hints_in_marker(about))
    done: dict[str, Mapping[str, Any]] = {}
    changed = []
    for (stem, about), ranks in zip(abouts.items(), number_ranks(hints), strict=True):
        if about is None:
            continue
        done[stem] = about
        if ranks != ranks_in_marker(about):
            changed.append(
                _Renumbering(
                    store=store,
                    stem=stem,
                    about=about,
                    ranks=ranks,
                )
            )
    for renumbering, about in zip(changed, _run_all(client, changed), strict=True):
        done[renumbering.stem] = about
    return done


def _run_all(
    client: Client | None, changed: Iterable[_Renumbering]
) -> list[Mapping[str, Any]]:
    """Write parts again, on workers if there are any."""
    if client is not None:
        from distributed import CancelledError
        from distributed.scheduler import KilledWorker

        try:
            futures = [
                client.submit(_run, renumbering, pure=False) for renumbering in changed
            ]
            abouts: list[Mapping[str, Any]] = client.gather(futures)
        except (KilledWorker, CancelledError, OSError):
            pass  # the workers are gone; what they would have done is done here
        else:
            return abouts
    return [_run(renumbering) for renumbering in changed]


def _run(renumbering: _Renumbering) -> Mapping[str, Any]:
    """Write the parts of one trace again, for a Dask worker."""
    return renumbering.run()
