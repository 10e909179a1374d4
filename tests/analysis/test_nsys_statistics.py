"""Statistics by class: numbers, layout, the Python interface, and totals of traces."""

from __future__ import annotations

import csv
import io
import re
import warnings
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tests.support.statistics_helpers import (
    CLASSES,
    GPA,
    KERNELS,
    MEMORY,
    RANGES,
    REAL_KERNELS,
    REAL_MEMORY,
    SIZES,
    SPECIFICATION,
    TAG,
    TWO_GPUS,
)
from tracelens_ext import StatisticClassifier, read_trace
from tracelens_ext.analysis.nsys_statistics.configuration import load_configuration
from tracelens_ext.analysis.nsys_statistics.exact_numbers import fixed_point_text
from tracelens_ext.analysis.nsys_statistics.inputs import event_totals
from tracelens_ext.analysis.nsys_statistics.kernel_classes import (
    Classifier,
    collective_of,
)
from tracelens_ext.analysis.nsys_statistics.statistics import ClassStatistics, compute
from tracelens_ext.analysis.nsys_statistics.totals import Total, memory_totals
from tracelens_ext.errors import RuleError, TraceError, TraceFormatError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def rows(text: str) -> list[list[str]]:
    """Return the rows of a CSV text."""
    return list(csv.reader(io.StringIO(text)))


def statistic(iterations: int = 2, **options: Any) -> ClassStatistics:
    """Return the statistics of the small tables; `options` replace arguments."""
    arguments: dict[str, Any] = {
        "nvtxes": rows(RANGES),
        "mems": rows(MEMORY),
        "nvtx_iter_name": "step",
    }
    arguments |= options
    report = StatisticClassifier(CLASSES).statistic(
        iterations, rows(KERNELS), **arguments
    )
    return report.statistics


LAYOUT = """\
===== Run =====
Kernel time per iteration: 4.500 (ms)
Kernel instances per iteration: 10
Kernel total time: 9.000 (ms)
Kernel total instances: 23
Kernel Statistic:
Class            TimePerIter(ms)  InstancePerIter  TimePerIter(%)   TotalTime(ms)    TotalInstance  TotalTime(%)
others                      0.50                1           11.11            1.00                3         11.11
gemm                        3.00                5           66.67            6.00               11         66.67
fusion                      1.00                4           22.22            2.00                9         22.22
softmax                     0.00                0            0.00            0.00                0          0.00

NCCL time per iteration: 1.500 (ms)
NCCL instances per iteration: 2
NCCL total time: 3.000 (ms)
NCCL total instances: 5
NCCL Statistic:
Class            TimePerIter(ms)  InstancePerIter  TotalTime(ms)    TotalInstance
AllGather                   1.50                2           3.00                5

Mem Ops Statistic:
Class                  TimePerIter(ms)  InstancePerIter  TotalTime(ms)    TotalInstance
[CUDA memcpy D2D]                 1.50                5           3.00               10
[CUDA memset]                     1.00                2           2.00                5

NVTX range count: 2
NVTX average range time: 5.000 (ms)
NVTX total range time: 10.000 (ms)

Estimated non-hidden NCCL, mem ops and bubble time per range: 0.500 (ms)
Estimated non-hidden NCCL, mem ops and bubble time per range: 10.00 (%)
Estimated non-hidden NCCL, mem ops and bubble total time: 1.000 (ms)
Estimated non-hidden NCCL, mem ops and bubble total time: 10.00 (%)
"""  # noqa: E501  # is what is tested


def test_the_text_has_the_layout_of_the_original() -> None:
    report = StatisticClassifier(CLASSES).statistic(
        2, rows(KERNELS), rows(RANGES), rows(MEMORY), nvtx_iter_name="step"
    )
    assert report.text("Run") == LAYOUT


def test_without_ranges_and_memory_their_blocks_are_left_out() -> None:
    text = StatisticClassifier(CLASSES).statistic(2, rows(KERNELS)).text("Run")
    assert "NVTX" not in text
    assert "Mem Ops" not in text
    assert text.endswith(
        "\nAllGather                   1.50                2           3.00                5\n"
    )


def test_show_writes_to_standard_output_or_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = StatisticClassifier(CLASSES).statistic(2, rows(KERNELS))
    report.show("Run")
    stream = io.StringIO()
    report.show("Run", file=stream)
    assert capsys.readouterr().out == stream.getvalue() == report.text("Run")


