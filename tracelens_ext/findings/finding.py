"""The classes for findings, the wall time attributed to them, and all findings of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from tracelens_ext.compatibility.earlier_arguments import keeps_old_names
from tracelens_ext.findings.explanations import explanation_of
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.text import ms_text
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    Float64Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.grouping import sums
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.intervals import union

Confidence = Literal["high", "medium", "low"]
#: A finding that saves less of the analyzed time, percent, is not worth attention.
LEAST_SHARE_PERCENT: Final = 1.0


class Intervals(NamedTuple):
    """The i attributed intervals of time. Intervals of the same device do not overlap."""

    start: Int64Array  #: ns since the trace's first event, (i,)
    end: Int64Array  #: ns since the trace's first event, (i,)
    device_index: IntArray  #: the device, an index into `Claim.devices`, (i,)
    gap: IntArray  #: the gap that contains the interval, `NONE` if a GPU event runs, (i,)
    event: Int64Array  #: the GPU event that runs, `NONE` in a gap, (i,)
    #: the CPU thread that a gap waits for; `NONE` for a GPU event and if unknown, (i,)
    thread: Int64Array

    def chosen(self, which: BoolArray | Int64Array) -> Intervals:
        """Return the selected intervals."""
        return Intervals._make(column[which] for column in self)

    @classmethod
    def joined(cls, several: Iterable[Intervals]) -> Intervals:
        """Return several sets of intervals as one."""
        columns = zip(*several, strict=True)
        return cls._make(np.concatenate(column) for column in columns)


@keeps_old_names
@dataclass(frozen=True, eq=False)
class Claim:
    """Wall time that is attributed to a finding; sums are means over the devices that work."""

    intervals: Intervals
    devices: list[int | str]  #: the labels of the devices that work
    wall_start: int  #: the start of the wall time, ns since the trace's first event

    @property
    def ns(self) -> Float64Array:
        """The length of each interval divided by the number of devices, (i,)."""
        return (self.intervals.end - self.intervals.start) / len(self.devices)

    @property
    def attributed_ns(self) -> float:
        """Total attributed time in ns."""
        return float(self.ns_of_devices.sum()) / len(self.devices)

    @property
    def attributed_ms(self) -> float:
        """Total attributed time in ms."""
        return self.attributed_ns / NS_PER_MS

    @property
    def ns_of_devices(self) -> Int64Array:
        """Attributed time of each device, ns."""
        intervals = self.intervals
        length = intervals.end - intervals.start
        return sums(intervals.device_index, length, len(self.devices))

    @cached_property
    def events(self) -> Int64Array:
        """The j GPU events of which some time is attributed, (j,)."""
        return distinct(self.intervals.event[self.intervals.event != NONE])

    @cached_property
    def event_ns(self) -> Float64Array:
        """The attributed time of each of `events`, ns, (j,)."""
        is_busy = self.intervals.event != NONE
        event = self.intervals.event[is_busy]
        busy_ns = self.ns[is_busy]
        position = np.searchsorted(self.events, event)
        total = np.bincount(position, busy_ns, len(self.events))
        return total.astype(np.float64)

    @property
    def idle_ns(self) -> float:
        """The part of the attributed time that is idle time, ns."""
        idle = self.intervals.chosen(self.intervals.gap != NONE)
        return float((idle.end - idle.start).sum()) / len(self.devices)

    def as_records(self) -> list[dict[str, object]]:
        """Return the intervals of each device for JSON, ns since the start of the wall time.

        Adjacent intervals are merged.
        """
        records: list[dict[str, object]] = []
        for device_index, device in enumerate(self.devices):
            is_on_device = self.intervals.device_index == device_index
            intervals = self.intervals.chosen(is_on_device)
            merged = np.column_stack(union(intervals.start, intervals.end))
            from_start = merged - self.wall_start
            for start, end in from_start.tolist():
                record = {"device": device, "start_ns": start, "end_ns": end}
                records.append(record)
        return records

    def __add__(self, other: Claim) -> Claim:
        """Return the sum of two claims, which must not overlap."""
        both = Intervals.joined((self.intervals, other.intervals))
        return replace(self, intervals=both)


@keeps_old_names
@dataclass(frozen=True)
class Place:
    """A place of attributed time: an operation, a kernel, a line of Python and so on."""

    name: str
    attributed_ms: float  #: the part of the attributed time at this place
    count: int  #: the number of GPU events or gaps in this part


@dataclass(frozen=True)
class Evidence:
    """A number that supports a finding."""

    what: str  #: what the number means, as a clause
    value: float
    unit: str  #: such as `ms`, `%`, `GPU events`
    see: str  #: the sheet or the command that shows the number


@keeps_old_names
@dataclass(frozen=True)
class Finding:
    """A problem that costs wall time, and how to fix it."""

    id: str  #: the kind of finding; a trace has at most one finding of each kind
    title: str  #: the problem and its cost
    #: Wall time of this trace that the fix saves; 0 for a finding that only informs. The detector
    #: sets the attributed time, which the simulation replaces with the saving.
    saving_ms: float
    share_percent: float  #: the attributed time as a percentage of the analyzed time
    confidence: Confidence  #: how sure it is that the fix saves this time
    confidence_reason: str  #: the reason for this confidence, as a clause
    #: The places by kind (`operations`, `modules`, `python_frames`, `iterations`, `streams`,
    #: `kernels` …), the largest part of the attributed time first.
    where: Mapping[str, Sequence[Place]]
    evidence: Sequence[Evidence]  #: the numbers behind the finding
    advice: str  #: what to change
    #: a command or URL that shows the text about this kind of finding
    documentation: str
    snippet: str = ""  #: the change as a line of code; empty if one line is not enough
    #: the least and the most that the fix saves; None if they equal `saving_ms`
    saving_low_ms: float | None = None
    saving_high_ms: float | None = None
    #: What this fix saves if the findings before it in the list are fixed, too. None if that equals
    #: `saving_ms`.
    saving_together_ms: float | None = None
    #: True if the savings were simulated. Otherwise they are the attributed time, an upper bound.
    simulated: bool = False
    #: the attributed intervals; None for a finding of a plugin that tells only their sum
    claim: Claim | None = field(default=None, compare=False, repr=False)

    @property
    def attributed_ms(self) -> float:
        """The attributed time, which belongs to no other finding."""
        if self.claim is None:
            return self.saving_ms
        return self.claim.attributed_ns / NS_PER_MS

    @property
    def informs_only(self) -> bool:
        """True if no time is attributed: the finding shows the cost of a deliberate choice."""
        return not self.attributed_ms

    @property
    def explanation(self) -> str:
        """The text about this kind of finding in Markdown; empty for findings of plugins."""
        return explanation_of(self.id)

    @property
    def saving_percent(self) -> float:
        """The saving as a percentage of the analyzed time."""
        return self.percent_of_analyzed(self.saving_ms)

    def percent_of_analyzed(self, ms: float) -> float:
        """Return a time as a percentage of the analyzed time."""
        if not self.attributed_ms:
            return 0.0
        return self.share_percent * ms / self.attributed_ms

    @property
    def is_worthwhile(self) -> bool:
        """True if the finding is listed: it only informs, or saves enough for attention."""
        return self.informs_only or self.saving_percent >= LEAST_SHARE_PERCENT

    @property
    def wrong_field(self) -> str:
        """The name of the first field with an invalid value; empty if all are valid."""
        if self.confidence not in get_args(Confidence):
            return "confidence"
        for name in (
            "title",
            "confidence_reason",
            "advice",
            "documentation",
            "snippet",
        ):
            if not isinstance(getattr(self, name), str):
                return name
        for name in ("saving_ms", "share_percent"):
            if not _is_amount(getattr(self, name)):
                return name
        for name in ("saving_low_ms", "saving_high_ms"):
            value = getattr(self, name)
            if value is not None and not _is_amount(value):
                return name
        if not isinstance(self.where, Mapping):
            return "where"
        for places in self.where.values():
            if not _all_are(places, Place, "attributed_ms"):
                return "where"
        if not _all_are(self.evidence, Evidence, "value"):
            return "evidence"
        return ""

    def as_dict(self, *, intervals: bool = False) -> dict[str, object]:
        """Return the finding for JSON.

        Args:
            intervals: True adds the attributed intervals.
        """
        claim = self.claim
        record = asdict(replace(self, claim=None))
        del record["claim"]
        if self.saving_together_ms is None:
            record["saving_together_ms"] = self.saving_ms
        record["attributed_ms"] = self.attributed_ms
        record["explanation"] = self.explanation
        devices = []
        if claim is not None:
            of_devices_ms = (claim.ns_of_devices / NS_PER_MS).tolist()
            for device, ms in zip(claim.devices, of_devices_ms, strict=True):
                devices.append({"device": device, "attributed_ms": ms})
        record["devices"] = devices
        if intervals:
            record["intervals"] = []
            if claim is not None:
                record["intervals"] = claim.as_records()
        return record


@keeps_old_names
@dataclass(frozen=True)
class Findings:
    """The findings of a trace."""

    total_ms: float  #: wall time from the first start of GPU work to its last end
    #: the findings, the largest expected saving first, those that only inform at the end
    findings: Sequence[Finding] = ()
    #: sentences about problems that could not be detected, and why
    notes: Sequence[str] = ()
    #: the idle time of each device by cause, as in `gaps`
    idle_by_cause_ms: Mapping[int | str, Mapping[str, float]] = field(
        default_factory=dict
    )
    #: the quality of the simulation that computed the savings
    model: Mapping[str, object] = field(default_factory=dict)
    #: the idle time in each part of the recording that cannot be judged
    parts: Sequence[Claim] = field(default=(), repr=False)
    #: the content of the recording, from `coverage.report_tables.recording_dict`
    recording: Mapping[str, object] = field(default_factory=dict)
    recording_lines: Sequence[str] = ()  #: the content of the recording in sentences
    #: the `kind` of the program, and `because`, the reason for it
    program: Mapping[str, str] = field(default_factory=dict)
    analyzed_ms: float = 0.0  #: the analyzed time; shares are percentages of it
    #: True if there are no findings and most of the analyzed time could be judged
    all_clear: bool = False
    #: a sentence about what is not known, if there are no findings and that is not an all-clear
    unknown: str = ""
    #: sentences that come before all findings
    first_sentences: Sequence[str] = ()
    #: sentences about how the analyzed time is spent
    time_use: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __bool__(self) -> bool:
        """True even without findings, because that is an answer, too."""
        return True

    def __repr__(self) -> str:
        """Return a line of text: how much time is explained, and the titles of the findings."""
        titles = "; ".join(finding.title for finding in self.findings)
        explained = f"{self.explained_ms:,.3f} of {self.analyzed_ms:,.3f} ms explained"
        count = f"{len(self.findings)} findings"
        summary = f"{explained}; {titles or self.unknown}"
        return short_repr(count, summary)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: a table with a row for each finding."""
        from tracelens_ext.findings.summary import findings_table, first_sentences

        columns = [
            "title",
            "saving",
            "% of analyzed time",
            "confidence",
            "largest_place",
            "advice",
            "snippet",
        ]
        table = findings_table(self)[columns]
        lines = list(self.recording_lines)
        lines += first_sentences(self)
        lines += self.notes
        return cell_html("Findings", lines, {"What would save the most time": table})

    @property
    def worthwhile(self) -> list[Finding]:
        """The findings that are listed: they only inform, or save enough for attention."""
        return [finding for finding in self.findings if finding.is_worthwhile]

    @property
    def explained_ms(self) -> float:
        """Wall time that is attributed to findings."""
        return sum(finding.attributed_ms for finding in self.findings)

    @property
    def left_ms(self) -> float:
        """Analyzed time that is attributed to no finding."""
        return max(0.0, self.analyzed_ms - self.explained_ms)

    def as_dict(self, *, intervals: bool = False) -> dict[str, object]:
        """Return the findings for JSON.

        Args:
            intervals: True adds the attributed intervals of each finding.
        """
        recording = dict(self.recording)
        if intervals and self.parts:
            parts: list[dict[str, object]] = []
            described: Any = recording["parts"]
            for part, claim in zip(described, self.parts, strict=True):
                parts.append({**part, "intervals": claim.as_records()})
            recording["parts"] = parts
        findings = [finding.as_dict(intervals=intervals) for finding in self.findings]
        return {
            "recording": recording,
            "program": self.program,
            "all_clear": self.all_clear,
            "total_ms": self.total_ms,
            "explained_ms": self.explained_ms,
            "left_ms": self.left_ms,
            "idle_by_cause_ms": self.idle_by_cause_ms,
            "model": self.model,
            "time_use": list(self.time_use),
            "findings": findings,
            "notes": list(dict.fromkeys([*self.first_sentences, *self.notes])),
        }


def saving_text(saving_ms: float, share_percent: float) -> str:
    """Return a time as in titles: `9.7 ms (6.5 %)`."""
    return f"{ms_text(saving_ms)} ({share_percent:.1f} %)"


def _is_amount(value: object) -> bool:
    """Return whether a value is a finite number that is not negative."""
    return isinstance(value, int | float) and 0 <= value < inf


def _all_are(values: object, kind: type, number: str) -> bool:
    """Return whether values are a list of some class, with a number in one of its fields."""
    if not isinstance(values, list | tuple):
        return False
    for value in values:
        if not isinstance(value, kind):
            return False
        if not isinstance(getattr(value, number), int | float):
            return False
    return True
