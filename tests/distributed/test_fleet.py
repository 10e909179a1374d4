"""A fleet analyzes every trace once, lists every failure, and loses nothing if a worker dies."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.comparison_helpers import needs_html
from tests.support.fleet_helpers import (
    ALL_REDUCE,
    GEMM,
    needs_fleet,
    needs_web,
    rank_trace,
    served,
    write_ranks,
)
from tests.support.make_trace import TraceMaker
from tracelens_ext.distributed.cluster import workers_of
from tracelens_ext.distributed.inputs import FleetInput, find_inputs, identity_in
from tracelens_ext.distributed.rank_numbers import (
    RankHints,
    assign_ranks,
    missing_ranks,
    rank_hints,
    rank_in_name,
    world_size_of,
)
from tracelens_ext.errors import OutputError, RuleError, TraceNotFoundError, UsageError
from tracelens_ext.isolation import DEBUG_VARIABLE
from tracelens_ext.report.manifest import MANIFEST
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.distributed import FleetResult

pytestmark = needs_fleet

RULES = '[[rule]]\ncategory = "Mine"\npattern = "xmma_gemm"\nexamples = ["sm90_xmma_gemm_x"]\n'


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Four ranks of which the third is slow."""
    folder = tmp_path / "ranks"
    write_ranks(folder, {0: 100, 1: 110, 2: 300, 3: 105})
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, FleetResult]:
    """The folder of these ranks, the folder of their results, and the result of the fleet."""
    folder = tmp_path_factory.mktemp("done")
    inputs = folder / "ranks"
    out = folder / "out"
    write_ranks(inputs, {0: 100, 1: 110, 2: 300, 3: 105})
    return inputs, out, fleet(inputs, out)


def fleet(inputs: object, out: object, **options: Any) -> FleetResult:
    from tracelens_ext.distributed import run_fleet

    all_options = {"workers": 0, "pause_s": 0.0} | options
    return run_fleet([str(inputs)], str(out), **all_options)


def states(result: FleetResult) -> list[str]:
    return list(result.tables["traces"]["state"])


