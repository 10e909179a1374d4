"""What a detector sees of a trace, and how it says what it found."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from importlib.resources import files
from typing import Any, Final, Literal, get_args

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.coverage.program import PYTORCH, Kind, program_of
from tracelens_ext.analysis.idle_time.cpu_activity import idle_time_segments
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.findings.attribution import places_of, ranked
from tracelens_ext.findings.finding import Claim, Evidence, Finding, Place, saving_text
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.isolation import PartFailures
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, EventKind, Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import Labelled, by_group_and_time, items_before, number_groups
from tracelens_ext.trace.intervals import covered, distinct

Instead = Literal["", "overlaps", "waits no longer", "launches go"]
#: What saves less of the judged time is not worth anybody's attention, percent.
LEAST_SHARE_PERCENT: Final = 1.0
#: No tensor has as many elements; what a broken trace says beyond it is not believed.
MOST_ELEMENTS: Final = 2**62
#: What kernels that are bound by memory reach of its bandwidth.
MEMORY_SHARE: Final = 0.7
#: What a finding says.
_TEXTS: Final = ("title", "advice", "snippet", "confidence", "reason")
_AMD: Final = ("hip", "roc")
#: A name in braces, perhaps with a format.
_NAMED: Final = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
NO_SHAPES: Final = (
    "Operations have no shapes, so slow matrix products and chains of memory-bound operations"
    " cannot be told, and attention only by names: {how} records them."
)


class FailedPartError(Exception):
    """A part that a detector needs could not be computed, and that is reported already."""


@dataclass(eq=False)
class Inspection:
    """A trace, as detectors see it."""

    work: GpuEvents  #: the GPU events, g of them
    find_launchers: Callable[[], Launchers]  #: finds the operations that launched them
    find_roofline: Callable[[], Roofline]  #: finds how good those operations are
    wall: WallTime  #: the wall time, and what is claimed of it
    #: what cannot be looked for, a sentence each; detectors add to it
    notes: list[str] = field(default_factory=list)
    #: the parts that could not be computed
    failures: PartFailures = field(default_factory=PartFailures)

    @cached_property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""
        return self.find_launchers()

    @cached_property
    def idle_moments(self) -> Any:  # noqa: ANN401 (a function with a cache)
        """`idle_time_segments` of the work, which finds them once for the same arguments."""
        return cache(partial(idle_time_segments, self.work))

    @property
    def roofline(self) -> Roofline:
        """How good they are.

        Raises:
            FailedPartError: it could not be computed.
        """
        roofline = self._roofline_if_computed
        if roofline is None:
            raise FailedPartError
        return roofline

    @cached_property
    def _roofline_if_computed(self) -> Roofline | None:
        with self.failures.isolate("The roofline"):
            return self.find_roofline()
        return None

    @cached_property
    def has_shapes(self) -> bool:
        """Whether arguments of operations were recorded; a note says so if they were not."""
        how = self.missing.get("shapes")
        if how and not self.roofline.has_shapes:
            self.note(NO_SHAPES.format(how=how))
        return self.roofline.has_shapes

    @cached_property
    def stream_order(self) -> tuple[Int64Array, Int64Array]:
        """GPU events stream by stream in order of start, and the number of the stream of each."""
        trace = self.work.trace
        _, stream = number_groups([trace.device, trace.stream])
        order = np.lexsort((self.work.start, stream))
        return order, stream[order]

    def by_operation(
        self, value: Callable[..., float], *columns: Sequence[Any], otherwise: float = 0
    ) -> Float64Array:
        """What holds of each row of the roofline, for the GPU events of each, (g,).

        `value` is of a row and its items in the columns; 0 for what no number of elements can be.
        """
        values = map(value, self.roofline.rows, *columns)
        sane = [value if value < MOST_ELEMENTS else 0 for value in values]
        return np.array([*sane, otherwise], dtype=np.float64)[self.roofline.groups.of_gpu]

    def ranked_by(
        self, label: Callable[..., str], claim: Claim, *columns: Sequence[Any]
    ) -> list[Place]:
        """The labels of rows of the roofline with most of a claim; columns as of `by_operation`."""
        labels = [*map(label, self.roofline.rows, *columns)]
        return ranked(self.roofline.groups.of_gpu[claim.events], labels, claim.event_ns)

    @cached_property
    def peaks_of_rows(self) -> list[DevicePeaks | None]:
        """The peaks of the device of each row of the roofline."""
        return [self.roofline.peaks.get(d) for d in self.roofline.groups.device.tolist()]

    def named(self, pattern: re.Pattern[str]) -> BoolArray:
        """The kernels in whose names a pattern is found, collectives left out, (g,)."""
        work = self.work
        found: BoolArray = work.trace.named(work.name, pattern.search)
        return found & work.is_kernel & ~work.is_communication

    def by_device(self, value: Callable[..., float]) -> Float64Array:
        """What holds of the device of each GPU event, by what the file says of it and its peaks."""
        trace = self.work.trace
        result = np.zeros(len(self.work))
        for number, peaks in self.roofline.peaks.items():
            result[trace.device == number] = value(trace.described(number), peaks)
        return result

    def beyond(self, needed: Float64Array, far: float) -> Float64Array:
        """What calls take beyond what they need, ns, as a share of each GPU event's time, (g,).

        What is not known needs 0; what takes less than `far` times as long takes nothing too much.
        """
        work = self.work
        chosen = (needed > 0) & self.wall.free
        share = np.zeros(len(work))
        if chosen.any():
            call = self.launchers.of_gpu[chosen]
            needed = needed[chosen]
            takes = np.bincount(call, work.duration[chosen])[call]
            share[chosen] = np.where(takes > far * needed, 1.0 - needed / takes, 0.0)
        return share

    def rate_of(self, slow: BoolArray) -> float:
        """TFLOP/s of the calls of some GPU events."""
        events = np.flatnonzero(slow)
        _, first = np.unique(self.launchers.of_gpu[events], return_index=True)
        flops = self.by_operation(lambda row: row.cost.flops if row.cost else 0)
        time = max(float(self.work.duration[events].sum()), 1.0)
        return float(flops[events[first]].sum()) / time / 1e3

    @property
    def kernel_profiler(self) -> str:
        """What profiles single kernels on the trace's GPUs."""
        trace = self.work.trace
        names = " ".join(trace.names[code] for code in np.unique(trace.name).tolist()[:1000])
        is_amd = program_of(trace).tool == "rocprofv3" or any(f" {a}" in names for a in _AMD)
        is_amd |= any("AMD" in device.name for device in trace.devices)
        return "rocprof-compute" if is_amd else "ncu"

    @property
    def is_of_pytorch(self) -> bool:
        """Whether code of PyTorch helps."""
        return program_of(self.work.trace).kind in PYTORCH

    @cached_property
    def missing(self) -> dict[str, str]:
        """What was not recorded, and how this program's tool records it."""
        return {each.what: each.how for each in recording_of(self.work).missing}

    @cached_property
    def judged_ns(self) -> float:
        """The part of the wall time that is recorded and no start-up."""
        return max(recording_of(self.work).judged_ns, 1.0)

    def note(self, sentence: str) -> None:
        """Say once what cannot be looked for."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def host_rows(self, pattern: re.Pattern[str], *kinds: EventKind) -> Int64Array:
        """The host events of some kinds whose name a pattern matches from its beginning."""
        return self.work.trace.rows_named(pattern, *kinds)

    def host_ms(self, rows: Int64Array) -> float:
        """How long some host events last together."""
        return float(self.work.trace.dur[rows].sum()) / NS_PER_MS

    def rows_in(self, claim: Claim, rows: Int64Array) -> Int64Array:
        """Those of some host events that run in the idle time of a claim."""
        its = claim.intervals.chosen(claim.intervals.gap != NONE)
        trace = self.work.trace
        return rows[covered(its.start, its.end, trace.ts[rows], trace.end_of(rows)) > 0]

    def held_by(self, rows: Int64Array, others: Int64Array) -> Int64Array:
        """How many of some other host events begin in each of some, on its thread."""
        trace = self.work.trace
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        others = others[by_group_and_time(trace.thread[others], trace.ts[others])]
        begun = trace.thread[others], trace.ts[others], trace.thread[rows]
        return items_before(*begun, trace.end_of(rows)) - items_before(*begun, trace.ts[rows])

    def starts_work(self, rows: Int64Array) -> BoolArray:
        """Whether GPU work is launched in each of some host events, by its thread."""
        launches = distinct(self.work.tree.launch_of_gpu[self.work.tree.linked])
        return self.held_by(rows, launches) > 0

    def claim(self, claims: Callable[[WallTime], Claim]) -> Claim:
        """Claim wall time; what is too small to be told, as `finding` says, stays for others."""
        wall = self.wall.copy()
        claim = claims(wall)
        if self.is_worth(claim):
            self.wall = wall
        return claim

    def is_worth(self, claim: Claim) -> bool:
        """Whether a claim is large enough for anybody's attention; `finding` drops all others."""
        return self.share_percent(claim) >= LEAST_SHARE_PERCENT

    def share_percent(self, claim: Claim) -> float:
        """What a claim is of the wall time that can be judged."""
        return 100.0 * claim.saving_ns / self.judged_ns

    def finding(
        self,
        detector: str,
        claim: Claim | None,
        numbers: Sequence[float | None] = (),
        *,
        evidence: Sequence[Evidence] = (),
        low_ms: float | None = None,
        high_ms: float | None = None,
        where: Mapping[str, Sequence[Place]] | None = None,
        informs: bool = False,
        variant: str = "",
        told: Mapping[str, object] | None = None,
        **texts: str,
    ) -> Finding | None:
        """A finding about a claim; None if it is too small for anybody's attention.

        What it says is in `texts.toml`, or an argument.

        Args:
            detector: its id.
            claim: what the fix saves; None for one that informs of no GPU events or gaps.
            numbers: of the `evidence` in `texts.toml`, in that order; None for what is not told.
            evidence: further numbers.
            low_ms: the least that the fix saves.
            high_ms: the most that the fix may save.
            where: what is known better than from the gaps and GPU events that are claimed.
            informs: whether it claims nothing: the claim is what it is about.
            variant: which of several texts.
            told: what stands in texts for names in braces.
            texts: `title`, a sentence in which `{saving}` stands for the claim; `advice`, what to
                change; `snippet`, that in code; `confidence`, how sure it is; `reason`, why.
        """
        if claim is not None and not self.is_worth(claim):
            return None
        if odd := texts.keys() - _TEXTS:
            raise TypeError(f"no such text: {', '.join(sorted(odd))}")
        found = own_texts().get(detector, {})
        of_variant = found.get(variant, {})
        said: dict[str, Any] = {**dict.fromkeys(_TEXTS, ""), **found, **of_variant, **texts}
        saving, share = (claim.saving_ms, self.share_percent(claim)) if claim else (0.0, 0.0)
        known = {"saving": saving_text(saving, share), "share": share, **of_variant, **(told or {})}

        def filled(its: re.Match[str]) -> str:
            return format(known[its[1]], its[2] or "") if its[1] in known else its[0]

        text = partial(_NAMED.sub, filled)
        informs |= claim is None or bool(numbers and found.get("informs"))
        numbered = zip(said.get("evidence", ()), numbers, strict=bool(numbers))
        return Finding(
            id=detector,
            title=text(said["title"]) + (_worst(claim) if claim and not informs else ""),
            saving_ms=0.0 if informs else saving,
            share_percent=0.0 if informs else share,
            confidence=said["confidence"],
            confidence_reason=text(said["reason"]),
            where=places_of(self.work, claim, self.idle_moments, where) if claim else {},
            evidence=[
                *(Evidence(text(what), n, *its) for (what, *its), n in numbered if n is not None),
                *evidence,
            ],
            advice=text(said["advice"]),
            documentation=said.get("documentation", f"docs/findings.md#{detector}"),
            snippet=text(said["snippet"]) if self.is_of_pytorch else "",
            saving_low_ms=low_ms,
            saving_high_ms=high_ms,
            claim=None if informs else claim,
        )

    def claimed(
        self,
        detector: str,
        claim: Callable[[WallTime], Claim] | Float64Array,
        numbers: Sequence[float | None] = (),
        *,
        kinds: Labelled | None = None,
    ) -> Finding | None:
        """A finding of some GPU events; too small a claim is left to others.

        `claim` claims wall time, or is the share of each GPU event that is claimed, (g,). `kinds`
        are further places: the code of each GPU event, `NONE` for none, (g,), and its labels.
        """
        its = self.claim(
            claim if callable(claim) else lambda wall: wall.claim_events(claim > 0, claim)
        )
        if not self.is_worth(its):
            return None
        places = (kinds or {}).items()
        where = {kind: ranked(code[its.events], of, its.event_ns) for kind, (code, of) in places}
        return self.finding(detector, its, [*self.size_of(its), *numbers], where=where)

    def size_of(self, claim: Claim) -> tuple[int, float]:
        """How many GPU events a claim has something of, and how long they take, ms."""
        return len(claim.events), self.wall.mean_ms(self.work.duration[claim.events])


