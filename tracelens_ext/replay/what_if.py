"""What the wall time would be if something took longer or shorter: windows, errors, tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.iterations.selection import Selection, span_of_step
from tracelens_ext.lazy import pd
from tracelens_ext.replay.changes import Changes, Named
from tracelens_ext.replay.path import GAP, SYNC, WAITS, critical_path
from tracelens_ext.replay.path_table import described, path_table
from tracelens_ext.replay.host import telling_calls
from tracelens_ext.replay.program import Program
from tracelens_ext.replay.replay import Replay
from tracelens_ext.replay.waits import waiting
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.work.grouping import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.replay.path import Path

    from tracelens_ext.work.gpu_work import GpuWork

_WARNED: Final = 5.0
_WITHHELD: Final = 15.0

State = Literal["good", "warned", "withheld"]


class Simulation:
    """A window of a trace, run again.

    Args:
        work: the GPU events.
        iteration: the N of the `ProfilerStep#N` that is the window; the whole recording by default.
        device: the only device that is asked about.
        waits: of `collective_waits`: how much of each collective waits for other ranks.

    Raises:
        UsageError: the trace has no such iteration or device, no GPU events, or none of the waits.
    """

    def __init__(
        self,
        work: GpuWork,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> None:
        trace = work.trace
        if not len(work):
            raise UsageError("the trace has no GPU events, so nothing can be replayed")
        Selection(device=device).of(work)
        if iteration is None:
            rows = np.concatenate((telling_calls(trace), trace.gpu_rows))
            window = int(trace.ts[rows].min()), int(trace.end_of(rows).max())
        else:
            window = span_of_step(work, iteration)
        self.work = work
        self.program = Program(work, window, device, closes=iteration is not None)
        self.waits_known = waits is not None
        if waits is not None:
            self.program.waiting[:] = waiting(work, self.program.event, waits)
        self.replay = Replay(self.program)
        self.changes = Changes(self.program)
        _, self.replayed = self.replay.run([])

    @property
    def recorded_ns(self) -> int:
        """The recorded wall time."""
        return self.program.window[1] - self.program.window[0]

    @property
    def error_percent(self) -> float:
        """By how much the unchanged replay misses it."""
        return 100.0 * (self.replayed.wall / max(self.recorded_ns, 1) - 1.0)

    @property
    def state(self) -> State:
        """Whether it can be relied on."""
        if not (self.program.call != NONE).any() or abs(self.error_percent) > _WITHHELD:
            return "withheld"
        return "warned" if abs(self.error_percent) > _WARNED else "good"

    @property
    def reason(self) -> str:
        """Why it cannot; empty where it can."""
        if self.state == "good":
            return ""
        if not (self.program.call != NONE).any():
            return (
                "no call that launched the GPU work is in the window: what it waited for is unknown"
            )
        off = self.error_percent
        why = (
            "something waits for what the recording does not tell"
            if off < 0
            else "work overlaps, or begins early, in ways that the recording does not tell"
        )
        if self.program.contradicted:
            why += (
                f"; {self.program.contradicted:,} waits were left out, as the times contradict them"
            )
        return (
            f"the unchanged replay is {abs(off):.1f} % too {'short' if off < 0 else 'long'}: {why}"
        )

    def model(self) -> dict[str, object]:
        """What is known of the replay, for JSON; constants are of the device with the most work."""
        program = self.program
        real = program.event != NONE
        device = program.lanes.device[program.lane[real]]
        most = int(device[0]) if len(device) else NONE
        if len(set(device.tolist())) > 1:
            numbers, at = np.unique(device, return_inverse=True)
            most = int(numbers[np.bincount(at, program.duration[real]).argmax()])
        constants = program.constants[most]
        return {
            "error_percent": self.error_percent,
            "state": self.state,
            "reason": self.reason,
            "latency_us": constants.latency / NS_PER_US,
            "gap_us": constants.gap / NS_PER_US,
            "tail_us": constants.tail / NS_PER_US,
            "edges": program.edges,
        }

    def window(self) -> dict[str, float]:
        """The window and its wall times, for JSON."""
        start, end = self.program.window
        return {
            "start_us": start / NS_PER_US,
            "end_us": end / NS_PER_US,
            "wall_ms": (end - start) / NS_PER_MS,
            "replayed_ms": self.replayed.wall / NS_PER_MS,
        }

    def what_if(self, changes: Sequence[Named] | None = None) -> pd.DataFrame:
        """A row a change.

        Args:
            changes: in their order; the usual ones by default, by what they save.

        Returns:
            Columns `change`, `factor` (empty of several together), `wall_ms`, `saved_ms`,
            `saved (%)`; no rows where the replay is withheld.

        Raises:
            UsageError: a change is of nothing that the trace has.
        """
        asked = self.changes.default() if changes is None else changes
        made = [self.changes.change(each) for each in asked]
        walls = self.replay.run(made)[0] if made else np.empty(0, dtype=np.int64)
        saved = self.replayed.wall - walls
        frame = pd.DataFrame(
            {
                "change": pd.Series([each.text for each in asked], dtype="str"),
                "factor": np.array([each.factor for each in asked], dtype=np.float64),
                "wall_ms": walls / NS_PER_MS,
                "saved_ms": saved / NS_PER_MS,
                "saved (%)": percent(saved, max(self.replayed.wall, 1)),
            }
        )
        if self.state == "withheld":
            return frame.head(0)
        if changes is None:
            frame = frame.sort_values("saved_ms", ascending=False, kind="stable", ignore_index=True)
        return frame

    def lines(self) -> list[str]:
        """The window, the error and the constants in words, a line each."""
        window = self.window()
        lines = [
            f"Replay: {window['replayed_ms']:,.3f} ms for {window['wall_ms']:,.3f} ms recorded:"
            f" error {self.error_percent:+.2f} %, {self.state}"
        ]
        lines += [self.reason] if self.reason else []
        for device, each in self.program.constants.items():
            lines.append(
                f"Device {device}: launch latency {each.latency / NS_PER_US:,.3f} µs, gap"
                f" {each.gap / NS_PER_US:,.3f} µs, tail {each.tail / NS_PER_US:,.3f} µs"
            )
        edges = ", ".join(f"{count:,} {kind}" for kind, count in self.program.edges.items())
        return [*lines, f"Edges: {edges}"]

    @cached_property
    def _path(self) -> Path:
        return critical_path(self.replay, self.replayed)

    @property
    def known_edges(self) -> float:
        """Which share of the waits that bind on the critical path the recording tells."""
        waits = np.isin(self._path.what, (GAP, SYNC)) & np.isin(self._path.edge, WAITS)
        return float(self._path.known[waits].mean()) if waits.any() else 1.0

    @cached_property
    def critical_path(self) -> pd.DataFrame:
        """The segments of the critical path in order of time; see the sheet `critical_path`."""
        return path_table(self, self._path)

    def critical_path_summary(self) -> pd.DataFrame:
        """How much of the critical path each kind and category holds, the most first."""
        table, program = self.critical_path, self.program
        keys = ["kind", "category"]
        found = table.groupby(keys, sort=False)["duration_us"].sum().div(1e3)
        result = found.rename("on_path_ms").reset_index()
        real = np.flatnonzero(program.event != NONE)
        total = described(self, real)[keys]
        total["ns"] = (program.duration - program.waiting)[real]
        waiting = pd.DataFrame({"kind": "other rank", "category": total["category"]})
        total = pd.concat([total, waiting.assign(ns=program.waiting[real])])
        sums = total.groupby(keys, sort=False)["ns"].sum().div(NS_PER_MS).rename("total_ms")
        result = result.merge(sums.reset_index(), on=keys, how="left")
        share = percent(result["on_path_ms"].to_numpy(), self.replayed.wall / NS_PER_MS)
        result.insert(3, "on_path (%)", share)
        order = ["on_path_ms", *keys]
        return result.sort_values(order, ascending=[False, True, True], ignore_index=True)