def stored(out: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(out / f"{name}.parquet")


# What comes out.


def test_ranks_are_compared(done: tuple[Path, Path, FleetResult]) -> None:
    _, out, result = done
    assert (result.done, result.kept, result.failed, result.missing) == (4, 0, 0, 0)
    table = stored(out, "ranks")
    assert table["rank"].tolist() == [2, 1, 3, 0], "the slowest first"
    assert table["computation_time_ms"].tolist() == pytest.approx(
        [0.6, 0.22, 0.21, 0.2]
    )
    assert table["busy_time_ms"].tolist() == pytest.approx([0.96] * 4)
    gemm = stored(out, "category_across_ranks").set_index("kernel_category").loc["GEMM"]
    assert gemm["ranks"] == 4
    assert gemm["mean_ms"] == pytest.approx(0.3075)
    assert gemm["std_ms"] == pytest.approx(pd.Series([0.2, 0.22, 0.6, 0.21]).std())
    assert (gemm["min_rank"], gemm["max_rank"]) == (0, 2)
    assert gemm["top_ranks"] == "2 (0.600), 1 (0.220), 3 (0.210), 0 (0.200)"
    calls = stored(out, "collective_calls")
    assert calls["last_rank"].tolist() == [2, 2]
    assert calls["transfer_us"].tolist() == pytest.approx([180, 180])
    waits = stored(out, "collective_waits").groupby("rank")["wait_us"].sum()
    assert waits.tolist() == pytest.approx([400, 380, 0, 390])
    assert result.tables["verdicts"][["verdict", "rank"]].to_numpy().tolist() == [
        ["slow_rank", 2]
    ]


def test_parts_contain_the_tables_of_the_analyzer(
    done: tuple[Path, Path, FleetResult],
) -> None:
    from tracelens_ext import TreePerfAnalyzer

    ranks, out, _ = done
    analyzer = TreePerfAnalyzer(
        ranks / "rank2.json.gz", use_kernel_name_categories=True
    )
    expected = {
        "timeline": analyzer.get_df_gpu_timeline(),
        "kernels": analyzer.get_df_kernel_summary(),
        "ops": analyzer.get_df_kernel_launchers_summary(),
        "collectives": analyzer.get_df_collectives(),
    }
    for name, frame in expected.items():
        parts = pd.read_parquet(out / name)
        assert list(parts)[:3] == ["trace", "rank", "device"]
        assert sorted(parts["rank"].unique()) == [0, 1, 2, 3]
        rows = parts[parts["rank"] == 2].drop(columns=["trace", "rank", "device"])
        expected_rows = frame.astype(object).to_numpy().tolist()
        assert rows.astype(object).to_numpy().tolist() == expected_rows, name
    categories = (
        pd.read_parquet(out / "categories").groupby("rank")["% of GPU time"].sum()
    )
    assert categories.tolist() == pytest.approx([100.0] * 4)
    calls = pd.read_parquet(out / "collective_kernels")
    assert calls.groupby("rank")["iteration"].agg(list).tolist() == [["1", "2"]] * 4
    assert calls["sequence"].tolist() == [1] * 8


@pytest.mark.slow
def test_a_trace_without_gpu_events_is_not_a_failure(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    (tmp_path / "rank0.json").write_text(json.dumps(maker.document()))
    (tmp_path / "rank1.json").write_text(rank_trace(1, world=2))
    result = fleet(tmp_path / "*.json", tmp_path / "out")
    assert states(result) == ["done", "done"]
    assert result.tables["ranks"]["rank"].tolist() == [1]


@pytest.mark.slow
def test_unusual_traces_do_not_stop_the_others(ranks: Path, tmp_path: Path) -> None:
    """Sizes that no integer holds; no GPU work at all; communication alone."""
    for rank, odd in ((1, str(10**30)), (2, "1e308"), (3, str(2**63))):
        text = rank_trace(rank).replace("1000,", f"{odd},")
        (ranks / f"rank{rank}.json.gz").unlink()
        (ranks / f"rank{rank}.json").write_text(
            text.replace('"Group size": 4', f'"Group size": {odd}')
        )
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    (ranks / "cpu_only.json").write_text(json.dumps(maker.document()))
    result = fleet(ranks, tmp_path / "out")
    assert result.failed == 0
    assert len(result.tables["ranks"]) == 4
    (ranks / "rank0.json.gz").unlink()
    for rank in (1, 2, 3):
        (ranks / f"rank{rank}.json").unlink()
    assert "verdicts" not in fleet(ranks, tmp_path / "none").tables
    maker.launched(ALL_REDUCE, 20, 5, correlation=1, at=1)
    maker.kernel("backwards", 30, -5)
    (ranks / "cpu_only.json").write_text(json.dumps(maker.document()))
    result = fleet(ranks, tmp_path / "alone")
    assert len(result.tables["ranks"]) == 1
    assert "1 event of 1 trace could not be used." in result.notes


# Failures.


@pytest.mark.slow
def test_failures_are_listed_and_the_other_traces_are_analyzed(
    ranks: Path, tmp_path: Path
) -> None:
    whole = (ranks / "rank1.json.gz").read_bytes()
    (ranks / "rank1.json.gz").write_bytes(whole[: len(whole) // 2])
    (ranks / "rank3.json.gz").unlink()
    from tracelens_ext.distributed import run_fleet

    inputs = [ranks, tmp_path / "absent.json", tmp_path / "none*.json"]
    result = run_fleet(inputs, tmp_path / "out", workers=0)
    assert (result.done, result.failed, result.missing) == (2, 3, 1)
    rows = stored(tmp_path / "out", "failures").astype(object).to_dict("records")
    assert [(Path(row["trace"]).name, row["stage"]) for row in rows[:3]] == [
        ("absent.json", "read"),
        ("rank1.json.gz", "read"),
        ("none*.json", "find"),
    ]
    assert "no such file" in rows[0]["message"]
    assert rows[1]["rank"] == 1
    assert rows[1]["message"].startswith(
        f"{ranks / 'rank1.json.gz'}: the gzip stream ends prematurely"
    )
    assert rows[1]["attempts"] == 1, "the next attempt would find the same"
    assert (rows[3]["rank"], rows[3]["stage"], rows[3]["attempts"]) == (3, "missing", 0)
    assert sorted(result.tables["ranks"]["rank"]) == [0, 2]


@pytest.mark.slow
def test_earlier_reductions_are_removed_if_all_traces_fail(
    ranks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fleet(ranks, out)
    for path in ranks.iterdir():
        path.write_text("{}")
    result = fleet(ranks, out)
    assert (result.done, result.failed) == (0, 4)
    assert set(result.tables) == {"traces"}
    assert not (out / "ranks.parquet").exists()
    assert len(stored(out, "failures")) == 4


def test_settings_reach_the_workers(ranks: Path, tmp_path: Path) -> None:
    result = fleet(ranks, tmp_path / "out", reading=ReadingOptions(max_bytes=100))
    assert result.failed == 4
    assert "--max-bytes" in result.failures["message"].iloc[0]


@pytest.mark.process
@needs_web
def test_a_trace_is_tried_again_after_its_worker_dies(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))  # of the workers
    (ranks / "rank3.json.gz").write_bytes(b"\x1f\x8bnothing")
    out = tmp_path / "out"
    rules = tmp_path / "r.toml"
    rules.write_text(RULES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    with served(ranks, {"rank1.json.gz": 1, "rank2.json.gz": 2}) as (
        url,
        requested_files,
    ):
        result = fleet(f"{url}/*.json.gz", out, workers=2, attempts=2, rules=[rules])
        assert (result.done, result.failed, result.missing) == (2, 2, 0)
        traces = result.tables["traces"].set_index("rank")
        assert traces["state"].to_dict() == {
            0: "done",
            1: "done",
            2: "failed",
            3: "failed",
        }
        assert traces["attempts"].to_dict() == {0: 1, 1: 2, 2: 2, 3: 2}, (
            "0 had no part in it"
        )
        rows = result.failures.set_index("rank")
        assert rows["stage"].to_dict() == {2: "worker", 3: "read"}
        assert "the worker process died" in rows["message"].loc[2]
        assert sorted(result.tables["ranks"]["rank"]) == [0, 1]
        assert "Mine" in set(result.tables["category_across_ranks"]["kernel_category"])
        assert not list((tmp_path / "scratch").iterdir()), (
            "the dead leave nothing behind"
        )
        requested_files.clear()
        again = fleet(f"{url}/*.json.gz", out, workers=0, attempts=1, rules=[rules])
        assert (again.done, again.kept, again.failed) == (1, 2, 1)
        assert {name for name in requested_files if name.startswith("rank")} == {
            "rank2.json.gz",
            "rank3.json.gz",
        }


@pytest.mark.slow
def test_a_fleet_runs_on_a_cluster(ranks: Path, tmp_path: Path) -> None:
    from distributed import LocalCluster

    from tracelens_ext.distributed.cluster import ClusterError

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
        local_directory=str(tmp_path),
    ) as cluster:
        address = cluster.scheduler_address
        result = fleet(ranks, tmp_path / "out", scheduler=address, workers=None)
        assert (result.done, result.failed) == (4, 0)
    with pytest.raises(ClusterError, match="no Dask scheduler responds"):
        fleet(ranks, tmp_path / "out2", scheduler="nonsense://x", workers=None)


# Reruns.


@pytest.mark.slow
def test_a_second_run_analyzes_only_missing_and_changed_traces(
    ranks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = fleet(ranks, out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.parquet")}
    assert len(before) == 4 * 12
    assert states(fleet(ranks, out)) == ["kept"] * 4
    (next((out / ".done").glob("rank0*"))).unlink()  # as if its worker had died
    write_ranks(ranks, {2: 100})
    os.utime(ranks / "rank2.json.gz", ns=(1, 1))
    result = fleet(ranks, out)
    assert states(result) == ["done", "kept", "done", "kept"]
    changed = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert {path.stem.split("-")[0] for path in changed} == {"rank0", "rank2"}
    assert first.tables["ranks"]["computation_time_ms"].max() == pytest.approx(0.6)
    assert result.tables["ranks"]["computation_time_ms"].max() == pytest.approx(0.22)


@pytest.mark.slow
def test_traces_are_analyzed_again_with_different_rules(
    ranks: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "r.toml"
    out = tmp_path / "out"
    trace = ranks / "rank1.json.gz"
    rules.write_text(RULES)
    assert fleet(trace, out).done == 1
    assert fleet(trace, out, rules=[rules]).done == 1
    assert fleet(trace, out, rules=[rules]).kept == 1
    rules.write_text(RULES.replace("Mine", "Yours"))
    assert fleet(trace, out, rules=[rules]).done == 1
    assert fleet(trace, out, rules=[rules], include_unlinked_kernels=False).done == 1


@pytest.mark.slow
def test_results_of_absent_inputs_are_left_out(ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fleet(ranks, out)
    (ranks / "rank3.json.gz").unlink()
    result = fleet(ranks, out)
    assert sorted(result.tables["ranks"]["rank"]) == [0, 1, 2]
    assert any(note.startswith("Parts of 1 trace that is not") for note in result.notes)
    assert len(list((out / "timeline").iterdir())) == 4, "they are not thrown away"


@pytest.mark.slow
def test_a_missing_part_is_an_error(ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fleet(ranks / "rank1.json.gz", out)
    next((out / "timeline").iterdir()).unlink()
    with pytest.raises(
        OutputError, match=r"cannot be read .*; remove .*\.done and run again"
    ):
        fleet(ranks / "rank1.json.gz", out)


# Inputs and outputs elsewhere.


@pytest.mark.slow
def test_inputs_and_outputs_can_be_in_memory(ranks: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    try:
        for path in ranks.iterdir():
            files.pipe_file(f"/in/{path.name}", path.read_bytes())
        result = fleet("memory://in", "memory://out")
        assert (result.done, result.failed) == (4, 0)
        assert states(fleet("memory://in/rank*.gz", "memory://out")) == ["kept"] * 4
        files.pipe_file("/in/rank1.json.gz", (ranks / "rank2.json.gz").read_bytes())
        assert states(fleet("memory://in", "memory://out")) == [
            "kept",
            "done",
            "kept",
            "kept",
        ]
        assert files.exists("/out/ranks.parquet")
        with pytest.raises(UsageError, match="use 0 workers"):
            fleet("memory://in", "memory://out", workers=2)
    finally:
        files.rm("/", recursive=True)


@pytest.mark.slow
def test_inputs_and_outputs_can_be_file_urls(ranks: Path, tmp_path: Path) -> None:
    result = fleet(ranks.as_uri(), (tmp_path / "out").as_uri())
    assert result.done == 4
    assert result.tables["traces"]["trace"].iloc[0] == f"{ranks.as_uri()}/rank0.json.gz"
    assert stored(tmp_path / "out", "ranks")["rank"].tolist() == [2, 1, 3, 0]
    absent = fleet(f"{ranks.as_uri()}/absent.json", tmp_path / "out2")
    (row,) = absent.failures.to_dict("records")
    assert (row["stage"], row["attempts"]) == ("open", 1)


@needs_web
def test_urls_that_cannot_be_read_are_tried_again(ranks: Path, tmp_path: Path) -> None:
    with served(ranks) as (url, _):
        pass  # the server stops here
    result = fleet(f"{url}/rank0.json.gz", tmp_path / "out", attempts=3)
    (row,) = result.failures.to_dict("records")
    assert (row["rank"], row["stage"], row["attempts"]) == (0, "open", 3)
    assert row["message"].startswith(f"{url}/rank0.json.gz: cannot be opened (")


# What is refused.


@pytest.mark.slow
def test_a_folder_with_other_files_is_not_written_to(
    ranks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rank = ranks / "rank1.json.gz"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(
        OutputError, match="contains files that tracelens-ext did not write"
    ):
        fleet(rank, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    fleet(rank, out, force=True)
    assert (out / "mine.txt").read_text() == "mine"
    assert fleet(rank, out).kept == 1, "now it is marked"
    with pytest.raises(OutputError, match="is a file; give a folder"):
        fleet(rank, out / "mine.txt")


@pytest.mark.slow
def test_files_of_others_are_not_overwritten(ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text(
        json.dumps({"generator": "tracelens-ext", "files": ["ops.csv"]})
    )
    (out / "ranks.parquet").write_text("mine")
    with pytest.raises(
        OutputError, match=r"ranks\.parquet: exists and was not written by"
    ):
        fleet(ranks / "rank1.json.gz", out)
    (out / "ranks.parquet").unlink()
    fleet(ranks / "rank1.json.gz", out)
    assert "ops.csv" in json.loads((out / MANIFEST).read_text())["files"]


def test_invalid_arguments_are_refused(ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="give only one of them"):
        fleet(ranks, out, scheduler="tcp://x:1")
    with pytest.raises(UsageError, match="at least 1"):
        fleet(ranks, out, attempts=0)
    with pytest.raises(UsageError, match="give 0 to use only this process"):
        fleet(ranks, out, workers=-1)
    with pytest.raises(UsageError, match="there is no categorizer called"):
        fleet(ranks, out, categorizer="nonsense")
    with pytest.raises(RuleError):
        fleet(ranks, out, rules=[tmp_path / "absent.toml"])
    with pytest.raises(TraceNotFoundError, match="matches no trace"):
        fleet(tmp_path / "none*.json", out)
    with pytest.raises(UsageError, match="nonsense"):
        fleet("nonsense://x/*.json", out)
    assert not out.exists()


# Parts of it.


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank12.json.gz", 12),
        ("/runs/rank_3/trace.json", 3),
        ("/rank1/run_7/rank-0004.json", 4),
        ("trace_12.json.gz", 12),
        ("s3://bucket/7.json", 7),
        ("profile-5.pt.trace.json.gz", 5),
        ("host_2910249.1712195495519.pt.trace.json", None),
        ("Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", None),
        ("trace.json", None),
        ("franklin.json", None),
    ],
)
def test_ranks_in_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def rank_and_source(
    metadata: dict[str, object], url: str, lowest_rank: int
) -> tuple[int, str]:
    (ranks,) = assign_ranks(
        [rank_hints(metadata, url, devices=(0,))], lowest_rank=lowest_rank
    )
    return ranks.first, ranks.source


def test_the_recorded_rank_takes_precedence() -> None:
    info: dict[str, object] = {"distributedInfo": {"rank": 5, "world_size": 8}}
    assert rank_and_source(info, "rank1.json", 9) == (5, "metadata")
    assert rank_and_source({}, "rank1.json", 9) == (1, "name")
    assert rank_and_source({}, "trace.json", 9) == (9, "order")
    assert world_size_of(info) == 8
    for odd in (-1, "5", None, True, 1.5, 10**30, [1]):
        assert rank_and_source({"distributedInfo": {"rank": odd}}, "trace.json", 9) == (
            9,
            "order",
        )
        assert world_size_of({"distributedInfo": {"world_size": odd}}) is None
    assert rank_and_source({"distributedInfo": "x"}, "trace.json", 9) == (9, "order")
    assert missing_ranks([0, 2, 7], 4) == [1, 3]


@pytest.mark.slow
def test_notes_name_ranks_that_are_not_recorded_or_repeated(tmp_path: Path) -> None:
    for name, rank in (
        ("a.json", None),
        ("b_9.json", None),
        ("c.json", 0),
        ("d.json", 0),
    ):
        (tmp_path / name).write_text(rank_trace(rank, world=1))
    notes = fleet(tmp_path, tmp_path / "out").notes
    not_recorded = "1 trace does not record the rank; it is taken"
    assert f"{not_recorded} from the file names." in notes
    assert f"{not_recorded} from their order." in notes
    assert "Several traces have the same rank: 0." in notes


def test_inputs_are_sorted_by_number_and_listed_once(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        (tmp_path / f"rank{number}.json").write_text("{}")
    (tmp_path / "report.json").write_text(
        '{"generator": "tracelens-ext", "version": "1"}'
    )
    found, problems = find_inputs([str(tmp_path), str(tmp_path / "rank2.json")])
    assert [Path(trace.name).name for trace in found] == [
        "rank1.json",
        "rank2.json",
        "rank10.json",
    ]
    assert not problems
    (tmp_path / "rank3.sqlite").write_bytes(b"SQLite format 3\0")
    for name in ("rank3.nsys-rep", "rank4.nsys-rep", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    for folder in (str(tmp_path), tmp_path.as_uri()):
        more, _ = find_inputs([folder])
        names = [
            "rank1.json",
            "rank2.json",
            "rank3.sqlite",
            "rank4.nsys-rep",
            "rank10.json",
        ]
        assert [n for t in more if (n := Path(t.name).name) != "report.json"] == names
        assert more[2].stem.startswith("rank3-")
    assert len({trace.stem for trace in found}) == 3
    with pytest.raises(UsageError, match="is empty"):
        find_inputs([""])


def test_the_identity_of_a_file_is_its_size_and_version() -> None:
    assert identity_in({"size": 5, "ETag": '"x"'}) == {"size": "5", "version": '"x"'}
    assert identity_in({"size": 5, "mtime": 0}) == {"size": "5", "version": "0"}
    assert identity_in({"size": None}) is None


@given(st.lists(st.text(max_size=30), max_size=6, unique=True))
def test_stems_are_plain_and_distinct(urls: list[str]) -> None:
    stems = [FleetInput(url, url).stem for url in urls]
    assert len(set(stems)) == len(urls)
    for stem in stems:
        assert stem.replace("-", "").replace("_", "").isalnum()
        assert stem.isascii()
        assert len(stem) < 100


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_only_this_machine_can_connect_to_local_workers(workers: int) -> None:
    import psutil

    with workers_of(None, workers):
        this_process = psutil.Process()
        addresses = set()
        for process in [this_process] + this_process.children(recursive=True):
            for connection in process.net_connections("tcp"):
                if connection.status == "LISTEN":
                    addresses.add(connection.laddr.ip)
        assert addresses == {"127.0.0.1"}


@pytest.mark.slow
@needs_html
def test_the_page_has_charts_and_links_to_existing_reports(
    ranks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fleet(ranks, out)
    page = (out / "ranks.html").read_text("utf-8")
    assert "Report of rank" not in page
    assert "chart-waits" in page
    spec = json.loads(re.findall(r'id="report-data">(.*?)</script>', page)[0])[
        "figures"
    ]
    keys = ("chart-waits", "chart-bandwidths")
    heat, points = (figure["data"][0] for figure in spec if figure["key"] in keys)
    assert (heat["x"], heat["y"]) == (["1", "2"], [0, 1, 2, 3])
    waits = stored(out, "collective_waits")
    drawn = sum(ms for row in heat["z"] for ms in row)
    assert drawn == pytest.approx(waits["wait_us"].sum() / 1e3)
    assert points["x"] == stored(out, "collective_calls")["bytes"].unique().tolist()

    (out / "rank0_perf_report.html").touch()  # of `report --html out`
    (ranks / "rank2_perf_report.html").touch()
    fleet(ranks, out)
    links = re.findall(
        r'href="(.*?)">Report of rank (\d)', (out / "ranks.html").read_text("utf-8")
    )
    assert links == [
        ("rank0_perf_report.html", "0"),
        ("../ranks/rank2_perf_report.html", "2"),
    ]


def test_many_iterations_share_the_columns_of_the_heat_map() -> None:
    from tracelens_ext.distributed.html_page import heat_map

    waits = pd.DataFrame(
        {"rank": 0, "iteration": [str(at) for at in range(700)], "wait_ms": 1.0}
    )
    (figure,) = heat_map(waits)
    trace: Any = figure.spec["data"][0]
    assert len(trace["x"]) == 300
    assert trace["x"][0] == "0 to 2"
    assert sum(trace["z"][0]) == 700


def devices_trace(devices: int) -> str:
    """A trace of one process that drives several GPUs and does not record its rank."""
    maker = TraceMaker()
    for device in range(devices):
        start = 10 * device
        maker.launched(
            GEMM, start + 20, 300, correlation=2 * device + 1, at=start, device=device
        )
        begin = start + 330
        maker.launched(
            ALL_REDUCE,
            begin,
            90,
            correlation=2 * device + 2,
            at=start + 5,
            device=device,
            stream=9,
        )
    return json.dumps(maker.document())


def test_every_gpu_is_a_rank_if_no_trace_records_its_rank(tmp_path: Path) -> None:
    for name, devices in (("four_devices", 4), ("one", 1), ("two_devices", 2)):
        (tmp_path / f"{name}.json").write_text(devices_trace(devices))
    out = tmp_path / "out"
    result = fleet(tmp_path, out)
    expected = {("four_devices", device): device for device in range(4)}
    expected |= {("one", 0): 4, ("two_devices", 0): 5, ("two_devices", 1): 6}
    ranks = result.tables["ranks"]
    names = [Path(trace).stem for trace in ranks["trace"]]
    of_table = dict(
        zip(zip(names, ranks["device"], strict=True), ranks["rank"], strict=True)
    )
    assert of_table == expected
    for folder in ("timeline", "categories", "collective_kernels"):
        for path in (out / folder).iterdir():
            part = pd.read_parquet(path)
            for trace, device, rank in part[["trace", "device", "rank"]].itertuples(
                index=False
            ):
                assert rank == expected[Path(trace).stem, device], folder
    for name in ("clocks", "collective_waits", "overlap"):
        assert set(pd.read_parquet(out / f"{name}.parquet")["rank"]) == set(range(7)), (
            name
        )
    assert result.tables["traces"]["rank"].tolist() == [0, 4, 5]
    assert set(result.tables["finding_across_ranks"]["max_rank"]) <= {0, 4, 5}
    assert any("are ranks 0 to 3" in note for note in result.notes)
    # The first trace is no longer there: the others' numbers change, and nothing is read again.
    (tmp_path / "four_devices.json").unlink()
    again = fleet(tmp_path, out)
    assert (again.done, again.kept) == (0, 2)
    assert sorted(again.tables["ranks"]["rank"]) == [0, 1, 2]
    assert set(pd.read_parquet(out / "clocks.parquet")["rank"]) == {0, 1, 2}


HINTS = st.one_of(
    st.builds(RankHints, recorded=st.integers(0, 9)),
    st.builds(RankHints, in_name=st.integers(0, 9)),
    st.builds(
        RankHints, separate_devices=st.sets(st.integers(0, 8), min_size=2).map(tuple)
    ),
    st.just(RankHints()),
)


@given(st.lists(HINTS, max_size=9))
def test_assigned_ranks_are_distinct(hints: list[RankHints]) -> None:
    known_ranks = set()
    assigned_ranks = []
    for hints_of_trace, ranks in zip(hints, assign_ranks(hints), strict=True):
        if hints_of_trace.known_rank is not None:
            assert ranks.numbers == [hints_of_trace.known_rank]
            known_ranks.add(hints_of_trace.known_rank)
        else:
            assert sorted(ranks.of_device) == sorted(hints_of_trace.separate_devices)
            assigned_ranks += ranks.numbers
    assert len(set(assigned_ranks)) == len(assigned_ranks)
    assert known_ranks.isdisjoint(assigned_ranks)


def test_a_table_that_fails_is_left_out(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError("no such row")

    monkeypatch.delenv(DEBUG_VARIABLE)
    monkeypatch.setattr("tracelens_ext.distributed.trace_tables.categories", broken)
    monkeypatch.setattr("tracelens_ext.distributed.aggregate.find_root_causes", broken)
    monkeypatch.setattr("tracelens_ext.distributed.reductions._rank_timelines", broken)
    monkeypatch.setattr("tracelens_ext.distributed.html_page._bandwidths", broken)
    result = fleet(ranks, tmp_path / "out")
    problem = "could not be computed: IndexError: no such row; please report this."
    for table in ("categories", "wait_root_causes", "ranks", "bandwidths"):
        message = f"The table {table} {problem}"
        assert any(message in note for note in result.notes), table
    assert "ranks" not in result.tables
    assert len(result.tables["category_across_ranks"]) == 0
    assert len(result.tables["timeline_across_ranks"])
    assert len(result.tables["clocks"]) == 4
    assert result.failed == 0
