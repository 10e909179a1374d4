"""What a detector sees of a trace, and how it says what it found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.coverage.program import PYTORCH, program_of
from tracelens_ext.analysis.idle_time.cpu_activity import idle_time_segments
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.findings.attribution import places_of, ranked
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
from tracelens_ext.findings.texts import FindingText, VariantText, first_fitting
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
from tracelens_ext.trace.intervals import covered, distinct
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

#: No tensor has as many elements; what a broken trace says beyond it is not believed.
MOST_ELEMENTS: Final = 2**62
#: What kernels that are bound by memory reach of its bandwidth.
MEMORY_SHARE: Final = 0.7
#: What a finding says.
_TEXTS: Final = ("title", "advice", "snippet", "confidence", "reason")
_AMD: Final = ("hip", "roc")
_NO_TEXT: Final = FindingText(confidence=cast("Confidence", ""))
_NO_NUMBERS: Final[Mapping[str, float | None]] = MappingProxyType({})
#: A name in braces, perhaps with a format.
_NAMED: Final = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
NO_SHAPES: Final = (
    "The trace has no shapes, so slow matrix products and chains of memory-bound "
    "operations cannot be detected, and attention only by name; record shapes with "
    "{how}."
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
        """True if arguments of operations were recorded; a note says so if they were not."""
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
        sane.append(otherwise)
        value_of_rows = np.array(sane, dtype=np.float64)
        return value_of_rows[self.roofline.groups.of_gpu]

    def ranked_by(
        self, label: Callable[..., str], claim: Claim, *columns: Sequence[Any]
    ) -> list[Place]:
        """The labels of rows of the roofline with most of a claim; columns as of `by_operation`."""
        labels = list(map(label, self.roofline.rows, *columns))
        row_of_event = self.roofline.groups.of_gpu[claim.events]
        return ranked(row_of_event, labels, claim.event_ns)

    @cached_property
    def peaks_of_rows(self) -> list[DevicePeaks | None]:
        """The peaks of the device of each row of the roofline."""
        return [
            self.roofline.peaks.get(d) for d in self.roofline.groups.device.tolist()
        ]

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
            device = trace.described(number)
            is_on_device = trace.device == number
            result[is_on_device] = value(device, peaks)
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
            call_ns = np.bincount(call, work.duration[chosen])
            takes = call_ns[call]
            takes_too_long = takes > far * needed
            share[chosen] = np.where(takes_too_long, 1.0 - needed / takes, 0.0)
        return share

    def rate_of(self, slow: BoolArray) -> float:
        """TFLOP/s of the calls of some GPU events."""
        events = np.flatnonzero(slow)
        _, first = np.unique(self.launchers.of_gpu[events], return_index=True)
        first_events = events[first]
        flops = self.by_operation(_flops_of_row)[first_events]
        total_flops = float(flops.sum())
        busy_ns = float(self.work.duration[events].sum())
        flops_per_ns = total_flops / max(busy_ns, 1.0)
        return flops_per_ns / 1e3

    @cached_property
    def facts(self) -> ProgramFacts:
        """What the trace shows of the program and the device, as far as advice depends on it."""
        return ProgramFacts(self.work, self._known_peaks)

    def _known_peaks(self) -> Mapping[int, DevicePeaks | None]:
        roofline = self._roofline_if_computed
        if roofline is None:
            return {}
        return roofline.peaks

    @property
    def kernel_profiler(self) -> str:
        """What profiles single kernels on the trace's GPUs."""
        trace = self.work.trace
        names = " ".join(
            trace.names[code] for code in np.unique(trace.name).tolist()[:1000]
        )
        is_amd = program_of(trace).tool == "rocprofv3" or any(
            f" {a}" in names for a in _AMD
        )
        is_amd |= any("AMD" in device.name for device in trace.devices)
        return "rocprof-compute" if is_amd else "ncu"

    @property
    def is_of_pytorch(self) -> bool:
        """True if PyTorch code helps."""
        return program_of(self.work.trace).kind in PYTORCH

    @cached_property
    def missing(self) -> dict[str, str]:
        """What was not recorded, and how this program's tool records it."""
        return {each.what: each.how for each in recording_of(self.work).missing}

    @cached_property
    def analyzed_ns(self) -> float:
        """The part of the wall time that is recorded and not warm-up."""
        return max(recording_of(self.work).analyzed_ns, 1.0)

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
        order = by_group_and_time(trace.thread[others], trace.ts[others])
        others = others[order]
        thread = trace.thread[rows]
        other_thread = trace.thread[others]
        begun = trace.ts[others]
        before_end = items_before(other_thread, begun, thread, trace.end_of(rows))
        before_start = items_before(other_thread, begun, thread, trace.ts[rows])
        return before_end - before_start

    def starts_work(self, rows: Int64Array) -> BoolArray:
        """Return which host events launch GPU work on their own thread."""
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
        """Return True if a claim is large enough to report; `finding` drops all others."""
        return self.share_percent(claim) >= LEAST_SHARE_PERCENT

    def share_percent(self, claim: Claim) -> float:
        """What a claim is of the wall time that can be judged."""
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
        """Return a finding about attributed time; None if that is too little for attention.

        Args:
            detector: its id.
            claim: the attributed time, which the fix saves; None for a finding that informs of no
                GPU events or gaps.
            numbers: the numbers of `text.evidence`, by its keywords; None for what is unknown.
            text: what it says.
            evidence: further numbers.
            low_ms: the least that the fix saves.
            high_ms: the most that the fix may save.
            where: places that are known better than from the gaps and GPU events of the claim.
            informs: whether no time is attributed: the claim is what the finding is about.
            variant: which variant of `text`.
            values: what stands for names in braces in texts.
            texts: what it says instead of `text`: `title`, a sentence in which `{saving}` stands
                for the attributed time; `advice`, what to change; `snippet`, that in code;
                `confidence`, how sure it is; `reason`, why.
        """
        if claim is not None and not self.is_worth(claim):
            return None
        unknown = texts.keys() - _TEXTS
        if unknown:
            raise TypeError(f"there is no text for {', '.join(sorted(unknown))}")
        saving_ms = 0.0
        share_percent = 0.0
        if claim is not None:
            saving_ms = claim.attributed_ms
            share_percent = self.share_percent(claim)
            low_ms, assumed_high_ms = _range_ms(claim, text, low_ms)
            if high_ms is None:
                high_ms = assumed_high_ms
        chosen_texts = _ChosenTexts(self, text, variant, texts)
        chosen_texts.fill(
            {"saving": saving_text(saving_ms, share_percent), "share": share_percent},
            values or {},
        )
        informs = informs or claim is None or text.informs_only
        title = chosen_texts.get("title")
        places: Mapping[str, Sequence[Place]] = {}
        if claim is not None:
            places = places_of(self.work, claim, self.idle_moments, where)
            if not informs:
                places = {**places, **_places_of_devices(claim)}
        if informs:
            claim = None
            saving_ms = 0.0
            share_percent = 0.0
            low_ms = None
            high_ms = None
        page = chosen_texts.template("documentation")
        return Finding(
            id=detector,
            title=title,
            saving_ms=saving_ms,
            share_percent=share_percent,
            confidence=cast("Confidence", chosen_texts.template("confidence")),
            confidence_reason=chosen_texts.get("reason"),
            where=places,
            evidence=_evidence(text, numbers, chosen_texts.values) + list(evidence),
            advice=chosen_texts.get("advice"),
            documentation=page or f"tracelens-ext explain finding {detector}",
            snippet=chosen_texts.get("snippet"),
            saving_low_ms=low_ms,
            saving_high_ms=high_ms,
            claim=claim,
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
        """Return a finding of some GPU events; too small a claim is left to others.

        Args:
            detector: its id.
            claim: attributes time; or the share of each GPU event that is attributed, (g,).
            numbers: of its evidence, besides `events` and `time_ms`, which are found here.
            text: what it says.
            places: further places: the code of each GPU event, `NONE` for none, (g,), and labels.
            variant: which variant of `text`.
            values: what stands for names in braces in texts.
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
        """Return how many GPU events a claim has something of, and how long they take."""
        duration = self.work.duration[claim.events]
        return {
            "events": len(claim.events),
            "time_ms": self.wall.mean_ms(duration),
        }


def _range_ms(
    claim: Claim, text: FindingText, low_ms: float | None
) -> tuple[float | None, float | None]:
    """Return the least and the most that a fix saves, ms; None for the attributed time."""
    attributed_ms = claim.attributed_ms
    high_ms = None
    if low_ms is None and text.least_share < 1:
        low_ms = text.least_share * attributed_ms
    if text.most_share > 1:
        high_ms = text.most_share * attributed_ms
    return low_ms, high_ms


class _ChosenTexts:
    """The texts of a finding: as the detector tells, else of the variant, else of the finding."""

    def __init__(
        self,
        inspection: Inspection,
        text: FindingText,
        variant: str,
        given: Mapping[str, str],
    ) -> None:
        self.text = text
        self.variant = text.variants.get(variant, VariantText())
        self.values: dict[str, object] = {}
        self._given = dict(given)
        if "advice" not in given:
            self._choose_advice(inspection)
        elif not inspection.is_of_pytorch:
            self._given["snippet"] = ""

    def _choose_advice(self, inspection: Inspection) -> None:
        """Choose the advice that fits the program and what the trace shows of it."""
        kind = program_of(inspection.work.trace).kind
        variants = self.variant.advices
        if not variants and self.variant.advice is None:
            variants = self.text.advices
        chosen = first_fitting(variants, kind, inspection.facts)
        if chosen is not None:
            self._given["advice"] = chosen.text(inspection.facts)
            self._given["snippet"] = chosen.snippet
        if not inspection.is_of_pytorch and (chosen is None or not chosen.kinds):
            self._given["snippet"] = ""

    def fill(self, *values: Mapping[str, object]) -> None:
        """Set what stands for names in braces; later values count."""
        self.values = {}
        self.values.update(values[0])
        self.values.update(self.variant.values)
        for some_values in values[1:]:
            self.values.update(some_values)

    def template(self, name: str) -> str:
        """Return a text as it is declared."""
        if name in self._given:
            return self._given[name]
        of_variant: str | None = getattr(self.variant, name)
        if of_variant is not None:
            return of_variant
        of_finding: str = getattr(self.text, name)
        return of_finding

    def get(self, name: str) -> str:
        """Return a text with the values of the names in braces."""
        return _fill(self.template(name), self.values)


def _flops_of_row(row: RooflineRow) -> float:
    """Return the operations of one call, 0 where they are not known."""
    if row.cost is None:
        return 0
    return row.cost.flops


def _fill(template: str, values: Mapping[str, object]) -> str:
    """Return a text with the values of the names in braces; unknown names stay."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        value = values[name]
        format_specification = match[2] or ""
        return format(value, format_specification)

    return _NAMED.sub(value_of, template)


def _evidence(
    text: FindingText, numbers: Mapping[str, float | None], values: Mapping[str, object]
) -> list[Evidence]:
    """Return the numbers that are known, with what they are."""
    if numbers and numbers.keys() != text.evidence.keys():
        wrong = ", ".join(sorted(numbers.keys() ^ text.evidence.keys()))
        raise TypeError(f"numbers and evidence texts differ: {wrong}")
    result = []
    for name, about in text.evidence.items():
        number = numbers.get(name)
        if number is None:
            continue
        what = _fill(about.what, values)
        evidence = Evidence(what, number, about.unit, about.see)
        result.append(evidence)
    return result


def _places_of_devices(claim: Claim) -> dict[str, Sequence[Place]]:
    """Return what is attributed on each of several devices, the largest first."""
    if len(claim.devices) < 2:
        return {}
    of_devices_ms = claim.ns_of_devices / NS_PER_MS
    intervals_of_devices = np.bincount(
        claim.intervals.device_index, minlength=len(claim.devices)
    )
    places = []
    for index in np.argsort(-of_devices_ms, kind="stable").tolist():
        name = f"device {claim.devices[index]}"
        count = int(intervals_of_devices[index])
        places.append(Place(name, float(of_devices_ms[index]), count))
    return {"devices": places}
