"""The dumps of a job, its process groups, and the stuck calls and verdicts found in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracelens_ext.distributed.flight_recorder.dumps import FlightCall, FlightDump
from tracelens_ext.distributed.flight_recorder.groups import FlightGroup
from tracelens_ext.distributed.verdicts import Verdict, VerdictKind


@dataclass(frozen=True)
class StuckCall:
    """A call that did not complete, or that its ranks did not make alike."""

    group: FlightGroup
    operation: str
    sequence: int
    entered_ranks: tuple[int, ...]  #: ranks that made the call
    completed_ranks: tuple[int, ...]  #: ranks on which the call ended
    absent_ranks: tuple[int, ...]  #: ranks that have a dump and did not make the call
    state: VerdictKind  #: `HANG` or `MISMATCH`
    sizes: str
    frames: tuple[str, ...]  #: where the lowest of the entered ranks made the call

    @property
    def title(self) -> str:
        """The call in words, for a sentence of a verdict."""
        return f"{self.operation}, call {self.sequence} of process group {self.group.key.title}"

    @property
    def waiting_ranks(self) -> tuple[int, ...]:
        """The ranks that made the call and on which it did not end."""
        return tuple(
            rank for rank in self.entered_ranks if rank not in self.completed_ranks
        )


@dataclass
class JobDumps:
    """The dumps of a job, and what the analysis has found in them so far."""

    dumps: Sequence[FlightDump]
    groups: Sequence[FlightGroup]
    stuck_calls: list[StuckCall] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @cached_property
    def dumped_ranks(self) -> list[int]:
        """The ranks that have a dump, ascending."""
        return sorted({dump.rank for dump in self.dumps})

    @cached_property
    def missing_ranks(self) -> list[int]:
        """The ranks of the process groups that have no dump, ascending."""
        members = {rank for group in self.groups for rank in group.key.ranks}
        for dump in self.dumps:
            for key in dump.groups.values():
                members.update(key.ranks)
        return sorted(members.difference(self.dumped_ranks))

    def last_call(self, rank: int) -> FlightCall | None:
        """Return the last call of a rank; None if its dump has no call."""
        for dump in self.dumps:
            if dump.rank == rank and dump.calls:
                return dump.calls[-1]
        return None

    def hanging_calls(self) -> list[StuckCall]:
        """Return the stuck calls that did not complete, without those that do not match."""
        return [call for call in self.stuck_calls if call.state == VerdictKind.HANG]

    def add_verdict(
        self, kind: VerdictKind, rank: int | None, call: StuckCall, evidence: str
    ) -> None:
        """Add a verdict on a call; `rank` is None if no single rank is to blame."""
        verdict = Verdict(
            verdict=kind,
            rank=rank,
            process_group=call.group.key.name,
            evidence=evidence,
        )
        self.verdicts.append(verdict)
