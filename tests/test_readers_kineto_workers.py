"""Slices decoded in several processes: the same trace to the byte, whatever becomes of them."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make_trace import LAYOUTS, kineto_layout, short_demo
from worker_helpers import children, note_slices, wait_for_workers

from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.json_events import SLICE_BYTES
from tracelens_ext.readers.kineto import reader as kineto
from tracelens_ext.readers.kineto import workers
from tracelens_ext.readers.kineto.slice_worker import TEXT_ROOM
from tracelens_ext.settings import reading_with

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="no worker processes on this system"),
]

DEMO = short_demo() | {"traceEvents": short_demo()["traceEvents"][:4000]}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many slices, and workers that are there from the first one on."""
    monkeypatch.setattr(workers, "WORTHWHILE_BYTES", 0)
    monkeypatch.setattr(kineto, "SLICE_BYTES", 1 << 14)
    wait_for_workers(monkeypatch)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What became of each slice that was given to a worker: its events, or None."""
    return note_slices(monkeypatch)


def assert_same(one: Trace, other: Trace) -> None:
    """All fields are equal, orders and types of arrays included."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            assert np.array_equal(a, b), field.name
        elif field.name != "args":
            assert repr(a) == repr(b), field.name
    assert list(one.args) == list(other.args)
    for name, column in one.args.items():
        same = other.args[name]
        assert column.rows.dtype == same.rows.dtype
        assert column.values.dtype == same.values.dtype
        assert np.array_equal(column.rows, same.rows), name
        assert np.array_equal(column.values, same.values), name
        assert column.texts == same.texts, name


def both(path: Path, *, salvage: bool = False) -> Trace:
    """The trace, read by this process alone and with two workers; the same."""
    with reading_with(jobs=1, salvage=salvage):
        alone = read_trace(path)
    with reading_with(jobs=3, salvage=salvage):
        assert_same(alone, read_trace(path))
    return alone


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_to_the_byte(
    layout: str, zipped: bool, tmp_path: Path, taken: list[int | None]
) -> None:
    path = tmp_path / "trace.json"
    data = LAYOUTS[layout](DEMO).encode()
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    trace = both(path)
    assert 0 < sum(filter(None, taken)) <= trace.provenance.present
    assert None not in taken


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("busy", [False, True])
def test_who_decodes(
    busy: bool,
    odd: bool,
    tmp_path: Path,
    taken: list[int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers alone while they keep up; this process too while they do not."""
    monkeypatch.setattr(workers.SliceWorkers, "is_ready", lambda _: not busy)
    path = tmp_path / "trace.json"
    path.write_text(odd_demo() if odd else kineto_layout(DEMO))
    trace = both(path)
    by_workers = sum(filter(None, taken))
    assert (by_workers > 0.9 * trace.provenance.present) is not (busy or odd)
    assert by_workers > 0.2 * trace.provenance.present


def odd_demo() -> str:
    """The demo trace with oddities of many sorts, sprinkled over it."""
    events = [dict(event) for event in DEMO["traceEvents"]]
    wrong: list[Any] = [7, None, "text", [], {"ph": "X"}, {"name": "no phase"}]
    for place in range(100, len(events), 400):
        odd = place // 400 % 8
        if odd < len(wrong):
            events.insert(place, wrong[odd])
        elif isinstance(events[place], dict):
            events[place] |= {"ts": "HERE"} if odd == 6 else {"pid": [1], "name": 5}
    return kineto_layout(DEMO | {"traceEvents": events}).replace('"HERE"', "NaN")


def test_odd_events_are_the_same_too(tmp_path: Path, taken: list[int | None]) -> None:
    path = tmp_path / "trace.json"
    text = odd_demo().encode()
    path.write_bytes(text.replace(b"aten::mm", b"aten::\xff\xfe", 3))
    trace = both(path)
    assert set(trace.provenance.dropped) >= {"not a JSON object", "no phase (ph)"}
    assert None in taken, "a worker refused a slice"
    assert any(taken), "and others not"


def test_a_file_that_is_odd_throughout_is_read_by_one(
    tmp_path: Path, taken: list[int | None]
) -> None:
    events = [dict(event) | {"name": "HERE"} for event in DEMO["traceEvents"]]
    path = tmp_path / "trace.json"
    path.write_text(kineto_layout(DEMO | {"traceEvents": events}).replace('"HERE"', "NaN"))
    both(path)
    assert set(taken) == {None}
    assert len(taken) <= 17


def test_an_event_that_is_larger_than_any_slot(tmp_path: Path, taken: list[int | None]) -> None:
    events = list(DEMO["traceEvents"])
    half = len(events) // 2
    huge = events[half] | {"args": {"Input Dims": [[1, 2, 3]] * 300_000}}
    path = tmp_path / "trace.json"
    path.write_text(kineto_layout(DEMO | {"traceEvents": [*events[:half], huge, *events[half:]]}))
    both(path)
    assert taken
    assert None not in taken


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize(
    ("damage", "zipped"),
    [
        ("cut off", False),
        ("cut off", True),
        ("garbage", False),
        ("two documents", True),
        ("check sum", True),
    ],
)
def test_damage_is_the_same_too(damage: str, zipped: bool, salvage: bool, tmp_path: Path) -> None:
    data = kineto_layout(DEMO).encode()
    place = data.index(b'"ph"', len(data) * 2 // 3)
    if damage == "garbage":
        data = data[:place] + b"%%" + data[place:]
    elif damage == "two documents":
        data *= 2
    data = gzip.compress(data, 1) if zipped else data
    if damage == "cut off":
        data = data[: len(data) * 2 // 3]
    elif damage == "check sum":
        data = data[:-8] + bytes(4) + data[-4:]
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    if salvage:
        trace = both(path, salvage=True)
        assert len(trace) > len(DEMO["traceEvents"]) // 2
        assert trace.provenance.notes[0].startswith("Salvaged (")
        return
    messages = []
    for jobs in (1, 2):
        with reading_with(jobs=jobs), pytest.raises(TraceFormatError) as caught:
            read_trace(path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "--salvage" in messages[0]


def test_workers_that_never_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text(kineto_layout(DEMO))
    monkeypatch.setattr(workers, "_PROGRAM", "raise SystemExit(3)")
    both(path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "there is none"))
    both(path)


@pytest.mark.parametrize(("victims", "after"), [(1, 1), (2, 0), (2, 20)])
def test_workers_that_die(
    after: int, victims: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(kineto_layout(DEMO))
    take, count = workers.SliceWorkers.take, 0

    def and_die(self: workers.SliceWorkers) -> int | None:
        nonlocal count
        if count == after:
            for worker in self._workers[:victims]:
                worker._process.kill()
        count += 1
        return take(self)

    monkeypatch.setattr(workers.SliceWorkers, "take", and_die)
    both(path)
    assert count > after


def test_a_worker_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text(kineto_layout(DEMO))
    take = workers.SliceWorkers.take
    stopped: list[int] = []

    def and_hang(self: workers.SliceWorkers) -> int | None:
        if not stopped:
            monkeypatch.setattr(workers, "_PATIENCE_S", 0.2)
            stopped.append(self._workers[0]._process.pid)
            os.kill(stopped[0], signal.SIGSTOP)
        return take(self)

    monkeypatch.setattr(workers.SliceWorkers, "take", and_hang)
    both(path)
    assert stopped
    assert not set(stopped) & set(children())


def test_no_worker_is_left_behind(tmp_path: Path) -> None:
    before = set(children())
    path = tmp_path / "trace.json"
    path.write_text(kineto_layout(DEMO))
    with reading_with(jobs=3):
        read_trace(path)
        assert set(children()) <= before
        path.write_text(kineto_layout(DEMO)[: 1 << 20])
        with pytest.raises(TraceCutOffError):
            read_trace(path)
        assert set(children()) <= before

        def interrupted(done: int, _size: int | None) -> None:
            if done > 1 << 19:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            read_trace(path, progress=interrupted)
        assert set(children()) <= before


def test_a_program_without_a_main_guard(tmp_path: Path) -> None:
    """It is run once; the workers import nothing from its folder."""
    (tmp_path / "trace.json").write_text(json.dumps(DEMO))
    for module in ("numpy", "msgspec", "json"):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        (tmp_path / "elsewhere" / f"{module}.py").write_text("raise SystemExit('imported')")
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""\
            import os
            print("once")
            from tracelens_ext import TreePerfAnalyzer
            from tracelens_ext.readers.kineto import workers
            from tracelens_ext.settings import reading_with
            workers.WORTHWHILE_BYTES = 0
            start, ready = workers.SliceWorkers.start, []
            def wait(self, count):
                start(self, count)
                ready.extend(w._receive(len(workers.READY)) == workers.READY for w in self._workers)
            workers.SliceWorkers.start = wait
            os.chdir("elsewhere")
            with reading_with(jobs=3):
                print(len(TreePerfAnalyzer("../trace.json").trace), ready)
            """)
    )
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "once"
    assert lines[1].endswith("[True, True]")
    assert len(lines) == 2
    assert not done.stderr