def test_a_notebook_shows_the_tables() -> None:
    report = StatisticClassifier(CLASSES).statistic(2, rows(KERNELS))
    assert len(repr(report)) <= 500
    assert "AllGather" in report._repr_html_()


def test_instances_are_rounded_down_kernel_by_kernel() -> None:
    kernels = [
        ["Name", "Total Time (ns)", "Instances"],
        ["gemm_a", 10, 3],
        ["gemm_b", 10, 3],
    ]
    report = StatisticClassifier({"gemm": "gemm"}).statistic(2, kernels)
    others, gemm = report.statistics.kernels
    assert (others.instances, others.per_iteration) == (0, 0)
    assert (gemm.instances, gemm.per_iteration) == (6, 2)


def test_rows_of_one_kernel_are_added_up() -> None:
    kernels = [["Name", "Total Time (ns)", "Instances"], ["k", 10, 1], ["k", 5, 1]]
    by_size = [  # in the format of `gpukernsum` of 2022
        ["Total Time (ns)", "Instances", "GridXYZ", "BlockXYZ", "Name"],
        [10, 1, "   2   66    1", " 384    1    1", "k"],
        [5, 1, "   1   66    1", " 384    1    1", "k"],
    ]
    for table in (kernels, by_size):
        (others,) = StatisticClassifier({}).statistic(2, table).statistics.kernels
        assert others.time_ns == 15
        assert others.instances == 2
        assert others.per_iteration == 1


def test_a_table_without_kernels_is_refused() -> None:
    titles = ["Name", "Total Time (ns)", "Instances"]
    with pytest.raises(
        TraceFormatError, match="the kernel table: has a header, but no kernels"
    ):
        StatisticClassifier({}).statistic(1, [titles])


def test_numbers_per_iteration_are_also_per_gpu() -> None:
    kernels = [["Name", "Total Time (ns)", "Instances"], ["k", 12_000_000, 12]]
    ranges: list[list[object]] = [
        ["Name", "Projected Start (ns)", "Projected Duration (ns)"]
    ]
    ranges += [["step", number, 4_000_000] for number in range(6)]
    report = StatisticClassifier({}).statistic(
        3, kernels, ranges, num_processes=2, nvtx_iter_name="step"
    )
    assert report.text("").splitlines()[1:4] == [
        "Kernel time per iteration: 2.000 (ms)",
        "Kernel instances per iteration: 2",
        "Kernel total time: 12.000 (ms)",
    ]
    assert report.statistics.not_hidden_ns == 2_000_000
    assert report.statistics.not_hidden_total_ns == 12_000_000


