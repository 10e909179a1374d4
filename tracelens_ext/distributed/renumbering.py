"""Corrects the numbers of ranks in the parts of traces after all traces have been read.

A worker knows only its own trace. If the rank of a trace depends on the other traces, the worker
writes the parts with a preliminary number. If the number turns out to be wrong, the parts are
written again here.
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
from tracelens_ext.distributed.rank_numbers import RankHints, TraceRanks, assign_ranks
from tracelens_ext.distributed.storage import ResultStore
from tracelens_ext.errors import OutputError

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class _Renumbering:
    """The task of writing the parts of a trace with the correct ranks."""

    store: ResultStore
    stem: str  #: the stem of the trace
    about: Mapping[str, Any]  #: the content of the trace's marker
    ranks: TraceRanks  #: the correct ranks

    def run(self) -> Mapping[str, Any]:
        """Write the parts and the marker again; return the new content of the marker.

        Raises:
            OutputError: an earlier attempt was interrupted.
        """
        current = self.store.marker(self.stem)
        if current is None:
            problem = f"the parts of {self.about['trace']} are incomplete"
            raise OutputError(f"{problem}; run the same command again")
        old_ranks = ranks_in_marker(current)
        if old_ranks == self.ranks:
            return current  # an earlier attempt has already done the work
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
    """Give every rank its final number, and write parts with a different number again.

    Args:
        client: a Dask client whose workers do the work; None to do it in this process.
        store: the folder of the results.
        abouts: stem of each trace, in order → content of its marker; None if the trace failed.
        rank_in_name: stem of each trace → the rank in its file name; None if there is none.

    Returns:
        Stem → content of the marker afterwards, without the traces that failed.
    """
    hints = []
    for stem, about in abouts.items():
        if about is None:
            hints.append(RankHints(in_name=rank_in_name[stem]))
        else:
            hints.append(hints_in_marker(about))
    done: dict[str, Mapping[str, Any]] = {}
    renumberings = []
    for (stem, about), ranks in zip(abouts.items(), assign_ranks(hints), strict=True):
        if about is None:
            continue
        done[stem] = about
        if ranks != ranks_in_marker(about):
            renumbering = _Renumbering(
                store=store,
                stem=stem,
                about=about,
                ranks=ranks,
            )
            renumberings.append(renumbering)
    new_abouts = _run_all(client, renumberings)
    for renumbering, about in zip(renumberings, new_abouts, strict=True):
        done[renumbering.stem] = about
    return done


def _run_all(
    client: Client | None, renumberings: Iterable[_Renumbering]
) -> list[Mapping[str, Any]]:
    """Run renumberings, on workers if there are any; return the new contents of the markers."""
    if client is not None:
        from distributed import CancelledError
        from distributed.scheduler import KilledWorker

        try:
            futures = [
                client.submit(_run, renumbering, pure=False)
                for renumbering in renumberings
            ]
            abouts: list[Mapping[str, Any]] = client.gather(futures)
        except (KilledWorker, CancelledError, OSError):
            pass  # The workers are gone. This process does their work below.
        else:
            return abouts
    return [_run(renumbering) for renumbering in renumberings]


def _run(renumbering: _Renumbering) -> Mapping[str, Any]:
    """Run one renumbering. It is a function so that a Dask worker can run it."""
    return renumbering.run()
