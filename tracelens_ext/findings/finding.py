"""What a finding is and claims, and how a list of them is told to programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Literal, NamedTuple, get_args

import numpy as np

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
from tracelens_ext.trace.intervals import distinct, union

Confidence = Literal["high", "medium", "low"]


class Intervals(NamedTuple):
    """Claimed stretches of time, apart on each device, i of them."""

    start: Int64Array  #: ns since the trace's first event
    end: Int64Array
    device_index: IntArray  #: the device, an index into `Claim.devices`
    gap: IntArray  #: the gap that it is a part of, `NONE` where a GPU event runs
    event: Int64Array  #: the GPU event that runs, `NONE` in a gap
    #: the host thread that a gap waits for, `NONE` for an event, or if unknown
    thread: Int64Array

    def chosen(self, which: BoolArray | Int64Array) -> Intervals:
        """Some of them."""
        return Intervals._make(column[which] for column in self)

    @classmethod
    def joined(cls, several: Iterable[Intervals]) -> Intervals:
        """All of several."""
        return cls._make(map(np.concatenate, zip(*several, strict=True)))


@dataclass(frozen=True, eq=False)
class Claim:
    """Wall time that a finding claims. Sums are means over all devices that work."""

    intervals: Intervals
    devices: list[int | str]  #: what those devices are called
    wall_start: int  #: ns since the trace's first event

    @property
    def ns(self) -> Float64Array:
        """What each interval is of the mean over the devices, (i,)."""
        return (self.intervals.end - self.intervals.start) / len(self.devices)

    @property
    def saving_ns(self) -> float:
        """All of it."""
        return float(self.ns_of_devices.sum()) / len(self.devices)

    @property
    def saving_ms(self) -> float:
        """Likewise, ms."""
        return self.saving_ns / NS_PER_MS

    @property
    def ns_of_devices(self) -> Int64Array:
        """What is claimed of each device."""
        its = self.intervals
        return sums(its.device_index, its.end - its.start, len(self.devices))

    @cached_property
    def events(self) -> Int64Array:
        """The GPU events of which it has something, (j,)."""
        return distinct(self.intervals.event[self.intervals.event != NONE])

    @cached_property
    def event_ns(self) -> Float64Array:
        """What it has of each of them, (j,)."""
        busy = self.intervals.event != NONE
        number = np.searchsorted(self.events, self.intervals.event[busy])
        return np.bincount(number, self.ns[busy], len(self.events)).astype(np.float64)

    @property
    def idle_ns(self) -> float:
        """What of it is idle time."""
        its = self.intervals.chosen(self.intervals.gap != NONE)
        return float((its.end - its.start).sum()) / len(self.devices)

    def as_records(self) -> list[dict[str, object]]:
        """Its stretches of time by device, those that touch in one; ns from the wall's start."""
        records: list[dict[str, object]] = []
        for device_index, device in enumerate(self.devices):
            its = self.intervals.chosen(self.intervals.device_index == device_index)
            times = (
                np.column_stack(union(its.start, its.end)) - self.wall_start
            ).tolist()
            records += [
                {"device": device, "start_ns": a, "end_ns": b} for a, b in times
            ]
        return records

    def __add__(self, other: Claim) -> Claim:
        """Both claims, which have nothing in common."""
        return replace(
            self, intervals=Intervals.joined((self.intervals, other.intervals))
        )


@dataclass(frozen=True)
class Place:
    """Where a part of a saving is: an operation, a kernel, a line of Python."""

    name: str
    saving_ms: float  #: the part of the saving that is there
    count: int  #: GPU events, or gaps, that it consists of


@dataclass(frozen=True)
class Evidence:
    """A number that supports a finding."""

    what: str  #: what the number is, a clause
    value: float
    unit: str  #: `ms`, `%`, `GPU events` …
    see: str  #: the sheet or the command that shows it