def test_a_number_of_ranges_that_differs_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="2 NVTX ranges 'step', not 3"):
        statistic(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert statistic(2).warnings == ()


def test_ranges_shorter_than_the_kernels_are_a_warning() -> None:
    short = RANGES.replace("5000001", "1").replace("5000000", "1")
    with pytest.warns(UserWarning, match="shorter than the kernels"):
        statistics = statistic(nvtxes=rows(short))
    assert statistics.not_hidden_ns < 0


def test_the_tag_must_match_exactly_and_the_error_names_similar_ones() -> None:
    more = RANGES + "".join(f"name {n},1,1,1,PushPop,1,1,1\n" for n in range(9))
    with pytest.raises(
        UsageError, match="there is no NVTX range called 'Step'"
    ) as caught:
        statistic(nvtxes=rows(more), nvtx_iter_name="Step")
    _, _, suggestions = str(caught.value).partition("closest names: ")
    suggested_names = re.findall("'(.*?)'", suggestions)
    assert len(suggested_names) == 5
    assert suggested_names[0] == "step"
    only_header = rows(RANGES)[:1]
    with pytest.raises(UsageError, match="there are no ranges that started GPU work"):
        statistic(nvtxes=only_header)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"iterations": 0}, "iter_times is 0; give an integer from 1"),
        ({"iterations": True}, "iter_times is True"),
        ({"num_processes": 1.5}, "num_processes is 1.5"),
        ({"nvtx_iter_name": None}, "needs nvtx_iter_name"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        statistic(**arguments)


# Classes.


def test_the_first_key_of_the_map_wins_and_case_does_not_matter() -> None:
    classes = Classifier({"SOFT": "A", "gemm": "B", "Max_": "a"})
    assert classes.classes == ("a", "b")
    names = ["softmax_gemm", "x_GEMM_soft", "max_gemm", "ncclDevKernel_gemm", "rest"]
    assert classes.classify(names) == ["a", "a", "b", "nccl", "others"]


def test_the_map_of_the_specification_is_accepted() -> None:
    classes = Classifier(
        {
            "gemm_e4m3": "FP8_Gemm",
            "xmma_gemm_f32f32": "Other_Gemm",
            "ln_": "LayerNorm",
            "softmax": "softmax",
            "cast_transpose": "cast_transpose",
            "transpose_optimized_kernel": "cast_transpose",
            "transpose_kernel": "cast_transpose",
            "_fmha_": "fmha",
            "reduce": "reduce",
        }
    )
    assert classes.classes == (
        "fp8_gemm",
        "other_gemm",
        "layernorm",
        "softmax",
        "cast_transpose",
        "fmha",
        "reduce",
    )


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        (
            {"elemwise": "e", "ForRangeElemwise": "e"},
            ("'elemwise'", "'forrangeelemwise'"),
        ),
        ({"gemm": "Others"}, ("'gemm'", "'Others'")),
        ({"gemm": 5}, ("'gemm'",)),
        ({"": "x"}, ("expected a part of a kernel name",)),
    ],
)
def test_ambiguous_or_reserved_classes_are_refused(
    mapping: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(RuleError) as caught:
        StatisticClassifier(mapping)
    assert all(word in str(caught.value) for word in words), caught.value


def test_without_a_map_the_built_in_categories_are_the_classes() -> None:
    kernels = [
        Total(
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas", 30, 1
        ),
        Total("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 20, 1),
        Total("zzz_unheard_of", 10, 1),
    ]
    statistics = compute(Classifier(None), kernels, iterations=1, gpus=1)
    time_of_class = {line.name: line.time_ns for line in statistics.kernels}
    assert time_of_class == {"others": 10, "gemm": 30}
    assert [line.name for line in statistics.nccl] == ["AllReduce"]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
            "AllGather",
        ),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm *)",
            "ReduceScatter",
        ),
        ("void ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "AllReduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "SendRecv"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "SendRecv"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "AllReduce"),
        ("ncclBroadcastRingKernel_copy_i8(ncclColl)", "Broadcast"),
        ("ncclReduceScatterTreeLL128Kernel_sum_f16(ncclColl)", "ReduceScatter"),
        ("ncclSendRecvKernel_copy_i8(ncclColl)", "SendRecv"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST(ncclSymkDevWorkArgs)", "AllReduce"),
        ("ncclDevKernel_Generic(ncclDevComm*)", "Generic"),
        ("void my::nccl_like(int)", "nccl_like"),
    ],
)
def test_collectives_are_recognized_in_names_of_all_versions_of_nccl(
    name: str, collective: str
) -> None:
    assert collective_of(name) == collective


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[CUDA memcpy Device-to-Device]", "[CUDA memcpy D2D]"),
        ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy H2D]"),
        ("[CUDA memcpy Device-to-Host]", "[CUDA memcpy D2H]"),
        ("[CUDA memcpy Peer-to-Peer]", "[CUDA memcpy Peer-to-Peer]"),
        ("[CUDA memcpy DtoD]", "[CUDA memcpy DtoD]"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
    ],
)
def test_directions_of_copies_are_shortened_and_other_names_stay(
    name: str, shown: str
) -> None:
    statistics = compute(
        Classifier({}), [], [Total(name, 100, 1)], iterations=1, gpus=1
    )
    assert statistics.memory is not None
    assert [line.name for line in statistics.memory] == [shown]


def test_collectives_and_operations_stay_in_the_order_of_their_table() -> None:
    kernels = [Total("ncclDevKernel_B_x", 1, 1), Total("ncclDevKernel_A_x", 9, 1)]
    memory = [Total("[CUDA memset]", 1, 1), Total("[CUDA memcpy Host-to-Device]", 9, 1)]
    statistics = compute(Classifier({}), kernels, memory, iterations=1, gpus=1)
    assert [line.name for line in statistics.nccl] == ["B", "A"]
    assert statistics.memory is not None
    operations = [line.name for line in statistics.memory]
    assert operations == ["[CUDA memset]", "[CUDA memcpy H2D]"]


@pytest.mark.parametrize(("tag", "in_table"), [("step", ":step"), (":step", "step")])
def test_a_colon_before_a_tag_is_the_default_domain(tag: str, in_table: str) -> None:
    ranges = rows(RANGES.replace("step", in_table))
    statistics = statistic(nvtxes=ranges, nvtx_iter_name=tag)
    assert statistics.ranges is not None
    assert statistics.ranges.count == 2


