"""The inspection of a trace: what detectors see of it, and how they return findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.coverage.program import PYTORCH, program_of
from tracelens_ext.analysis.idle_time.cpu_activity import idle_time_segments
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.findings.attribution import places_of, ranked
from tracelens_ext.findings.chosen_texts import ChosenTexts, evidence_of
from tracelens_ext.findings.detector import Detector as Detector
from tracelens_ext.findings.finding import LEAST_SHARE_PERCENT as LEAST_SHARE_PERCENT
from tracelens_ext.findings.finding import (
    Claim,
    Confidence,
    Evidence,
    Finding,
    Place,
    saving_text,
)
from tracelens_ext.findings.program_facts import ProgramFacts
from tracelens_ext.findings.texts import FindingText
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.isolation import PartFailures
from tracelens_ext.roofline.analysis import Roofline, RooflineRow
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    EventKind,
    Float64Array,
    Int64Array,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import LabeledColumns, number_groups
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

#: Numbers of elements from here on come from damaged traces.
MOST_ELEMENTS: Final = 2**62
#: The share of the memory bandwidth that memory-bound kernels reach.
MEMORY_SHARE: Final = 0.7
#: The texts of a finding that a detector may replace.
_TEXTS: Final = ("title", "advice", "snippet", "confidence", "reason")
_AMD: Final = ("hip", "roc")
_NO_TEXT: Final = FindingText(confidence=cast("Confidence", ""))
_NO_NUMBERS: Final[Mapping[str, float | None]] = MappingProxyType({})
NO_SHAPES: Final = (
    "The trace has no shapes, so slow matrix products and chains of memory-bound "
    "operations cannot be detected, and attention only by name; record shapes with "
    "{how}."
)


class FailedPartError(Exception):
    """A part that a detector needs could not be computed. This was already reported."""


class StreamOrder(NamedTuple):
    """The g GPU events by stream and start."""

    events: Int64Array  #: indices of the GPU events, (g,)
    stream: Int64Array  #: the number of the stream of each of them, (g,)


class _ExpectedSaving(NamedTuple):
    """What the fix of a finding saves."""

    time_ms: float  #: the attributed time
    share_percent: float  #: its share of the analyzed time
    low_ms: float | None  #: the least that the fix saves; None for the attributed time
    high_ms: float | None  #: the most that the fix saves; None for the attributed time


_NO_SAVING: Final = _ExpectedSaving(0.0, 0.0, None, None)


@dataclass(eq=False)
class Inspection:
    """A trace as detectors see it."""

    gpu_events: GpuEvents  #: the g GPU events
    find_launchers: Callable[[], Launchers]  #: finds the operations that launched them
    #: compares those operations with the best case
    find_roofline: Callable[[], Roofline]
    wall: WallTime  #: the wall time, and the claims on it
    #: sentences about problems that cannot be detected; detectors add to them
    notes: list[str] = field(default_factory=list)
    #: collects the parts that could not be computed
    failures: PartFailures = field(default_factory=PartFailures)

    @property
    def work(self) -> GpuEvents:
        """The GPU events, by their earlier name."""
        return self.gpu_events

    @cached_property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""
        return self.find_launchers()

    @cached_property
    def idle_moments(self) -> Any:  # noqa: ANN401 (a function with a cache)
        """`idle_time_segments` of the work, with a cache of its results."""
        return cache(partial(idle_time_segments, self.gpu_events))

    @property
    def roofline(self) -> Roofline:
        """The operations compared with their best case.

        Raises:
            FailedPartError: the roofline could not be computed.
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
        """True if arguments of operations were recorded. If not, a note says how to do it."""
        how = self.missing.get("shapes")
        if how and not self.roofline.has_shapes:
            self.note(NO_SHAPES.format(how=how))
        return self.roofline.has_shapes

    @cached_property
    def stream_order(self) -> StreamOrder:
        """The GPU events by stream and start."""
        trace = self.gpu_events.trace
        _, stream = number_groups([trace.device, trace.stream])
        order = np.lexsort((self.gpu_events.start, stream))
        return StreamOrder(events=order, stream=stream[order])

    def by_operation(
        self, value: Callable[..., float], *columns: Sequence[Any], otherwise: float = 0
    ) -> Float64Array:
        """Return a value of the operation of each GPU event, (g,).

        Args:
            value: returns the value for a row of the roofline and its items of the columns. A value
                that no number of elements can be counts as 0.
            columns: further arguments of `value`, an item for each row.
            otherwise: the value of GPU events without an operation.
        """
        values = list(map(value, self.roofline.rows, *columns))
        possible_values = [number if number < MOST_ELEMENTS else 0 for number in values]
        # The index `NONE`, -1, of events without an operation reads the last value.
        possible_values.append(otherwise)
        value_of_rows = np.array(possible_values, dtype=np.float64)
        return value_of_rows[self.roofline.groups.of_gpu]

    def ranked_by(
        self, label: Callable[..., str], claim: Claim, *columns: Sequence[Any]
    ) -> list[Place]:
        """Return the labels of operations with most of a claim; columns as in `by_operation`."""
        labels = list(map(label, self.roofline.rows, *columns))
        row_of_event = self.roofline.groups.of_gpu[claim.events]
        return ranked(row_of_event, labels, claim.event_ns)

    @cached_property
    def peaks_of_rows(self) -> list[DevicePeaks | None]:
        """The peaks of the device of each row of the roofline."""
        devices = self.roofline.groups.device.tolist()
        return [self.roofline.peaks.get(device) for device in devices]

    def named(self, pattern: re.Pattern[str]) -> BoolArray:
        """Return which GPU events are kernels with a pattern in the name, without collectives."""
        gpu_events = self.gpu_events
        is_named: BoolArray = gpu_events.trace.named(gpu_events.name, pattern.search)
        return is_named & gpu_events.is_kernel & ~gpu_events.is_communication

    def by_device(self, value: Callable[..., float]) -> Float64Array:
        """Return a value of the device of each GPU event, (g,).

        Args:
            value: returns the value for a device as the trace describes it, and its peaks; both may
                be None.
        """
        trace = self.gpu_events.trace
        result = np.zeros(len(self.gpu_events))
        for number, peaks in self.roofline.peaks.items():
            device = trace.described(number)
            is_on_device = trace.device == number
            result[is_on_device] = value(device, peaks)
        return result

    def beyond(self, needed: Float64Array, far: float) -> Float64Array:
        """Return the share of each GPU event's time that its call takes too long, (g,).

        Args:
            needed: the time that the call of each GPU event needs, ns, (g,); 0: not known.
            far: a call is too long only if it takes more than this times the needed time.
        """
        gpu_events = self.gpu_events
        is_known = (needed > 0) & self.wall.free
        share = np.zeros(len(gpu_events))
        if is_known.any():
            call = self.launchers.of_gpu[is_known]
            needed_ns = needed[is_known]
            call_ns = np.bincount(call, gpu_events.duration[is_known])
            taken_ns = call_ns[call]
            is_too_long = taken_ns > far * needed_ns
            share[is_known] = np.where(is_too_long, 1.0 - needed_ns / taken_ns, 0.0)
        return share

    def rate_of(self, is_chosen: BoolArray) -> float:
        """Return the rate of the calls of some GPU events, (g,), in TFLOP/s."""
        events = np.flatnonzero(is_chosen)
        _, first = np.unique(self.launchers.of_gpu[events], return_index=True)
        first_events = events[first]
        flops = self.by_operation(_flops_of_row)[first_events]
        total_flops = float(flops.sum())
        busy_ns = float(self.gpu_events.duration[events].sum())
        flops_per_ns = total_flops / max(busy_ns, 1.0)
        return flops_per_ns / 1e3

    @cached_property
    def facts(self) -> ProgramFacts:
        """The facts about the program and the device on which advice depends."""
        return ProgramFacts(self.gpu_events, self._known_peaks)

    def _known_peaks(self) -> Mapping[int, DevicePeaks | None]:
        roofline = self._roofline_if_computed
        if roofline is None:
            return {}
        return roofline.peaks

    @property
    def kernel_profiler(self) -> str:
        """The command that profiles single kernels on the GPUs of the trace."""
        trace = self.gpu_events.trace
        names = " ".join(
            trace.names[code] for code in np.unique(trace.name).tolist()[:1000]
        )
        is_amd = program_of(trace).tool == "rocprofv3"
        is_amd |= any(f" {prefix}" in names for prefix in _AMD)
        is_amd |= any("AMD" in device.name for device in trace.devices)
        if is_amd:
            return "rocprof-compute"
        return "ncu"

    @property
    def is_of_pytorch(self) -> bool:
        """True if the program uses PyTorch, so that snippets of PyTorch code help."""
        return program_of(self.gpu_events.trace).kind in PYTORCH

    @cached_property
    def missing(self) -> dict[str, str]:
        """How to record what the trace lacks, such as `shapes`, by its name."""
        missing_parts = coverage_of(self.gpu_events).missing
        return {part.what: part.how for part in missing_parts}

    @cached_property
    def analyzed_ns(self) -> float:
        """The part of the wall time that was recorded and is not warm-up; at least 1."""
        return max(coverage_of(self.gpu_events).analyzed_ns, 1.0)

    def note(self, sentence: str) -> None:
        """Add a sentence about a problem that cannot be detected, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def host_rows(self, pattern: re.Pattern[str], *kinds: EventKind) -> Int64Array:
        """Return the host events of some kinds whose names a pattern matches from the beginning."""
        return self.gpu_events.trace.rows_named(pattern, *kinds)

    def host_ms(self, rows: Int64Array) -> float:
        """Return the total duration of some host events, ms."""
        return float(self.gpu_events.trace.dur[rows].sum()) / NS_PER_MS

    def rows_in(self, claim: Claim, rows: Int64Array) -> Int64Array:
        """Return those of some host events that overlap the idle time of a claim."""
        trace = self.gpu_events.trace
        idle = claim.intervals.chosen(claim.intervals.gap != NONE)
        idle_ns = covered(idle.start, idle.end, trace.ts[rows], trace.end_of(rows))
        return rows[idle_ns > 0]

    def held_by(self, rows: Int64Array, others: Int64Array) -> Int64Array:
        """Return how many other host events start inside of each host event on its thread.

        Args:
            rows: the rows of n host events, (n,).
            others: the rows of the events to count.
        """
        trace = self.gpu_events.trace
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        order = by_group_and_time(trace.thread[others], trace.ts[others])
        others = others[order]
        thread = trace.thread[rows]
        other_thread = trace.thread[others]
        other_start = trace.ts[others]
        count_before_end = items_before(
            other_thread, other_start, thread, trace.end_of(rows)
        )
        count_before_start = items_before(
            other_thread, other_start, thread, trace.ts[rows]
        )
        return count_before_end - count_before_start

    def starts_work(self, rows: Int64Array) -> BoolArray:
        """Return which host events launch GPU work on their own thread."""
        launches = distinct(
            self.gpu_events.tree.launch_of_gpu[self.gpu_events.tree.linked]
        )
        return self.held_by(rows, launches) > 0

    def claim(self, claims: Callable[[WallTime], Claim]) -> Claim:
        """Claim wall time; a claim too small for a finding is undone, so that others can have it.

        Args:
            claims: makes the claim on a copy of the wall time.
        """
        wall = self.wall.copy()
        claim = claims(wall)
        if self.is_worth(claim):
            self.wall = wall
        return claim

    def is_worth(self, claim: Claim) -> bool:
        """Return whether a claim is large enough for a finding."""
        return self.share_percent(claim) >= LEAST_SHARE_PERCENT

    def share_percent(self, claim: Claim) -> float:
        """Return a claim as a percentage of the analyzed time."""
        return 100.0 * claim.attributed_ns / self.analyzed_ns

    def finding(
        self,
        detector: str,
        claim: Claim | None,
        numbers: Mapping[str, float | None] = _NO_NUMBERS,
        *,
        text: FindingText = _NO_TEXT,
        evidence: Sequence[Evidence] = (),
        low_ms: float | None = None,
        high_ms: float | None = None,
        where: Mapping[str, Sequence[Place]] | None = None,
        informs: bool = False,
        variant: str = "",
        values: Mapping[str, object] | None = None,
        **texts: str,
    ) -> Finding | None:
        """Return a finding about attributed time; None if the time is too short for attention.

        Args:
            detector: the id of the detector.
            claim: the attributed time, which the fix saves; None for a finding that only informs
                and is not about GPU events or gaps.
            numbers: the numbers of `text.evidence` by their names; None for unknown numbers.
            text: the texts of the finding.
            evidence: further numbers.
            low_ms: the least that the fix saves.
            high_ms: the most that the fix may save.
            where: places that the detector knows better; they replace those found for the claim.
            informs: True if the finding only informs: the claim tells where, but is not attributed.
            variant: the name of a variant of `text`.
            values: values for the names in braces in the texts.
            texts: texts that replace those of `text`: `title`, a sentence in which `{saving}`
                stands for the attributed time; `advice`, what to change; `snippet`, the change as
                code; `confidence`, how sure it is; `reason`, the reason for the confidence.
        """
        if claim is not None and not self.is_worth(claim):
            return None
        unknown_texts = texts.keys() - _TEXTS
        if unknown_texts:
            raise TypeError(f"there is no text for {', '.join(sorted(unknown_texts))}")
        informs = informs or claim is None or text.informs_only
        saving = _NO_SAVING
        places: Mapping[str, Sequence[Place]] = {}
        if claim is not None:
            saving = self._expected_saving(claim, text, low_ms, high_ms)
            places = places_of(self.gpu_events, claim, self.idle_moments, where)
            if not informs:
                places = {**places, **_places_of_devices(claim)}
        chosen_texts = ChosenTexts(
            program_kind=program_of(self.gpu_events.trace).kind,
            facts=self.facts,
            text=text,
            variant=variant,
            given=texts,
        )
        chosen_texts.fill(
            {
                "saving": saving_text(saving.time_ms, saving.share_percent),
                "share": saving.share_percent,
            },
            values or {},
        )
        if informs:
            # Only the texts have the time of such a finding.
            claim = None
            saving = _NO_SAVING
        page = chosen_texts.template("documentation")
        return Finding(
            id=detector,
            title=chosen_texts.get("title"),
            saving_ms=saving.time_ms,
            share_percent=saving.share_percent,
            confidence=cast("Confidence", chosen_texts.template("confidence")),
            confidence_reason=chosen_texts.get("reason"),
            where=places,
            evidence=evidence_of(text, numbers, chosen_texts.values) + list(evidence),
            advice=chosen_texts.get("advice"),
            documentation=page or f"tracelens-ext explain finding {detector}",
            snippet=chosen_texts.get("snippet"),
            saving_low_ms=saving.low_ms,
            saving_high_ms=saving.high_ms,
            claim=claim,
        )

    def _expected_saving(
        self,
        claim: Claim,
        text: FindingText,
        low_ms: float | None,
        high_ms: float | None,
    ) -> _ExpectedSaving:
        """Return what the fix of a finding saves.

        Args:
            claim: the attributed time.
            text: the texts of the finding, with its usual range.
            low_ms: the least that the fix saves, if the detector knows it.
            high_ms: the most that the fix saves, if the detector knows it.
        """
        attributed_ms = claim.attributed_ms
        if low_ms is None and text.least_share < 1:
            low_ms = text.least_share * attributed_ms
        if high_ms is None and text.most_share > 1:
            high_ms = text.most_share * attributed_ms
        return _ExpectedSaving(
            time_ms=attributed_ms,
            share_percent=self.share_percent(claim),
            low_ms=low_ms,
            high_ms=high_ms,
        )

    def finding_of_events(
        self,
        detector: str,
        claim: Callable[[WallTime], Claim] | Float64Array,
        numbers: Mapping[str, float | None] = _NO_NUMBERS,
        *,
        text: FindingText,
        places: LabeledColumns | None = None,
        variant: str = "",
        values: Mapping[str, object] | None = None,
    ) -> Finding | None:
        """Return a finding about some GPU events; None, without a claim, if it is too small.

        Args:
            detector: the id of the detector.
            claim: a function that makes the claim; or the share of each GPU event to claim, (g,).
            numbers: the numbers of `text.evidence`, except `events` and `time_ms`, which this
                method adds.
            text: the texts of the finding.
            places: further places by kind: the code of each GPU event, `NONE` without one, (g,),
                and the labels of the codes.
            variant: the name of a variant of `text`.
            values: values for the names in braces in the texts.
        """
        if callable(claim):
            attributed = self.claim(claim)
        else:
            share = claim
            attributed = self.claim(lambda wall: wall.claim_events(share > 0, share))
        if not self.is_worth(attributed):
            return None
        where = {}
        for kind, (code, labels) in (places or {}).items():
            where[kind] = ranked(code[attributed.events], labels, attributed.event_ns)
        return self.finding(
            detector,
            attributed,
            {**self.size_of(attributed), **numbers},
            text=text,
            where=where,
            variant=variant,
            values=values,
        )

    def size_of(self, claim: Claim) -> dict[str, float | None]:
        """Return the number of GPU events in a claim, and their whole duration."""
        duration = self.gpu_events.duration[claim.events]
        return {
            "events": len(claim.events),
            "time_ms": self.wall.mean_ms(duration),
        }


def _flops_of_row(row: RooflineRow) -> float:
    """Return the floating point operations of a call; 0 if they are not known."""
    if row.cost is None:
        return 0
    return row.cost.flops


def _places_of_devices(claim: Claim) -> dict[str, Sequence[Place]]:
    """Return the devices as places, the largest attributed time first; empty for one device."""
    if len(claim.devices) < 2:
        return {}
    ms_of_device = claim.ns_of_devices / NS_PER_MS
    intervals_of_device = np.bincount(
        claim.intervals.device_index, minlength=len(claim.devices)
    )
    places = []
    for index in np.argsort(-ms_of_device, kind="stable").tolist():
        name = f"device {claim.devices[index]}"
        count = int(intervals_of_device[index])
        places.append(Place(name, float(ms_of_device[index]), count))
    return {"devices": places}
