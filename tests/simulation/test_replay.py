"""A replay predicts recorded and changed programs from their dependencies and constants."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.errors import UsageError
from tracelens_ext.simulation.change import Change
from tracelens_ext.simulation.collective_waits import read_collective_waits
from tracelens_ext.simulation.replay import Replay, Replayed
from tracelens_ext.simulation.scenarios import parse_change

if TYPE_CHECKING:
    from random import Random

    from tracelens_ext.simulation.dependency_graph import DependencyGraph
    from tracelens_ext.simulation.simulation import Simulation
    from tracelens_ext.trace import Int64Array

PROGRAMS = Path(__file__).resolve().parents[3] / "shared" / "replay" / "programs"
NAMES = (
    "single",
    "streams1",
    "streams2",
    "graph",
    "autograd1",
    "autograd2",
    "threads",
    "copies",
    "before",
    "assumed",
    "unexplained1",
    "unexplained2",
)
#: Constants of the programs that `program_of` makes, µs.
LATENCY = 5
GAP = 1
TAIL = 3
CALL = 2

#: `think` or `wait` or a stream to launch on; and the time of thinking or of the kernel, µs.
Step = tuple[str, int]


def program_of(steps: list[Step], streams: int = 1) -> TraceMaker:
    """Return the trace of a program that thinks, launches kernels, and waits for the device."""
    maker = TraceMaker()
    now = 0
    correlation = 0
    end_of_stream = [-(10**6)] * streams
    for action, duration in steps:
        if action == "think":
            now += duration
        elif action == "wait":
            returned = max(now, *end_of_stream) + TAIL
            maker.call("cudaDeviceSynchronize", now, returned - now)
            now = returned
        else:
            stream = int(action) % streams
            correlation += 1
            start = max(now + LATENCY, end_of_stream[stream] + GAP)
            maker.call("cudaLaunchKernel", now, CALL, correlation=correlation)
            maker.kernel(
                f"k{stream}", start, duration, stream=stream, correlation=correlation
            )
            end_of_stream[stream] = start + duration
            now += CALL
    return maker


#: Steps with an idle stream, a queue and a wait for each stream, which show all constants.
CALIBRATION: list[Step] = [
    ("0", 50),
    ("1", 50),
    ("0", 50),
    ("1", 50),
    ("0", 50),
    ("1", 50),
    ("wait", 0),
    ("0", 1),
    ("wait", 0),
    ("1", 1),
    ("wait", 0),
]
STEPS = st.one_of(
    st.tuples(st.sampled_from("01"), st.integers(1, 60)),
    st.tuples(st.just("think"), st.integers(1, 40)),
    st.tuples(st.just("wait"), st.just(0)),
)


def simulated(maker: TraceMaker) -> Simulation:
    return TreePerfAnalyzer(maker.document()).simulation()


def saved(simulation: Simulation, *changes: str) -> list[float]:
    frame = simulation.what_if([parse_change(change) for change in changes])
    return [float(ms) for ms in frame["saved_ms"]]


def partitions(simulation: Simulation) -> bool:
    """Return True if the path has no gap and no overlap, and sums to the replayed wall time."""
    path = simulation.critical_path_table
    start_ns = np.rint(1e3 * path["start_us"]).astype(int)
    end_ns = np.rint(1e3 * (path["start_us"] + path["duration_us"])).astype(int)
    next_start_ns = start_ns.tolist()[1:] + [simulation.replayed.wall]
    begins_at_zero = bool(start_ns.iloc[0] == 0)
    return begins_at_zero and end_ns.tolist() == next_start_ns


@settings(max_examples=20, deadline=None)
@given(st.lists(STEPS, max_size=25), st.integers(1, 2))
def test_a_program_with_other_kernels_is_replayed_as_it_would_run(
    steps: list[Step], streams: int
) -> None:
    all_steps = CALIBRATION + steps + [("wait", 0)]
    simulation = simulated(program_of(all_steps, streams))
    assert simulation.error_percent == 0
    assert partitions(simulation)
    for factor in (0, 1, 2):
        changed_steps = [
            (action, factor * duration if action in "01" else duration)
            for action, duration in all_steps
        ]
        changed = simulated(program_of(changed_steps, streams))
        expected_ns = simulation.replayed.wall - changed.program.window.end
        saved_ms = saved(simulation, f"kernels={factor}")[0]
        assert saved_ms == pytest.approx(expected_ns / 1e6, abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=25), st.integers(1, 2))
def test_less_work_never_takes_longer(steps: list[Step], streams: int) -> None:
    simulation = simulated(program_of(CALIBRATION + steps, streams))
    for name in ("kernels", "host", "launch", "gaps", "kernels=0.5,host"):
        savings = saved(simulation, *(f"{name}={factor}" for factor in (0, 0.5, 2)))
        assert savings == sorted(savings, reverse=True)
    assert saved(simulation, "kernels=1", "host=1,gaps=1") == [0, 0]


@pytest.mark.real_data
@pytest.mark.parametrize("name", NAMES)
def test_programs_of_known_makespan(name: str) -> None:
    """Streams, waits, graphs, threads, copies: exact where waits are known, else nearly."""
    truth = json.loads((PROGRAMS / f"{name}.truth.json").read_text())
    simulation = TreePerfAnalyzer(
        PROGRAMS / f"{name}.json.gz", use_kernel_name_categories=True
    ).simulation()
    assert simulation.error_percent == pytest.approx(truth["error_percent"], abs=0.1)
    assert partitions(simulation)
    if truth["kind"] == "unexplained":
        assert simulation.state == (
            "unavailable" if truth["error_percent"] < -15 else "low_confidence"
        )
        assert "does not show" in str(simulation.json_model()["reason"])
        return
    changes = [row["change"] for row in truth["what_if"]]
    expected_ms = np.array([row["saved_ms"] for row in truth["what_if"]])
    error = np.abs(saved(simulation, *changes) - expected_ms) / truth["makespan_ms"]
    if truth["waits"] == "assumed":
        assert np.mean(error <= 0.01) >= 0.9
    else:
        assert np.all(error <= 0.0005)


def test_a_withheld_replay_has_no_what_if() -> None:
    """Without a call nothing tells what the GPU waits for, whatever the error."""
    maker = TraceMaker()
    for at in range(0, 500, 100):
        maker.kernel("k", at, 50)
    simulation = simulated(maker)
    assert simulation.state == "unavailable"
    assert len(simulation.what_if()) == 0


def test_waiting_for_other_ranks_is_not_shortened(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.launched("ncclDevKernel_AllReduce", 10, 90, correlation=1, at=5)
    path = tmp_path / "collective_waits.parquet"
    row = {"call": [0], "rank": [0], "start_us": [5.0], "wait_us": [60.0]}
    pd.DataFrame(row).to_parquet(path)
    analyzer = TreePerfAnalyzer(maker.document())
    whole = analyzer.simulation()
    known = analyzer.simulation(waits=read_collective_waits(path))
    assert saved(whole, "communication=0") == [pytest.approx(0.09)]
    assert saved(known, "communication=0") == [pytest.approx(0.03)]
    assert known.critical_path_table["kind"].tolist()[-2:] == [
        "other rank",
        "communication",
    ]
    assert whole.critical_path_table["known"].tolist()[-1] is False
    with pytest.raises(UsageError, match="is not a collective_waits table"):
        read_collective_waits(Path(__file__))


def test_waits_of_another_run_are_refused_without_naming_a_rank_that_nobody_gave(
    tmp_path: Path,
) -> None:
    maker = TraceMaker()
    maker.launched("ncclDevKernel_AllReduce", 10, 90, correlation=1, at=5)
    path = tmp_path / "collective_waits.parquet"
    row = {"call": [0], "rank": [3], "start_us": [9000.0], "wait_us": [60.0]}
    pd.DataFrame(row).to_parquet(path)
    waits = read_collective_waits(path)
    analyzer = TreePerfAnalyzer(maker.document())
    with pytest.raises(UsageError, match="no call of any rank starts"):
        analyzer.simulation(waits=waits)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("GEMM=0.5", (("GEMM", 0.5),)),
        ("a=b=0,kernel:x,y=2", (("a=b", 0.0), ("kernel:x,y", 2.0))),
        ("op:f<1,2>=.5", (("op:f<1,2>", 0.5),)),
    ],
)
def test_commas_separate_only_after_a_number(text: str, terms: object) -> None:
    assert parse_change(text).terms == terms


@pytest.mark.parametrize(
    "text", ["", "GEMM", "GEMM=", "GEMM=-1", "GEMM=nan", "=0", "finding:x=0.5"]
)
def test_a_malformed_change_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--change"):
        parse_change(text)


@pytest.mark.parametrize(
    "name", ["Gem", "op:none", "host:none", "finding:none", "kernel:none"]
)
def test_a_change_of_something_not_in_the_trace_names_it(name: str) -> None:
    simulation = simulated(program_of(CALIBRATION))
    with pytest.raises(UsageError, match=name.rpartition(":")[2]):
        simulation.what_if([parse_change(f"{name}=0")])


def test_findings_save_what_the_replay_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`finding:ID=0` saves a finding's saving, all of them together the sum of what each adds."""
    steps = [("0", 5), ("think", 200)] * 8  # the host limits
    path = tmp_path / "trace.json.gz"
    path.write_bytes(
        gzip.compress(
            json.dumps(program_of([*CALIBRATION, *steps]).document()).encode()
        )
    )

    def printed(*arguments: str) -> dict[str, Any]:
        assert run([*arguments, "--json", "--no-cache"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    document = printed("findings", str(path))
    findings = [each for each in document["findings"] if each["simulated"]]
    assert document["model"]["state"] == "ok"
    assert findings
    assert [each["saving_ms"] for each in findings] == sorted(
        (each["saving_ms"] for each in findings), reverse=True
    )
    changes = [f"finding:{each['id']}=0" for each in findings]
    alone = [part for change in changes for part in ("--change", change)]
    rows = printed("what-if", str(path), *alone, "--change", ",".join(changes))[
        "what_if"
    ]
    assert [row["saved_ms"] for row in rows[:-1]] == [
        each["saving_ms"] for each in findings
    ]
    together = sum(each["saving_together_ms"] for each in findings)
    assert rows[-1]["saved_ms"] == pytest.approx(together)
    assert (rows[-1]["factor"] is None) == (len(changes) > 1)


def test_the_command_prints_its_error_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    table = tmp_path / "what_if.csv"
    path.write_text(json.dumps(program_of(CALIBRATION).document()))
    assert run(["what-if", str(path), "--no-cache", "--csv", str(table)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Simulation: ")
    assert "error +0.00 %, ok" in shown.splitlines()[0]
    assert "CRITICAL PATH" in shown
    assert "kernels" in set(pd.read_csv(table)["change"])
    assert run(["what-if", str(path), "--no-cache", "--iteration", "9"]) == 2
    assert "no ProfilerStep#9" in capsys.readouterr().err


@pytest.mark.slow
def test_the_examples_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands and its program run, its first line is printed, its JSON has every field."""
    page = page_text("simulation.md")
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"(?m)^\$ tracelens-ext (.*)$", page):
        assert run(shlex.split(command)) == 0, command
    assert re.findall(r"(?m)^Simulation: .*$", page)[0] in capsys.readouterr().out
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(program, {})  # noqa: S102  # the documentation's own
    assert run(["what-if", "slow.json.gz", "--change", "GEMM=0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = (document, document["model"], document["window"], document["what_if"][0])
    assert [name for part in parts for name in part if f'"{name}":' not in page] == []


def test_threads_and_tracks_beyond_the_bounds_are_replayed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = TraceMaker()
    for n in range(1, 13):
        maker.call("cudaLaunchKernel", 100 * n - 50, 2, correlation=n, thread=n)
        maker.kernel(f"k{n}", 100 * n, 90, stream=n, correlation=n)
    monkeypatch.setattr("tracelens_ext.simulation.host_clocks._MOST_THREADS", 3)
    for module in ("blocking_calls", "simulation"):
        monkeypatch.setattr(f"tracelens_ext.simulation.{module}.MOST_TRACKS", 3)
    simulation = simulated(maker)
    assert simulation.state == "low_confidence"
    assert partitions(simulation)
    assert saved(simulation, "kernel:k12=0.5") == [0.045]


def run_by_node(replay: Replay, change: Change) -> Replayed:
    """Replay a program node by node, in the order of calls: slow, but easy to follow."""
    program = replay.program
    parameters = replay.parameters(change)
    awaited_by_node = dict(program.waits.tolist())
    returned = [0] * len(replay.recorded)
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    end_of_track: dict[int, int] = {}

    def run_block(block: int) -> None:
        base = replay.base_of_block[block]
        times = [returned[base] + parameters.block_offset[block]]
        nonblocking = parameters.nonblocking
        if nonblocking is None or not nonblocking[block]:
            times += [
                ends[node]
                for waiting_block, node in program.awaited.tolist()
                if waiting_block == block
            ]
        row = replay.clocks + block
        returned[row] = int(max(times) + parameters.tail[block])

    def run_node(node: int) -> None:
        track = int(program.track[node])
        if node in awaited_by_node:
            ready = ends[awaited_by_node[node]]
        else:
            base = replay.base_of_node[node]
            called = returned[base] + parameters.node_offset[node]
            ready = max(called, program.earliest[node])
        if track in end_of_track:
            ready = max(ready, end_of_track[track] + parameters.gap[node])
        starts[node] = int(ready)
        ends[node] = int(ready + parameters.duration[node])
        end_of_track[track] = ends[node]

    node_turns = [(key, 0, node) for node, key in enumerate(program.key.tolist())]
    block_turns = [
        (start, 1, block) for block, start in enumerate(program.block_start.tolist())
    ]
    for _, is_block, number in sorted(node_turns + block_turns):
        if is_block:
            run_block(number)
        else:
            run_node(number)
    clock_ends = [
        returned[base] + parameters.clock_end_offset[clock]
        for clock, base in enumerate(replay.base_of_clock)
    ]
    all_ends = clock_ends + list(end_of_track.values())
    return Replayed(
        start=np.array([starts[node] for node in range(len(starts))]),
        returned=np.array(returned),
        wall=int(max(all_ends + [parameters.least_wall])),
    )


def random_program(random: Random) -> DependencyGraph:
    """A program of streams that wait for each other in chains and circles, and overlap."""

    def numbers(count: int, low: int, high: int) -> Int64Array:
        return np.array(
            [random.randint(low, high) for _ in range(count)], dtype=np.int64
        )

    streams = random.randint(1, 4)
    clocks = random.randint(1, 2)
    count = random.randint(0, 40)
    blocks = random.randint(0, 5)
    track = numbers(count, 0, streams - 1)
    key = numbers(count, 0, 60)
    order = np.lexsort((key, track))
    track = track[order]
    key = key[order]
    # 0: a wait for another stream if there is an earlier node, 1: no call, 2: a call
    kind = numbers(count, 0, 2)
    waits = []
    for node in np.flatnonzero(kind == 0).tolist():
        is_earlier = (key < key[node]) & (track != track[node])
        if is_earlier.any():
            awaited_node = random.choice(np.flatnonzero(is_earlier).tolist())
            waits.append((node, awaited_node))
    is_wait = np.isin(np.arange(count), [node for node, _ in waits])
    edges = np.sort(numbers(2 * blocks, 0, 60)).reshape(-1, 2)  # some take no time
    awaited = [
        (block, node)
        for block, begin in enumerate(edges[:, 0].tolist())
        for node in np.flatnonzero(key < begin).tolist()
        if random.random() < 0.2
    ]
    program = SimpleNamespace(
        track=track,
        tracks=range(streams),
        key=key,
        call=np.where(is_wait | (kind == 1), -1, key),
        event=np.where(is_wait, -1, np.arange(count)),
        clock=numbers(count, 0, clocks - 1),
        duration=np.where(is_wait, 0, numbers(count, 0, 30)),
        earliest=np.where(is_wait, 0, numbers(count, 0, 20)),
        waits=np.array(waits, dtype=np.int64).reshape(-1, 2),
        awaited=np.array(awaited, dtype=np.int64).reshape(-1, 2),
        block_start=edges[:, 0],
        block_end=edges[:, 1],
        block_clock=numbers(blocks, 0, clocks - 1),
        unusual_tail=numbers(blocks, 0, 1) * 7,
        standstill=np.where(is_wait, 0, numbers(count, 0, 1) * 11),
        clocks=SimpleNamespace(end=numbers(clocks, 60, 90)),
        latency=numbers(count, 0, 9),
        gap=numbers(count, -2, 5),
        tail=np.full(count, 3),
    )
    return cast("DependencyGraph", program)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 3, 4096]))
def test_a_replay_in_chunks_is_a_replay_node_by_node(
    random: Random, rows_at_once: int
) -> None:
    program = random_program(random)
    changes = [
        Change(),
        Change(duration=program.duration * 2, gap_factor=0.5, least_wall=100),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tracelens_ext.simulation.replay_order._ROWS_AT_ONCE", rows_at_once
        )
        replay = Replay(program)
        walls, unchanged = replay.run(changes, len(changes))
    expected = run_by_node(replay, changes[0])
    assert unchanged.wall == expected.wall
    assert unchanged.start.tolist() == expected.start.tolist()
    assert unchanged.returned.tolist() == expected.returned.tolist()
    expected_walls = [run_by_node(replay, change).wall for change in changes]
    assert walls.tolist() == expected_walls
