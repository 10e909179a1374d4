"""Recordings of rocprofv3 agree with reference tables, and published schemas of rocpd are read."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.rocprof_maker import RunMaker, read, training
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.intervals import union_length

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

pytestmark = pytest.mark.real_data

SHARED = Path(__file__).resolve().parents[3] / "shared" / "rocm"
CSV = SHARED / "csv" / "prefill_kernel_trace.csv"
JSON = SHARED / "json" / "908_first5000_results.json.gz"
V3 = "schema-3.0.0.sql"
V4 = "schema-4.1.0.sql"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_name(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Return name → count, and total, shortest and longest duration in ns."""
    found: dict[str, list[int]] = {}
    for row in trace.gpu_rows.tolist():
        found.setdefault(trace.name_of(row), []).append(int(trace.dur[row]))
    return {name: (len(t), sum(t), min(t), max(t)) for name, t in found.items()}


@pytest.mark.parametrize("path", [CSV, JSON], ids=["CSV", "JSON"])
def test_sums_by_name_equal_the_reference(path: Path) -> None:
    columns = ("count", "total_ns", "min_ns", "max_ns")
    expected = {
        row["kernel_name"]: tuple(int(row[column]) for column in columns)
        for row in rows(path.with_name("reference_kernels.csv"))
    }
    assert by_name(read(path)) == expected


def test_blocks_of_each_dispatch_equal_the_grid() -> None:
    """A grid is in work items; a loop over the files finds the same number of blocks."""

    def blocks(sizes: list[tuple[int, int]]) -> int:
        return math.prod(-(-items // block) for items, block in sizes)

    axes = [(f"Grid_Size_{axis}", f"Workgroup_Size_{axis}") for axis in "XYZ"]
    dispatches = [[(int(row[g]), int(row[w])) for g, w in axes] for row in rows(CSV)]
    assert read(CSV).arg("grid").values.sum() == sum(map(blocks, dispatches))
    document = json.loads(gzip.decompress(JSON.read_bytes()))
    (process,) = document["rocprofiler-sdk-tool"]
    records = process["buffer_records"]["kernel_dispatch"]
    infos = [record["dispatch_info"] for record in records]
    sizes = [
        [(i["grid_size"][a], i["workgroup_size"][a]) for a in "xyz"] for i in infos
    ]
    assert read(JSON).arg("grid").values.sum() == sum(map(blocks, sizes))


def test_a_kernel_of_few_blocks_is_a_finding() -> None:
    """Four of 256 units have work during the longest kernel."""
    document = json.loads(gzip.decompress(JSON.read_bytes()))
    (process,) = document["rocprofiler-sdk-tool"]
    records = process["buffer_records"]["kernel_dispatch"]
    first = min(record["start_timestamp"] for record in records)
    sizes = {
        "grid_size": {"x": 1024, "y": 1, "z": 1},
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
    }
    times = {"start_timestamp": first - 3_000_000_000, "end_timestamp": first - 1_000}
    info = records[0]["dispatch_info"] | sizes
    records.append(records[0] | times | {"dispatch_info": info})
    found = {each.id: each for each in TreePerfAnalyzer(document).findings().findings}
    assert found["launch-geometry"].attributed_ms == pytest.approx(
        3_000 * (1 - 4 / 256), rel=1e-3
    )


def test_launches_of_csv_are_linked() -> None:
    trace = read(CSV)
    tree = CallTree(trace)
    started = np.bincount(tree.launch_of_gpu[tree.linked], minlength=len(trace))
    found = {
        int(trace.correlation[row]): (trace.name_of(row), int(started[row]))
        for row in np.flatnonzero(trace.dur * 0 + np.isin(trace.kind, [3])).tolist()
    }
    expected = {
        int(row["correlation_id"]): (row["function"], int(row["kernels"]))
        for row in rows(CSV.with_name("reference_launches.csv"))
        if row["function"]
    }
    assert found == expected
    assert int((~tree.linked).sum()) == 4
    gpu = trace.gpu_rows
    assert int(trace.end_of(gpu).max() - trace.ts[gpu].min()) == 69_879_339


def test_queues_of_json_are_read() -> None:
    trace = read(JSON)
    gpu = trace.gpu_rows
    found = {}
    for queue in np.unique(trace.stream).tolist():
        its = gpu[trace.stream == queue]
        busy = union_length(trace.ts[its], trace.end_of(its))
        found[queue] = (len(its), int(trace.dur[its].sum()), busy)
    expected = {
        int(row["queue_handle"]): tuple(
            int(row[c]) for c in ("kernels", "total_ns", "busy_ns")
        )
        for row in rows(JSON.with_name("reference_queues.csv"))
    }
    assert found == expected
    assert union_length(trace.ts[gpu], trace.end_of(gpu)) == 2_276_711_625
    assert {device.units for device in trace.devices} == {256}


@pytest.mark.parametrize("path", [CSV, JSON], ids=["CSV", "JSON"])
def test_commands_accept_recorded_files(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["report", str(path), "--format", "json", "-o", str(tmp_path / "r.json")])
        == 0
    )
    report: dict[str, Any] = json.loads(
        (tmp_path / "r.json").read_text(encoding="utf-8")
    )
    assert "shapes were recorded" in report["facts"]["Sheets left out"]
    capsys.readouterr()
    assert run(["kernels", str(path), "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {"kernel_statistics", "kernel_full_names"} <= tables.keys()
    assert sum(row["count"] for row in tables["kernel_statistics"]) == len(
        read(path).gpu_rows
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("hip_trace", 17),
        ("marker_api_trace", 5),
        ("memory_copy_trace", 4),
        ("rccl_trace", 21),
        ("rocpd-to-csv", 13),
    ],
)
def test_published_examples_of_tables_are_read(name: str, count: int) -> None:
    assert len(read(SHARED / "csv" / "examples" / f"{name}.csv")) == count


def schema(*names: str) -> str:
    return "\n".join(
        (SHARED / "rocpd" / name).read_text(encoding="utf-8") for name in names
    )


@pytest.mark.parametrize(
    "names",
    [(V3,), (V3, "schema-3.0.3-from-3.0.0.sql"), (V4,)],
    ids=["3.0.0", "3.0.3", "4.1.0"],
)
def test_published_schemas_are_read(names: tuple[str, ...], tmp_path: Path) -> None:
    """All versions give the same tables; a second process has tables with another guid."""
    plain = training().write_rocpd(tmp_path / "plain.db")
    real = training().write_rocpd(tmp_path / "real.db", schema=schema(*names))
    ours, theirs = (TreePerfAnalyzer(path).get_df_kernels() for path in (plain, real))
    assert ours.equals(theirs)
    assert len(CallTree(read(real)).rows) == len(CallTree(read(plain)).rows)
    second = RunMaker(pid=77, guid="0000bbbb-0000-7000-8000-000000000002")
    second.launched("other", 1_500_000, 10, at=1_499_000, correlation=1)
    both = read(
        training().write_rocpd(tmp_path / "both.db", second, schema=schema(*names))
    )
    assert len(both.gpu_rows) == 13
    assert CallTree(both).linked.all()
    assert "(schema " in both.provenance.format