def test_missing_rows_are_a_warning(tmp_path: Path) -> None:
    without = KERNELS.replace("20.0,2000000,9,1.0,1.0,1,1,0.0,loop_FUSION_2\n", "")
    with pytest.warns(
        UserWarning, match="kernel table: its rows cover 83 % of the time"
    ):
        StatisticClassifier(CLASSES).statistic(2, rows(without))
    path = tmp_path / "k.csv"
    path.write_text(KERNELS[:-5])
    with pytest.warns(UserWarning, match=r"k\.csv: its last line is incomplete"):
        StatisticClassifier(CLASSES).statistic(2, path)


# The names that scripts for GPU Performance Analyser use.


def test_arguments_and_attributes_of_the_original() -> None:
    classifier = StatisticClassifier(name_to_class_map=CLASSES)
    assert classifier.name_to_class_map["xmma_gemm"] == "gemm"
    report = classifier.statistic(
        iter_times=2,
        kernels=rows(KERNELS),
        nvtxes=rows(RANGES),
        mems=rows(MEMORY),
        num_processes=1,
        with_header=True,
        kernel_name_idx=8,
        nvtx_iter_name="step",
    )
    assert report.kernel_total_time_per_iter == 4.5
    assert report.kernel_total_instancess_per_iter == 10
    assert (report.kernel_total_time, report.kernel_total_instances) == (9.0, 23)
    assert report.kernel_statistic_table["gemm"] == [3.0, 5, 6.0, 11]
    assert report.nccl_total_time == 3.000001
    assert (report.nccl_total_kernels_per_iter, report.nccl_total_kernels) == (2, 5)
    assert list(report.nccl_statistic_table) == ["AllGather"]
    assert report.mem_statistic_table is not None
    assert report.mem_statistic_table["[CUDA memset]"] == [1.0, 2, 2.0, 5]
    assert (report.nvtx_range_count, report.nvtx_total_range_time) == (2, 10.000001)
    two = StatisticClassifier(CLASSES).statistic(1, rows(KERNELS), None, None, 2)
    assert two.kernel_total_time_per_iter == 4.5, "the fifth argument is num_processes"


def test_show_without_a_title_has_no_heading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    StatisticClassifier(CLASSES).statistic(2, rows(KERNELS)).show()
    assert capsys.readouterr().out.startswith("Kernel time per iteration: 4.500 (ms)\n")


def test_tables_without_a_header_are_read_by_places(tmp_path: Path) -> None:
    kernels = [[row[8], row[1], row[2]] for row in rows(KERNELS)[1:]]
    path = tmp_path / "mem.csv"
    path.write_text(MEMORY.partition("\n")[2])
    report = StatisticClassifier(CLASSES).statistic(
        *(2, kernels, rows(RANGES)[1:], path),
        with_header=False,
        kernel_name_idx=0,
        nvtx_iter_name="step",
    )
    assert report.text("Run") == LAYOUT
    slow = StatisticClassifier({}).statistic(
        1,
        pd.DataFrame(kernels),
        with_header=False,
        time_scale_to_ms=1e-3,
        kernel_name_idx=0,
    )
    assert slow.kernel_total_time == 9000.0
    with pytest.raises(UsageError, match="time_scale_to_ms is 7"):
        StatisticClassifier({}).statistic(
            1, kernels, with_header=False, time_scale_to_ms=7
        )


def test_rows_without_a_header_may_be_mappings() -> None:
    kernels = [dict(enumerate(row)) for row in rows(KERNELS)[1:]]
    from_mappings = StatisticClassifier(CLASSES).statistic(
        2, kernels, with_header=False
    )
    from_table = StatisticClassifier(CLASSES).statistic(2, rows(KERNELS))
    assert from_mappings.text() == from_table.text()


def test_a_file_without_a_header_that_cannot_be_read_is_a_trace_error(
    tmp_path: Path,
) -> None:
    classifier = StatisticClassifier(CLASSES)
    missing = tmp_path / "missing.csv"
    with pytest.raises(TraceError, match=r"missing\.csv"):
        classifier.statistic(2, missing, with_header=False)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\x00\x01\xff\x00")
    with pytest.raises(TraceError, match=r"binary\.csv"):
        classifier.statistic(2, binary, with_header=False)


def test_sizes_go_with_memory_operations() -> None:
    totals = memory_totals(rows(MEMORY), rows(SIZES))
    size_of_operation = {total.name: total.size_bytes for total in totals}
    assert size_of_operation == {
        "[CUDA memcpy Device-to-Device]": 402_653_000,
        "[CUDA memset]": None,
    }


