"""`launch-geometry` reads grids of Kineto and Nsight Systems."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.make_trace import TraceMaker
from tests.support.nsys_export_maker import TABLES, ExportMaker
from tests.support.nsys_export_maker import read as read_export
from tracelens_ext import TreePerfAnalyzer

H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 100, "warpSize": 32}]


def launched(grid: Any, devices: Any = H100, **args: Any) -> Any:
    maker = TraceMaker()
    maker.gpu("kernel", "mine(int)", 10, 1000, args={"grid": grid, **args})
    document = maker.document(deviceProperties=devices) if devices else maker.document()
    return TreePerfAnalyzer(document).findings()


@pytest.mark.parametrize(
    ("grid", "shared", "share"),
    [
        ([1, 1, 1], 0, 0.99),
        ([5, 2, 4], 0, 0.6),
        ([60, 1, 1], 0, 0.0),
        ([120, 1, 1], 0, 0.0),  # two of them may share a multiprocessor …
        ([120, 1, 1], 160_000, 0.4),  # … which has no room for two of these
        ([220, 1, 1], 160_000, 0.0),
        (["a", None], 0, 0.0),
        ([1e400, 1, 1], 0, 0.0),
        (7, 0, 0.0),
        ([2**62, 2**62, 1], 0, 0.0),
    ],
)
def test_blocks_for_multiprocessors_of_the_file(
    grid: Any, shared: int, share: float
) -> None:
    found = launched(grid, **{"shared memory": shared}).findings
    claims = {each.id: each.attributed_ms for each in found if not each.informs_only}
    assert claims == ({"launch-geometry": pytest.approx(share)} if share else {})


def test_an_unknown_gpu_has_no_geometry_finding() -> None:
    found = launched([1, 1, 1], devices=None)
    assert not any(each.id == "launch-geometry" for each in found.findings)


def test_grids_of_nsight_systems() -> None:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    grid = "gridX INTEGER, gridY INTEGER, gridZ INTEGER"
    maker = ExportMaker(f"CREATE TABLE {table} ({TABLES[table]}, {grid})")
    maker.kernel("mine", 100, 1_000_000, gridX=3, gridY=2, gridZ=1)
    trace = TreePerfAnalyzer(read_export(maker)).gpu_events.trace
    assert trace.arg("grid").at(trace.gpu_rows).tolist() == [6]
