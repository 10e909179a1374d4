"""Ranks merged into one file: the tables are those of their own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.support.fleet_helpers import needs_fleet
from tests.support.fleet_maker import Fleet, Simulation
from tests.support.merging import MERGED, documents_in, text_of, write_merged
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.errors import MergedRanksError, UsageError
from tracelens_ext.readers import read_trace
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace.merged_ranks import find_merged_ranks
from tracelens_ext.trace.rank_traces import trace_of_rank

if TYPE_CHECKING:
    from tracelens_ext.distributed import FleetResult

SGLANG = (
    Path(__file__).resolve().parents[3] / "shared" / "field" / "28_sglang_merged.json"
)
forms = pytest.mark.parametrize("form", MERGED)
one_form_is_quick = pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=() if form == "sglang" else pytest.mark.slow)
        for form in MERGED
    ],
)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of four ranks, one of which is slow."""
    folder = tmp_path_factory.mktemp("four")
    Simulation(Fleet(fault="slow_rank", dp=2, tp=2, steps=3, layers=1)).write(folder)
    (folder / "truth.json").unlink()
    return folder


def fleet(inputs: Path, out: Path) -> FleetResult:
    from tracelens_ext.distributed import run_fleet

    return run_fleet([str(inputs)], str(out), workers=0)


@pytest.fixture(scope="module")
def expected(four: Path, tmp_path_factory: pytest.TempPathFactory) -> FleetResult:
    return fleet(four, tmp_path_factory.mktemp("expected"))


def without_names(table: pd.DataFrame, form: str) -> pd.DataFrame:
    """A table without what says from which file a row is, or what a form cannot hold."""
    others = ["trace", "rank_from", "seconds", "parts", "format", "attempts"]
    if form == "numbers at the end":
        others.append("world_size")
    return table.drop(columns=[name for name in others if name in table])


@needs_fleet
@one_form_is_quick
def test_tables_of_a_fleet_are_those_of_four_files(
    form: str, four: Path, expected: FleetResult, tmp_path: Path
) -> None:
    merged = write_merged(four, form, tmp_path / "merged.json.gz")
    result = fleet(merged, tmp_path / "out")
    assert (result.done, result.failed, result.missing) == (4, 0, 0)
    assert result.tables.keys() == expected.tables.keys()
    for name, table in expected.tables.items():
        pd.testing.assert_frame_equal(
            without_names(result.tables[name], form),
            without_names(table, form),
            obj=name,
        )
    assert result.tables["verdicts"]["verdict"].tolist() == ["slow_rank"]


@needs_fleet
@pytest.mark.slow
def test_a_second_run_keeps_all_ranks(four: Path, tmp_path: Path) -> None:
    merged = write_merged(four, "sglang", tmp_path / "merged.json.gz")
    first = fleet(merged, tmp_path / "out")
    again = fleet(merged, tmp_path / "out")
    assert (again.done, again.kept) == (0, 4)
    assert again.notes == first.notes
    pd.testing.assert_frame_equal(again.tables["ranks"], first.tables["ranks"])


@one_form_is_quick
def test_each_rank_is_as_its_own_file(form: str, four: Path, tmp_path: Path) -> None:
    merged = write_merged(four, form, tmp_path / "merged.json.gz")
    for rank in range(0, 4, 3):
        alone = TreePerfAnalyzer(four / f"rank{rank}.json.gz")
        taken = TreePerfAnalyzer(merged, reading=ReadingOptions(rank=rank))
        assert taken.trace.base_ns == alone.trace.base_ns
        for name in ("kernels", "gpu_timeline", "kernel_summary"):
            method = f"get_df_{name}"
            pd.testing.assert_frame_equal(
                getattr(taken, method)(), getattr(alone, method)(), obj=name
            )


@forms
def test_a_loaded_document_is_read_as_its_file(form: str, four: Path) -> None:
    document: Any = json.loads(text_of(MERGED[form](documents_in(four))))
    trace = read_trace(document)
    assert [rank.number for rank in find_merged_ranks(trace)] == [0, 1, 2, 3]
    with pytest.raises(
        MergedRanksError, match="analyze one of them with --rank 0"
    ) as caught:
        TreePerfAnalyzer(trace)
    assert caught.value.ranks == (0, 1, 2, 3)


