"""Gaps by plain loops over the events of a file, with exact time stamps."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tracelens_ext import TreePerfAnalyzer

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACES = {
    str(path.relative_to(SHARED / "traces")).removesuffix(".json.gz"): path
    for path in sorted((SHARED / "traces").rglob("*.json.gz"))
}
GPU_CATEGORIES = {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "memcpy",
    "memset",
    "mtia_ccp_events",
}
Lane = tuple[Any, ...]


class Kernel(NamedTuple):
    """A kernel of a generated trace; times in µs."""

    device: int
    stream: int
    start: int
    duration: int


@dataclass(frozen=True)
class PlainEvent:
    name: str
    start: Decimal
    end: Decimal
    track: Lane
    correlation: int | None


@dataclass(frozen=True)
class PlainGap:
    before: str
    after: PlainEvent
    start: Decimal
    end: Decimal

    @property
    def nanoseconds(self) -> int:
        length = (self.end - self.start) * 1000
        assert length == int(length)
        return int(length)


@cache
def recorded(name: str) -> TreePerfAnalyzer:
    """A real trace, read once for all tests that only ask it."""
    return TreePerfAnalyzer(TRACES[name])


def load(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes())
    document = json.loads(text, parse_float=Decimal)
    events = document["traceEvents"] if isinstance(document, dict) else document
    return [event for event in events if isinstance(event, dict)]


def gpu_events(events: list[dict[str, Any]]) -> list[PlainEvent]:
    """The GPU events of a Kineto file, in file order."""
    found = []
    for event in events:
        if event.get("ph") != "X" or event.get("cat", "").lower() not in GPU_CATEGORIES:
            continue
        start = Decimal(event["ts"])
        args = event.get("args", {})
        track = (
            event["pid"],
            args.get("device", event["pid"]),
            args.get("stream", event["tid"]),
        )
        correlation = args.get("correlation")
        end = start + Decimal(event["dur"])
        found.append(PlainEvent(event["name"], start, end, track, correlation))
    return found


@cache
def gpu_events_of(path: Path) -> list[PlainEvent]:
    """The GPU events of a real trace."""
    return gpu_events(load(path))


def plain_gaps(found: list[PlainEvent], parts: int = 3) -> dict[Lane, list[PlainGap]]:
    """The gaps of each track: of streams, or with two parts of a track's name, of devices."""
    tracks: dict[Lane, list[PlainEvent]] = defaultdict(list)
    for event in found:
        tracks[event.track[:parts]].append(event)
    gaps: dict[Lane, list[PlainGap]] = {}
    for track, members in tracks.items():
        gaps[track] = []
        last: PlainEvent | None = None
        for event in sorted(members, key=lambda each: (each.start, each.end)):
            if last is not None and event.start > last.end:
                gaps[track].append(PlainGap(last.name, event, last.end, event.start))
            if last is None or event.end >= last.end:
                last = event
    return gaps