# Exactness.

TOTALS = st.lists(
    st.builds(
        Total,
        st.sampled_from(["a_x", "b_x", "c", "nccl_d"]),
        st.integers(0, 10**15),
        st.integers(0, 10**6),
    ),
    max_size=12,
)


@given(TOTALS, st.integers(1, 50), st.integers(1, 16))
def test_nothing_is_lost_or_counted_twice(
    totals: list[Total], iterations: int, gpus: int
) -> None:
    statistics = compute(
        Classifier({"a": "one", "b": "two"}), totals, iterations=iterations, gpus=gpus
    )
    assert [line.name for line in statistics.kernels] == ["others", "one", "two"]
    lines = [*statistics.kernels, *statistics.nccl]
    time_ns = sum(total.time_ns for total in totals)
    instances = sum(total.instances for total in totals)
    assert sum(line.time_ns for line in lines) == time_ns
    assert sum(line.instances for line in lines) == instances
    for line in lines:
        assert line.per_iteration * iterations * gpus <= line.instances


@given(st.fractions(-(10**9), 10**9), st.integers(1, 4))
def test_numbers_are_rounded_exactly(value: Fraction, decimals: int) -> None:
    text = fixed_point_text(value, decimals)
    _, _, shown_decimals = text.partition(".")
    assert len(shown_decimals) == decimals
    half_of_last_decimal = Fraction(1, 2 * 10**decimals)
    assert abs(Fraction(text) - value) <= half_of_last_decimal


def test_control_characters_in_names_are_escaped_in_the_text() -> None:
    kernels = [["Name", "Total Time (ns)", "Instances"], ["nccl\x1b[2J\nx", 10, 3]]
    text = StatisticClassifier({}).statistic(1, kernels).text("a\x1b[2J")
    assert "\x1b" not in text
    assert "nccl\\x1b[2J\\nx" in text


def test_the_report_has_tables_as_data_frames() -> None:
    report = StatisticClassifier(CLASSES).statistic(
        2, pd.read_csv(io.StringIO(KERNELS)), mems=rows(MEMORY)
    )
    tables = report.tables("Run")
    assert list(tables) == [
        "inputs",
        "kernel_classes",
        "nccl",
        "memory_operations",
        "kernels",
    ]
    assert tables["kernel_classes"]["total_time_ms"].tolist() == [1.0, 6.0, 2.0, 0.0]
    assert tables["kernel_classes"]["count_per_iteration"].tolist() == [1, 5, 4, 0]
    assert tables["inputs"]["kernel_time_per_iteration_ms"].tolist() == [4.5]
    assert tables["kernels"]["class"].tolist() == ["gemm", "nccl", "fusion", "others"]


# Totals of traces.


def test_totals_of_events_are_those_of_their_tables() -> None:
    maker = TraceMaker()
    for step in range(2):
        start = step * 1000
        correlation = 10 * step
        maker.annotation("step", start, 500)
        maker.launched(
            "x_gemm", start + 100, 40, correlation=correlation + 1, at=start + 10
        )
        maker.launched(
            "ncclDevKernel_AllReduce_x",
            start + 150,
            20,
            correlation=correlation + 2,
            at=start + 20,
        )
        maker.launched(
            "[CUDA memset]",
            start + 180,
            10,
            correlation=correlation + 3,
            at=start + 30,
            category="gpu_memset",
        )
    totals = event_totals(read_trace(maker.document()), tag="step")
    assert totals.kernels == [
        Total("x_gemm", 80_000, 2),
        Total("ncclDevKernel_AllReduce_x", 40_000, 2),
    ]
    assert totals.memory == [Total("[CUDA memset]", 20_000, 2)]
    assert totals.ranges is not None
    assert (totals.ranges.time_ns, totals.ranges.count) == (180_000, 2)
    assert totals.gpus == 1


def test_tags_without_ranges_or_without_gpu_work_are_refused() -> None:
    maker = TraceMaker()
    maker.annotation("idle", 0, 10)
    maker.annotation("step", 20, 10)
    maker.launched("k", 100, 10, correlation=1, at=25)
    trace = read_trace(maker.document())
    with pytest.raises(
        UsageError,
        match="there is no NVTX range called 'stop'; the closest names: 'step'",
    ):
        event_totals(trace, tag="stop")
    for tag in ("idle", ":idle"):
        with pytest.raises(
            UsageError, match=f"'{tag}' started no GPU work on their threads"
        ):
            event_totals(trace, tag=tag)
    ranges = event_totals(trace, tag=":step").ranges
    assert ranges is not None
    assert (ranges.count, ranges.time_ns) == (1, 10_000)