def test_a_rank_that_is_not_there(four: Path, tmp_path: Path) -> None:
    merged = write_merged(four, "sglang", tmp_path / "merged.json.gz")
    with pytest.raises(UsageError, match=r"contains the ranks 0, 1, 2, 3, not rank 9"):
        read_trace(merged, reading=ReadingOptions(rank=9))
    own = four / "rank2.json.gz"
    with pytest.raises(UsageError, match=r"is of rank 2, not rank 1"):
        read_trace(own, reading=ReadingOptions(rank=1))
    assert len(read_trace(own, reading=ReadingOptions(rank=2)))


def test_events_of_ranks_in_order_of_time(four: Path) -> None:
    """Processes alone, mixed: the GPU of each is known only if its launches are the only ones."""
    document = json.loads(text_of(MERGED["processes"](documents_in(four))))
    document["traceEvents"].sort(key=lambda event: event["ts"])
    trace = read_trace(document)
    assert find_merged_ranks(trace) == ()
    with pytest.raises(
        MergedRanksError, match="analyze each rank's own file"
    ) as caught:
        TreePerfAnalyzer(trace)
    assert caught.value.ranks == ()


def test_one_process_id_for_all_is_refused(four: Path) -> None:
    document = json.loads(text_of(MERGED["processes"](documents_in(four))))
    for event in document["traceEvents"]:
        if event["cat"] != "kernel":
            event["pid"] = 83
    with pytest.raises(MergedRanksError, match="analyze each rank's own file"):
        TreePerfAnalyzer(document)


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (("[TP00]", "[TP01]"), [0, 1]),
        (("[TP00-PP00]", "[TP01-PP00]", "[TP00-PP01]", "[TP01-PP01]"), [0, 1, 2, 3]),
        (("[TP00-DP00]", "[TP01-DP01]", "[TP02-DP00]"), [0, 1, 2]),
        (("[TP00-DP00]", "[TP00-DP01]"), [0, 1]),
        (("[Rank 4]", "[Rank 2]"), [2, 4]),
        (("rank7 :", "rank_3 :"), [3, 7]),
        (("[host-1 a]", "[host-1 b]"), [0, 1]),
    ],
)
def test_numbers_of_labels(labels: tuple[str, ...], numbers: list[int]) -> None:
    events: list[object] = []
    for label in labels:
        common = {"pid": f"{label} 5", "tid": 1, "ph": "X", "dur": 2}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1}
        events.append({**common, **launch, "args": {"correlation": 1}})
    ranks = find_merged_ranks(read_trace(events))
    assert [rank.number for rank in ranks] == numbers


def test_processes_of_one_rank_are_no_merged_ranks() -> None:
    """A label on the only process that works, and a data loader with another."""
    events: list[object] = []
    for process, name in (("[w 1] 5", "cudaLaunchKernel"), ("[w 2] 6", "aten::to")):
        category = "cuda_runtime" if "cuda" in name else "cpu_op"
        times = {"ph": "X", "ts": 1, "dur": 2, "tid": 1}
        events.append({**times, "pid": process, "cat": category, "name": name})
    assert find_merged_ranks(read_trace(events)) == ()


@pytest.mark.real_data
def test_the_merged_trace_of_sglang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = read_trace(SGLANG)
    ranks = find_merged_ranks(trace)
    assert [(rank.number, rank.label) for rank in ranks] == [(0, "TP00"), (1, "TP01")]
    part = trace_of_rank(trace, ranks[1])
    assert part.threads == [(83, 83), (1, 7)]
    assert part.device.tolist() == [1]
    assert run(["report", str(SGLANG), "--csv-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Ranks of" in shown
    assert "rank 1 " in shown
    assert (tmp_path / "28_sglang_merged_rank1_perf_report" / "kernels.csv").exists()
    assert run(["kernels", str(SGLANG)]) == 1
    assert "analyze one of them with --rank 0" in capsys.readouterr().err
    assert run(["kernels", str(SGLANG), "--rank", "1"]) == 0