def test_workers_end_with_their_parent() -> None:
    """Even when that is killed and can do nothing about it."""
    program = (
        "import sys, time\n"
        "from tracelens_ext.readers.kineto import reader as kineto, workers\n"
        "pool = workers.SliceWorkers(kineto.KinetoColumns())\n"
        "pool.start(2)\n"
        "assert all(w._receive(len(workers.READY)) == workers.READY for w in pool._workers)\n"
        "print(*(w._process.pid for w in pool._workers), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    for _ in range(200):
        if not any(_runs(pid) for pid in pids):
            return
        time.sleep(0.05)
    pytest.fail("a worker outlives its parent")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_more_traces_at_once_than_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(workers, "_CONTAINER_MEMORY", limit)
    found = []
    for text in ("2000000000\n", "1\n", "max\n"):
        limit.write_text(text)
        found.append([workers.traces_at_once(size) for size in (0, 300 * 10**6, 10**15)])
    assert found[:2] == [[5, 2, 1], [1, 1, 1]]
    assert found[2][0] > found[2][1] >= 1


def test_small_traces_and_single_jobs_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(workers.SliceWorkers, "start", refuse)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(DEMO))
    with reading_with(jobs=1):
        read_trace(path)
    monkeypatch.setattr(workers, "WORTHWHILE_BYTES", 64 * 10**6)
    with reading_with(jobs=8):
        read_trace(path)


def test_a_slice_with_what_was_left_of_the_last_has_room() -> None:
    """Else workers would be passed over without a word."""
    assert TEXT_ROOM >= 2 * SLICE_BYTES