@dataclass(frozen=True)
class Finding:
    """Something that costs wall time, and how to get rid of it."""

    id: str  #: which kind of finding; a trace has one of each at most
    title: str  #: one sentence, with the number
    #: wall time of this trace that the fix removes; 0 of one that informs only. A detector gives
    #: what it claims; the replay makes it what is saved
    saving_ms: float
    share_percent: float  #: of the judged time, what it claims
    confidence: Confidence  #: how sure it is that the fix saves as much
    confidence_reason: str  #: why so sure, or why not, a clause or a sentence
    #: `operations`, `modules`, `python_frames`, `iterations`, `streams`, `kernels` …: what the
    #: trace has of them, the largest saving first
    where: Mapping[str, Sequence[Place]]
    evidence: Sequence[Evidence]  #: the numbers that it rests on
    advice: str  #: what to change
    documentation: str  #: the page about it
    snippet: str = ""  #: the change as a line of code, where one does it
    #: the least, and the most, that the fix saves, None where that is `saving_ms`
    saving_low_ms: float | None = None
    saving_high_ms: float | None = None
    #: what it adds to what those before it save together, None where that is `saving_ms`
    saving_together_ms: float | None = None
    #: whether the savings are what a replay of the trace is shorter by without the claim; else they
    #: are the claim
    simulated: bool = False
    #: the stretches of time that it claims, as the mean over the devices; None for a finding of a
    #: plugin that tells only their sum
    claim: Claim | None = field(default=None, compare=False, repr=False)

    @property
    def claimed_ms(self) -> float:
        """Wall time that it claims; no other finding claims any of it."""
        return (
            self.saving_ms if self.claim is None else self.claim.saving_ns / NS_PER_MS
        )

    @property
    def informs_only(self) -> bool:
        """Whether it claims no wall time, as the price of something that was chosen."""
        return not self.claimed_ms

    @property
    def saving_percent(self) -> float:
        """What it saves, of the judged time."""
        return (
            self.share_percent * self.saving_ms / self.claimed_ms
            if self.claimed_ms
            else 0.0
        )

    @property
    def wrong_field(self) -> str:
        """The first field that is not what is said of it here; empty for none."""
        if self.confidence not in get_args(Confidence):
            return "confidence"
        texts = ("title", "confidence_reason", "advice", "documentation", "snippet")
        fits = {name: isinstance(getattr(self, name), str) for name in texts}
        for name in ("saving_ms", "share_percent", "saving_low_ms", "saving_high_ms"):
            value = getattr(self, name)
            value = (
                0.0 if value is None and name.endswith(("low_ms", "high_ms")) else value
            )
            fits[name] = isinstance(value, int | float) and 0 <= value < inf
        places = self.where.values() if isinstance(self.where, Mapping) else [None]
        fits["where"] = all(_all_of(found, Place, "saving_ms") for found in places)
        fits["evidence"] = _all_of(self.evidence, Evidence, "value")
        return next((name for name, right in fits.items() if not right), "")

    def as_dict(self, *, intervals: bool = False) -> dict[str, object]:
        """For JSON; with the stretches of time that it claims, or without."""
        claim = self.claim
        record = asdict(replace(self, claim=None))
        del record["claim"]
        if self.saving_together_ms is None:
            record["saving_together_ms"] = self.saving_ms
        of_devices = (claim.ns_of_devices / NS_PER_MS).tolist() if claim else []
        both = zip(claim.devices if claim else [], of_devices, strict=True)
        record["claimed_ms"] = self.claimed_ms
        record["devices"] = [
            {"device": device, "claimed_ms": ms} for device, ms in both
        ]
        if intervals:
            record["intervals"] = claim.as_records() if claim else []
        return record


@dataclass(frozen=True)
class Findings:
    """What was found in a trace."""

    total_ms: float  #: wall time from the first start of GPU work to its last end
    #: the largest saving first, those that inform only at the end
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()  #: what could not be looked for, and why, a sentence each
    #: the idle time of each device in the wall time, as `gaps` divides it
    idle_by_cause_ms: Mapping[int | str, Mapping[str, float]] = field(
        default_factory=dict
    )
    #: how good the replay is that simulated the savings
    model: Mapping[str, object] = field(default_factory=dict)
    #: the idle time in the parts of the recording
    parts: Sequence[Claim] = field(default=(), repr=False)
    #: what the recording holds, as `recording.told.recording_dict`
    recording: Mapping[str, object] = field(default_factory=dict)
    recording_lines: Sequence[str] = ()  #: the same in sentences
    #: `kind` of the program, and `because`, what shows it
    program: Mapping[str, str] = field(default_factory=dict)
    judged_ms: float = 0.0  #: the part of the wall time that shares are of
    #: whether nothing was found though most of that was compared with something
    all_clear: bool = False
    #: where nothing was found and that is no all-clear: what is not known
    unknown: str = ""

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __bool__(self) -> bool:
        """True even without findings: that none was found is an answer, too."""
        return True

    def __repr__(self) -> str:
        titles = "; ".join(each.title for each in self.findings)
        said = f"{self.explained_ms:,.3f} of {self.judged_ms:,.3f} ms explained"
        return short_repr(
            f"{len(self.findings)} findings", f"{said}; {titles or self.unknown}"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: a row a finding, what it saves, and what to do."""
        from tracelens_ext.findings.summary import findings_table, summary_sentence

        columns = [
            "title",
            "saving_ms",
            "% of judged time",
            "confidence",
            "largest_place",
        ]
        table = findings_table(self)[[*columns, "advice", "snippet"]]
        lines = [*self.recording_lines, summary_sentence(self), *self.notes]
        return cell_html("Findings", lines, {"What would save the most time": table})

    @property
    def explained_ms(self) -> float:
        """Wall time that the findings claim; each part of it is claimed once."""
        return sum(finding.claimed_ms for finding in self.findings)

    @property
    def left_ms(self) -> float:
        """Judged time that no finding claims."""
        return max(0.0, self.judged_ms - self.explained_ms)

    def as_dict(self, *, intervals: bool = False) -> dict[str, object]:
        """For JSON; with the stretches of time that each finding claims, or without."""
        recording = dict(self.recording)
        if intervals and self.parts:
            both = zip(recording["parts"], self.parts, strict=True)  # type: ignore[call-overload]
            recording["parts"] = [
                {**part, "intervals": its.as_records()} for part, its in both
            ]
        named = (
            "program",
            "all_clear",
            "total_ms",
            "explained_ms",
            "left_ms",
            "idle_by_cause_ms",
        )
        return {
            "recording": recording,
            **{name: getattr(self, name) for name in (*named, "model")},
            "findings": [each.as_dict(intervals=intervals) for each in self.findings],
            "notes": list(self.notes),
        }


def saving_text(saving_ms: float, share_percent: float) -> str:
    """A saving as titles tell it."""
    return f"{ms_text(saving_ms)} ({share_percent:.1f} %)"


def _all_of(found: object, kind: type, number: str) -> bool:
    return isinstance(found, list | tuple) and all(
        isinstance(each, kind) and isinstance(getattr(each, number), int | float)
        for each in found
    )
