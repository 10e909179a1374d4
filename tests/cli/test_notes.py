"""Every command has notes on what was dropped; a part that fails takes no other with it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import run
from tracelens_ext.cli.mcp_tools import TraceTools
from tracelens_ext.cli.mcp_traces import ServedTraces

DROPPED = "1 of 11 events dropped: 1 no usable duration (dur)."


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    maker = TraceMaker()
    for number in range(5):
        at = 100 * number
        maker.launched("gemm_kernel", at + 20, 30, correlation=number, at=at)
    document = maker.document()
    kernel = next(
        event for event in document["traceEvents"] if event["name"] == "gemm_kernel"
    )
    document["traceEvents"].append({**kernel, "dur": -1})
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_text(json.dumps(document), encoding="utf-8")
    return "trace.json"


def break_(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("on purpose")

    monkeypatch.delenv("TRACELENS_EXT_DEBUG")
    monkeypatch.setattr(place, fail)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "command", ["kernels", "gaps", "tree", "counters", "findings", "what-if"]
)
def test_dropped_events_are_in_the_notes(
    command: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert DROPPED in json_of(capsys, command, trace)["notes"]


FAILURE = (
    "The table gaps_longest could not be computed: "
    "ZeroDivisionError: on purpose; please report"
)


def test_a_table_that_fails_leaves_the_others(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json_of(capsys, "gaps", trace)
    break_(monkeypatch, "tracelens_ext.analysis.idle_time.gap_tables.gaps_longest")
    document = json_of(capsys, "gaps", trace)
    assert [note for note in document["notes"] if note.startswith(FAILURE)]
    del whole["tables"]["gaps_longest"]
    assert document["tables"] == whole["tables"]
    assert run(["gaps", trace]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert FAILURE in screen
    assert "GAP DURATION HISTOGRAM" in screen


def test_a_section_that_fails_leaves_the_others(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_(monkeypatch, "tracelens_ext.cli.name_columns.share_marks")
    assert run(["kernels", trace]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "Total kernel launches: 5" in screen
    assert (
        "The section 'kernels' of the screen could not be computed: ZeroDivisionError"
        in screen
    )


def test_a_command_whose_only_part_fails_exits_with_1(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_(monkeypatch, "tracelens_ext.analysis.operations.merged_tree.merged_tree")
    assert run(["tree", trace]) == 1
    error = capsys.readouterr().err
    assert (
        "The result could not be computed: ZeroDivisionError: on purpose; please report"
        in error
    )


def test_an_agent_is_told_of_dropped_events(trace: str) -> None:
    tools = TraceTools(ServedTraces([Path.cwd()]))
    answer = tools.with_notes(trace, tools.table(trace, "kernels"))
    assert DROPPED in answer["notes"]  # type: ignore[operator]  # a list
    assert DROPPED in tools.with_notes(trace, tools.open_trace(trace))["notes"]  # type: ignore[operator]


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    events = [
        {"action": "alloc", "addr": 1, "size": 4096, "time_us": 1, "frames": []},
        {"action": "alloc", "addr": 2, "size": 2048, "time_us": 2, "frames": []},
        {
            "action": "free_completed",
            "addr": 1,
            "size": 4096,
            "time_us": 3,
            "frames": [],
        },
    ]
    monkeypatch.chdir(tmp_path)
    content = {"segments": [], "device_traces": [events]}
    Path("snapshot.pickle").write_bytes(pickle.dumps(content))
    return "snapshot.pickle"


def test_a_memory_snapshot_is_shown_as_memory_shows_it(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["memory", snapshot]) == 0
    shown = capsys.readouterr().out
    assert "Peak memory of each device" in shown
    assert run([snapshot]) == 0
    assert capsys.readouterr().out == shown


def test_a_memory_snapshot_is_written_as_memory_shows_it(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json_of(capsys, "memory", snapshot)
    assert run(["report", snapshot, "-o", "report.json", "--quiet"]) == 0
    assert json.loads(Path("report.json").read_text(encoding="utf-8")) == document
    assert run(["report", snapshot, "-o", "report.xlsx", "--quiet"]) == 0
    assert Path("report.xlsx").stat().st_size > 0
