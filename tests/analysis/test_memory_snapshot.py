"""Snapshots of the allocator: memory by frame, and refusal of pickles that run code."""

from __future__ import annotations

import json
import os
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.analysis.memory.blocks import BEFORE
from tracelens_ext.analysis.memory.snapshot import read_snapshot
from tracelens_ext.analysis.memory.snapshot_tables import (
    compare_snapshots,
    snapshot_tables,
)
from tracelens_ext.cli import run
from tracelens_ext.errors import TraceError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

USER = {"filename": "/home/a/train.py", "line": 3, "name": "step"}
TORCH = {
    "filename": "/opt/lib/python3.11/site-packages/torch/nn.py",
    "line": 1,
    "name": "forward",
}


def change(
    action: str, addr: int, size: int, time: int, *frames: dict[str, Any]
) -> dict[str, Any]:
    """Return an event of the allocator."""
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "time_us": time,
        "frames": list(frames),
    }


def segment(*blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    """Return a segment of 1,000 bytes with some blocks."""
    return {
        "device": device,
        "address": 1,
        "total_size": 1000,
        "allocated_size": 0,
        "active_size": 0,
        "stream": 0,
        "segment_type": "large",
        "blocks": list(blocks),
    }


def block(addr: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    """Return a block that is in use at the end; the allocator rounded its size up by 512 bytes."""
    return {
        "address": addr,
        "state": "active_allocated",
        "frames": list(frames),
        "size": size + 512,
        "requested_size": size,
    }


def written(
    tmp_path: Path, *traces: Sequence[dict[str, Any]], segments: Sequence[Any] = ()
) -> Path:
    """Write a snapshot with the events of each device; return its path."""
    content = {
        "segments": list(segments),
        "device_traces": [list(trace) for trace in traces],
    }
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def held(path: Path, table: str) -> list[tuple[str, int, int]]:
    """Return (Python frame, blocks, bytes) of each row of a table."""
    frame = snapshot_tables(read_snapshot(path))[table]
    return list(
        frame[["python_frame", "blocks", "bytes"]].itertuples(index=False, name=None)
    )


def test_a_user_frame_holds_its_block_until_the_free_is_completed(
    tmp_path: Path,
) -> None:
    events = [
        change("alloc", 10, 100, 1, TORCH, USER),
        change("free_requested", 10, 100, 2),
        change("alloc", 20, 50, 3, TORCH),
        change("free_completed", 10, 100, 4),
    ]
    path = written(tmp_path, events, segments=[segment(block(20, 50, TORCH))])
    assert held(path, "memory_at_peak") == [
        ("/home/a/train.py(3): step", 1, 100),
        ("(no frame)", 1, 50),
    ]
    assert held(path, "memory_at_end") == [("(no frame)", 1, 50)]
    (peak,) = snapshot_tables(read_snapshot(path))["memory_peaks"].to_dict("records")
    assert (peak["peak_allocated_bytes"], peak["end_total_bytes"]) == (150, 50)
    assert (peak["allocations"], peak["frees"], peak["reserved_bytes"]) == (2, 1, 1000)


def test_memory_from_before_the_first_event_follows_from_frees_and_the_end(
    tmp_path: Path,
) -> None:
    events = [change("free_completed", 10, 70, 1), change("alloc", 10, 5, 2, USER)]
    blocks = segment(block(10, 5, USER), block(30, 40, USER))
    path = written(tmp_path, events, segments=[blocks])
    frame = "/home/a/train.py(3): step"
    assert held(path, "memory_at_peak") == [(BEFORE, 1, 70), (frame, 1, 40)]
    assert held(path, "memory_at_end") == [(frame, 2, 45)]


@given(st.integers(0, 10_000))
def test_levels_are_those_of_a_plain_loop(tmp_path_factory: Any, seed: int) -> None:
    rng = random.Random(seed)
    alive: dict[int, int] = {}
    events = []
    level = 0
    peak_level = 0
    for time in range(60):
        if alive and rng.random() < 0.4:
            address = rng.choice(list(alive))
            size = alive.pop(address)
            events.append(change("free_completed", address, size, time))
            level -= size
        else:
            address = rng.choice([a for a in range(99) if a not in alive])
            size = rng.randrange(1000)
            alive[address] = size
            events.append(change("alloc", address, size, time, USER))
            level += size
        peak_level = max(peak_level, level)
    folder = tmp_path_factory.mktemp("s")
    blocks = [block(address, size, USER) for address, size in alive.items()]
    path = written(folder, events, segments=[segment(*blocks)])
    (peak,) = snapshot_tables(read_snapshot(path))["memory_peaks"].to_dict("records")
    assert peak["peak_allocated_bytes"] == peak_level
    assert peak["end_total_bytes"] == level


def test_memory_that_grows_with_each_iteration_is_a_leak(tmp_path: Path) -> None:
    events = [change("alloc", 10 * k, 5, 10 * k + 5, USER) for k in range(6)]
    path = written(tmp_path, events)
    content = pickle.loads(path.read_bytes())  # noqa: S301  # of our own making
    content["external_annotations"] = [
        {"stage": "START", "name": f"ProfilerStep#{k}", "device": 0, "time_us": 10 * k}
        for k in range(6)
    ]
    path.write_bytes(pickle.dumps(content))
    findings = snapshot_tables(read_snapshot(path))["findings"].set_index("finding")
    assert findings.loc["leak", "bytes"] == 5
    assert findings.loc["leak", "python_frame"] == "/home/a/train.py(3): step"


def test_two_snapshots_are_compared_by_frame(tmp_path: Path) -> None:
    first = read_snapshot(written(tmp_path, [change("alloc", 1, 10, 1, USER)]))
    other = [change("alloc", 1, 30, 1, USER), change("alloc", 2, 5, 2, TORCH)]
    second = read_snapshot(written(tmp_path, other))
    table = compare_snapshots(first, second)["memory_at_end"].set_index("python_frame")
    assert table["bytes B - A"].to_dict() == {
        "/home/a/train.py(3): step": 20,
        "(no frame)": 5,
    }


class _RunsCommand:
    """An object whose pickle makes a folder when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_RunsCommand()),
        pickle.dumps({"segments": [], "device_traces": [[np.int64(3)]]}),
        b"\x80\x04Nr\xff\xff\xff\x7f.",  # a memo of 16 GB
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00x.",  # bytes of 1 TB
        b"\x80\x04}N" + b"\x85" * 150_000 + b"Ns.",  # a key nested 150,000 times
        b"\x80\x04" + b"](" * 100_000 + b"N" + b"e" * 100_000 + b".",
        pickle.dumps(
            {"device_traces": [[{"action": "alloc", "addr": "x", "size": 1}]]}
        ),
        pickle.dumps({"device_traces": 5}),
        b"\x80\x04}",
        b"",
    ],
)
def test_other_pickles_are_refused_with_one_line_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_snapshot(path)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "executed").exists()


def test_an_impossible_time_costs_only_its_event(tmp_path: Path) -> None:
    end_of_time = 2**62
    events = [
        change("alloc", 10, 100, 1, USER),
        change("segment_alloc", 10, 100, end_of_time),
        change("alloc", 20, 50, end_of_time, USER),
        change("alloc", 30, 25, -(2**53), USER),
    ]
    steps = [
        {"stage": "START", "name": f"ProfilerStep#{time}", "device": 0, "time_us": time}
        for time in (2, end_of_time)
    ]
    path = tmp_path / "snapshot.pickle"
    content = {"segments": [], "device_traces": [events], "external_annotations": steps}
    path.write_bytes(pickle.dumps(content))
    snapshot = read_snapshot(path)
    assert snapshot.events.size.tolist() == [100]
    assert snapshot.dropped == 2
    assert snapshot.iterations[0].tolist() == [1000]
    assert len(snapshot.segment_changes) == 0


def test_a_damaged_snapshot_is_read_or_refused(tmp_path: Path) -> None:
    """Put a value of another type into a random place of a snapshot."""
    rng = random.Random(0)
    odd: list[Any] = [None, -1, 2**70, "x", [], {}, 1.5, float("nan"), (1,), b"a"]
    path = tmp_path / "snapshot.pickle"
    events = [change("alloc", 1, 10, 1, USER), change("free_completed", 1, 10, 2)]
    for _ in range(75):
        sound = written(tmp_path, events, segments=[segment(block(2, 5, USER))])
        content = pickle.loads(sound.read_bytes())  # noqa: S301  # of our own making
        holder = content
        while isinstance(holder, dict | list) and holder:
            key = rng.choice(
                list(holder) if isinstance(holder, dict) else range(len(holder))
            )
            if rng.random() < 0.3 or not isinstance(holder[key], dict | list):
                holder[key] = rng.choice(odd)
                break
            holder = holder[key]
        path.write_bytes(pickle.dumps(content))
        try:
            snapshot_tables(read_snapshot(path))
        except TraceFormatError as error:
            assert len(str(error).splitlines()) == 1


def test_the_commands_show_and_compare_snapshots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path, [change("alloc", 1, 10, 1, USER)]))
    assert run(["memory", path, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert tables["memory_peaks"][0]["peak_allocated_bytes"] == 10
    assert run(["memory", path]) == 0
    assert "train.py(3): step" in capsys.readouterr().out
    assert run(["compare", path, path, "--format", "json"]) == 0
    assert "bytes B - A" in capsys.readouterr().out
    assert run(["memory", path, "--device", "3"]) == 2


def test_memory_reserved_after_the_peak_is_cache_and_not_fragmentation(
    tmp_path: Path,
) -> None:
    """At the peak 100 of 110 bytes are in use; 890 bytes are reserved later, and stay."""
    events = [
        change("segment_alloc", 0, 110, 1),
        change("alloc", 10, 100, 2, USER),
        change("free_completed", 10, 100, 3),
        change("segment_map", 200, 890, 4),
        change("alloc", 20, 50, 5, USER),
    ]
    path = written(tmp_path, events, segments=[segment(block(20, 50, USER))])
    tables = snapshot_tables(read_snapshot(path))
    (peak,) = tables["memory_peaks"].to_dict("records")
    assert (peak["reserved_at_peak_bytes"], peak["unused_at_peak_bytes"]) == (110, 10)
    sizes = tables["findings"].set_index("finding")["bytes"].to_dict()
    assert "fragmentation" not in sizes
    assert sizes["cache"] == 950


def test_reserved_memory_that_is_unused_at_the_peak_is_fragmentation(
    tmp_path: Path,
) -> None:
    events = [change("alloc", 10, 100, 2, USER)]
    path = written(tmp_path, events, segments=[segment(block(10, 100, USER))])
    sizes = snapshot_tables(read_snapshot(path))["findings"].set_index("finding")
    assert sizes.loc["fragmentation", "bytes"] == 900
