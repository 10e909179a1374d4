"""`cuda_gpu_trace` tables are read as traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.make_trace import rows_read
from tests.support.statistics_helpers import GPU_TRACE, KERNELS
from tracelens_ext import TreePerfAnalyzer, read_trace
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.nsys.csv_trace import read
from tracelens_ext.trace import NONE, Device, EventKind

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run_cuda_gpu_trace.csv"
    path.write_text(GPU_TRACE, encoding="utf-8")
    return path


def test_every_row_is_a_gpu_event(path: Path) -> None:
    trace = read_trace(path)
    rows = rows_read(trace)
    assert [(row["ts"], row["dur"], row["name"]) for row in rows] == [
        (100, 30, "void gemm<int, float>(int)"),
        (150, 10, "[CUDA memcpy Host-to-Device]"),
        (170, 5, "[CUDA memset]"),
    ]
    assert [row["kind"] for row in rows] == [
        EventKind.KERNEL,
        EventKind.MEMCPY,
        EventKind.MEMSET,
    ]
    assert [row["correlation"] for row in rows] == [11, 12, 13]
    assert trace.device.tolist() == [1, 1, 0]
    assert trace.stream.tolist() == [7, 13, 7]
    assert trace.devices == tuple(Device(n, "NVIDIA A100-SXM4-80GB") for n in (0, 1))
    assert trace.provenance.path == str(path)
    assert trace.provenance.present == 3
    assert trace.provenance.bytes_read == len(GPU_TRACE)


def test_copies_have_their_kinds_of_memory(path: Path) -> None:
    lines = GPU_TRACE.splitlines()
    lines = [lines[0] + ",SrcMemKd,DstMemKd", *(line + ",," for line in lines[1:])]
    lines[2] = lines[2][:-2] + ",Pageable,Device"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = np.arange(3)
    trace = read_trace(path)
    assert trace.args["srcKind"].at(rows).tolist() == [NONE, 0, NONE]
    assert trace.args["dstKind"].at(rows).tolist() == [NONE, 2, NONE]


def test_a_table_can_be_analyzed(path: Path) -> None:
    table = TreePerfAnalyzer(path).get_df_kernel_summary()
    assert table["count"].sum() == 3


def test_rows_without_times_are_dropped_and_counted(path: Path) -> None:
    path.write_text(
        GPU_TRACE.replace("150,10", ",10").replace("170,5", "170,"), encoding="utf-8"
    )
    trace = read_trace(path)
    assert len(trace) == 1
    assert trace.provenance.present == 3
    assert sum(trace.provenance.dropped.values()) == 2


def test_devices_without_numbers_are_numbered_and_bad_ids_ignored(path: Path) -> None:
    text = GPU_TRACE.replace(" (1)", "").replace(" (0)", " B").replace(",12,", ",-4,")
    path.write_text(text, encoding="utf-8")
    trace = read(path)
    assert trace.device.tolist() == [0, 0, 1]
    assert trace.correlation.tolist() == [11, NONE, 13]


def test_the_required_columns_suffice() -> None:
    trace = read(
        [["Name", "Start (us)", "Duration (ms)", "CorrId"], ["k", "1.5", "2", 3]]
    )
    (row,) = rows_read(trace)
    assert (row["ts"], row["dur"], row["name"]) == (1500, 2_000_000, "k")


def test_tables_of_totals_and_empty_tables_are_refused(path: Path) -> None:
    path.write_text(GPU_TRACE.splitlines()[0], encoding="utf-8")
    with pytest.raises(TraceFormatError, match="contains no events"):
        read_trace(path)
    path.write_text(KERNELS, encoding="utf-8")
    with pytest.raises(
        TraceFormatError, match="contains the report cuda_gpu_kern_sum instead of"
    ):
        read_trace(path)