@lru_cache(maxsize=1)
def own_texts() -> dict[str, dict[str, Any]]:
    """What our own detectors say, by their ids."""
    import tomllib

    text = files(__package__ or "").joinpath("texts.toml").read_text(encoding="utf-8")
    return {name: {"confidence": "medium", **told} for name, told in tomllib.loads(text).items()}


def _worst(claim: Claim) -> str:
    """Which of several devices loses most, as a title goes on."""
    if len(claim.devices) < 2:
        return ""
    of_devices = claim.ns_of_devices
    worst = int(of_devices.argmax())
    return f"; most on device {claim.devices[worst]}: {of_devices[worst] / NS_PER_MS:,.1f} ms"


@dataclass(frozen=True)
class Detector:
    """Looks for one kind of finding."""

    id: str  #: of the findings, lower case with hyphens
    #: claims wall time of the inspected trace, and tells what it found; None for nothing. Detectors
    #: are asked one after another, and what one claims no later one can
    detect: Callable[[Inspection], Finding | None]
    #: what happens to what it claims, where it does not simply go: GPU work `overlaps` the rest;
    #: the host `waits no longer`; `launches go` with their kernels
    instead: Instead = ""
    kinds: Collection[str] = get_args(Kind)  #: of programs of which it is looked for
    #: by kind of program what to change, and that in code, instead of what `detect` says; of
    #: `other` in all that are not of PyTorch and that it does not name
    advice: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def advised(self, finding: Finding, kind: Kind) -> Finding:
        """A finding of it, with the advice for a kind of program."""
        told = self.advice.get(kind) or (() if kind in PYTORCH else self.advice.get("other"))
        return replace(finding, advice=told[0], snippet="".join(told[1:])) if told else finding