@pytest.mark.real_data
def test_totals_of_a_real_export() -> None:
    trace = read_trace(TWO_GPUS, cache=False)
    totals = event_totals(trace, tag="ncclGroupEnd")
    assert sum(total.instances for total in totals.kernels) == 4010
    assert sum(total.instances for total in totals.memory or ()) == 1020 + 269
    assert totals.gpus == 2
    assert totals.ranges is not None
    assert (totals.ranges.count, totals.ranges.time_ns) == (64, 25_179_513)
    with pytest.raises(
        UsageError, match="'ncclSend' started no GPU work on their threads"
    ):
        event_totals(trace, tag="ncclSend")  # in a domain


# The specification's example.


def _specified() -> str:
    """Return the first output that the specification shows."""
    text = SPECIFICATION.read_text(encoding="utf-8")
    start = text.index("===== Llama2-70B-From-CSV")
    return text[start : text.index("\n\n\n=====", start)] + "\n"


@pytest.mark.real_data
def test_the_text_is_that_of_the_specification_to_the_byte() -> None:
    ranges: list[list[object]] = [
        ["Name", "Projected Start (ns)", "Projected Duration (ns)"]
    ]
    # Each range has the average duration that the specification shows.
    ranges += [[TAG, 10**10 * n, 8_578_016_800] for n in range(5)]
    ranges.append([TAG + "x", 1, 1])
    class_map = load_configuration(GPA / "config.json").class_map
    assert class_map is not None
    report = StatisticClassifier(class_map).statistic(
        5, REAL_KERNELS, ranges, REAL_MEMORY, num_processes=1, nvtx_iter_name=TAG
    )
    assert report.text("Llama2-70B-From-CSV") == _specified()
    assert "per range: 630.845 (ms)" in _specified()
    assert "per range: 7.35 (%)" in _specified()


@pytest.mark.real_data
def test_the_tables_have_the_numbers_of_the_specification() -> None:
    class_map = load_configuration(GPA / "config.json").class_map
    assert class_map is not None
    report = StatisticClassifier(class_map).statistic(
        5, REAL_KERNELS, None, REAL_MEMORY
    )
    tables = report.tables()
    summary = tables["inputs"].iloc[0]
    assert round(summary["kernel_time_per_iteration_ms"], 3) == 7947.172
    assert summary["kernel_count_per_iteration"] == 7877
    assert round(summary["nccl_time_per_iteration_ms"], 3) == 3275.659
    assert summary["nccl_count_per_iteration"] == 244

    def rounded(table: str, name: str, *more: str) -> list[tuple[object, ...]]:
        """Return name, time and count per iteration, and more columns of each row."""
        columns = [name, "time_per_iteration_ms", "count_per_iteration", *more]
        return list(tables[table][columns].round(2).itertuples(index=False, name=None))

    assert rounded("kernel_classes", "class", "% of kernel time") == [
        ("others", 79.53, 1518, 1.0),
        ("gemm", 6830.11, 1363, 85.94),
        ("fmha", 555.79, 480, 6.99),
        ("fusion", 481.73, 4516, 6.06),
    ]
    assert rounded("nccl", "collective") == [
        ("AllGather", 2343.77, 161),
        ("ReduceScatter", 924.66, 79),
        ("AllReduce", 7.23, 4),
    ]
    assert rounded("memory_operations", "operation") == [
        ("[CUDA memcpy D2D]", 30.66, 181),
        ("[CUDA memset]", 8.57, 1527),
        ("[CUDA memcpy H2D]", 0.01, 3),
    ]


def test_a_table_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_text(KERNELS)
    classifier = StatisticClassifier(CLASSES)
    of_path = classifier.statistic(2, tmp_path / "k.csv")
    of_rows = classifier.statistic(2, rows(KERNELS))
    assert of_path.statistics == of_rows.statistics


def test_sizes_add_up_beyond_64_bits() -> None:
    maker = TraceMaker()
    for at in range(3):
        maker.gpu("gpu_memcpy", "Memcpy HtoD", 10 * at, 5, args={"bytes": 2**62})
    (total,) = event_totals(read_trace(maker.document())).memory or []
    assert total.size_bytes == 3 * 2**62
