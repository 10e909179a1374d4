"""Tables of `nsys stats` are recognized by their titles, and give exact numbers or clear errors."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.statistics_helpers import (
    GPU_TRACE,
    KERNELS,
    MEMORY,
    RANGES,
    REAL_KERNELS,
    SIZES,
)
from tracelens_ext.errors import TraceFormatError, TracelensError, TraceNotFoundError
from tracelens_ext.readers.csv_rows import nanoseconds, sizes, whole
from tracelens_ext.readers.nsys.csv_tables import (
    NsysCsvReport,
    TableSource,
    open_report,
    report_in,
    report_of,
)
from tracelens_ext.readers.source import ByteSource

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {
    NsysCsvReport.KERNELS: KERNELS,
    NsysCsvReport.MEMORY_TIME: MEMORY,
    NsysCsvReport.MEMORY_SIZE: SIZES,
    NsysCsvReport.RANGES: RANGES,
    NsysCsvReport.GPU_TRACE: GPU_TRACE,
}


def kernels(source: TableSource) -> list[tuple[str, int | None, int | None]]:
    rows: list[tuple[str, int | None, int | None]] = []
    for piece in open_report(source, NsysCsvReport.KERNELS).batches:
        columns = (
            piece.texts("name"),
            piece.nanoseconds("totaltime"),
            piece.whole("instances"),
        )
        rows += zip(*columns, strict=True)
    return rows


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


EXPECTED = [
    ('void xmma_gemm<int, float>(int, "a")', 6_000_000, 11),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevComm *, unsigned long)", 3_000_001, 5),
    ("loop_FUSION_2", 2_000_000, 9),
    ("memset_kernel", 1_000_000, 3),
]


@pytest.mark.parametrize("report", TEXTS)
def test_every_report_is_recognized_by_its_titles(report: NsysCsvReport) -> None:
    assert report_in(TEXTS[report].encode()) == report
    titles = next(csv.reader(io.StringIO(TEXTS[report])))
    assert report_of(titles[::-1]) == report


@pytest.mark.parametrize(
    ("titles", "report"),
    [
        (
            "Time(%),Total Time,Instances,Average,Minimum,Maximum,Name",
            NsysCsvReport.KERNELS,
        ),
        (
            "Time(%),Total Time (ns),Operations,Average,Operation",
            NsysCsvReport.MEMORY_TIME,
        ),
        (
            "Total,Operations,Average,Minimum,Maximum,Operation",
            NsysCsvReport.MEMORY_SIZE,
        ),
        (
            "Start(sec),Duration(nsec),CorrId,Device,Context,Stream,Name",
            NsysCsvReport.GPU_TRACE,
        ),
        (
            "Time (%),Total Time (ns),Num Calls,Avg (ns),Name",
            "cuda_api_sum or osrt_sum",
        ),
        (
            "Time (%),Total Time (ns),Instances,Style,Range",
            "nvtx_sum or nvtx_pushpop_sum",
        ),
        ("Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid", "cuda_api_trace"),
        (
            "Time (%),Total Time (ns),Instances,Avg (ns),GridXYZ,BlockXYZ,Name",
            NsysCsvReport.KERNELS,
        ),
        (
            "NVTX Range,Style,PID,NVTX Inst,Kern Inst,Total Time (ns),Kernel Name",
            "nvtx_kern_sum",
        ),
        ("Range,Style,Total Proj Time (ns),Range Instances", "nvtx_gpu_proj_sum"),
        ("a,b,c", None),
        ("", None),
    ],
)
def test_titles_of_older_versions_and_of_other_reports(
    titles: str, report: str | None
) -> None:
    assert report_of(titles.split(",")) == report


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    rows = [row[::-1] for row in csv.reader(io.StringIO(KERNELS))]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    assert kernels(written(tmp_path, text.getvalue())) == EXPECTED


MESSAGES = (
    'NOTICE: Existing SQLite export found: a"b.sqlite\n'
    "Processing [x.sqlite] with [r.py]...\n\n"
)


@pytest.mark.parametrize(
    "text",
    [
        KERNELS,
        KERNELS.replace("\n", "\r\n"),
        KERNELS.rstrip("\n"),
        "\n\n" + KERNELS + "\n\n",
        MESSAGES + KERNELS,
        MESSAGES + KERNELS + "\nProcessing [x.sqlite] with [other.py]...\n" + MEMORY,
        MESSAGES
        + MEMORY
        + "\n ** Kernels (cuda_gpu_kern_sum):\n\n"
        + KERNELS
        + "\n"
        + MEMORY,
        KERNELS.replace("\nTime", "\n\nTime").replace("\n20.0", "\n\n20.0"),
        KERNELS.encode("utf-8-sig"),
        KERNELS.encode("utf-16"),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_text_around_the_table_is_ignored(text: str | bytes, tmp_path: Path) -> None:
    assert kernels(written(tmp_path, text)) == EXPECTED


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("ns", 1),
        ("us", 1000),
        ("µs", 1000),
        ("\u03bcs", 1000),
        ("ms", 10**6),
        ("s", 10**9),
    ],
)
def test_units_are_those_of_the_title(unit: str, factor: int, tmp_path: Path) -> None:
    lines = KERNELS.replace("Total Time (ns)", f"Total Time ({unit})").splitlines()
    for number in (6000000, 3000001, 2000000, 1000000):
        exact = format(Decimal(number) / factor, "f")
        lines = [line.replace(f",{number},", f",{exact},") for line in lines]
    assert kernels(written(tmp_path, "\n".join(lines))) == EXPECTED


def test_thousands_are_separated_by_commas_in_quotes(tmp_path: Path) -> None:
    text = KERNELS.replace("6000000", '"6,000,000"').replace("3000001", '"3,000,001.0"')
    assert kernels(written(tmp_path, text)) == EXPECTED


def test_data_frames_and_rows_are_tables_too() -> None:
    rows = list(csv.reader(io.StringIO(KERNELS)))
    frame = pd.read_csv(io.StringIO(KERNELS))
    assert kernels(rows) == EXPECTED
    assert kernels(csv.reader(io.StringIO(KERNELS))) == EXPECTED
    assert kernels(frame) == EXPECTED
    assert kernels(frame.to_dict("records")) == EXPECTED
    assert kernels(pd.DataFrame(rows[1:], columns=rows[0])) == EXPECTED
    with pytest.raises(TypeError, match="a DataFrame, or a list of rows, not int"):
        kernels(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not list"):
        kernels(["abc"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            MEMORY,
            "contains the report cuda_gpu_mem_time_sum instead of cuda_gpu_kern_sum",
        ),
        (
            KERNELS.replace("Instances", "Num Calls"),
            "contains the report cuda_api_sum or osrt_sum instead of",
        ),
        ("a,b\n1,2\n", "does not contain the report cuda_gpu_kern_sum"),
        ("", "does not contain the report cuda_gpu_kern_sum"),
        ("x\n" * 5000 + KERNELS, "does not contain the report cuda_gpu_kern_sum"),
        ("SQLite format 3\0", "is not CSV"),
        (
            KERNELS[: KERNELS.index("20.0") + 12],
            "line 4 has 2 cells, but its header has 9",
        ),
        (
            KERNELS.replace("2000000", "2.000.000"),
            "line 4 has '2.000.000' in the column",
        ),
        (
            KERNELS.replace("2000000", '"20,00"'),
            "line 4 has '20,00' in the column 'totaltime'",
        ),
        (
            KERNELS.replace("2000000", "1e30"),
            "line 4 has '1e30' in the column 'totaltime'",
        ),
        (
            KERNELS.replace("2000000,9", "2000000,9.5"),
            "has '9.5' in the column 'instances'",
        ),
        (
            KERNELS.replace("Total Time (ns)", "Total Time (h)"),
            "the unit h of the column",
        ),
        (
            KERNELS.replace("loop_FUSION_2", "x" * (1 << 24 | 1)),
            "is not valid CSV (field larger than",
        ),
        (
            KERNELS[: KERNELS.index("ncclDev") + 9],
            "line 3 is incomplete; create it again",
        ),
        (KERNELS[: KERNELS.index("20.0") + 2], "line 4 is incomplete; create it again"),
    ],
)
def test_errors_are_one_line_and_name_the_file(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceFormatError) as caught:
        kernels(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_required_numbers_are_refused(tmp_path: Path) -> None:
    for cell, what in (("", "no number"), ("-5", "a negative number")):
        path = written(tmp_path, KERNELS.replace("2000000", cell))
        (piece,) = open_report(path, NsysCsvReport.KERNELS).batches
        with pytest.raises(
            TraceFormatError, match=f"line 4 has {what} in the column 'totaltime'"
        ):
            piece.required("totaltime", piece.nanoseconds("totaltime"))


def test_long_cells_are_read(tmp_path: Path) -> None:
    long = "x" * 200_000
    table = open_report(
        written(tmp_path, KERNELS.replace("loop_FUSION_2", long)), NsysCsvReport.KERNELS
    )
    assert long in next(table.batches).texts("name")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match="no such file"):
        kernels(tmp_path / "absent.csv")


@given(
    st.sampled_from([KERNELS, MESSAGES + KERNELS, GPU_TRACE]),
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from('",\n\r\0(x9-é') | st.just("")),
        max_size=4,
    ),
)
def test_damaged_tables_are_read_or_refused(
    text: str, damage: list[tuple[float, str]]
) -> None:
    for place, character in damage:
        at = int(place * len(text))
        text = text[:at] + character + text[at + 1 :]
    source = ByteSource(io.BytesIO(text.encode()))
    try:
        for piece in open_report(source, NsysCsvReport.KERNELS).batches:
            piece.required("totaltime", piece.nanoseconds("totaltime"))
    except TracelensError as error:
        assert "\n" not in str(error)


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_whole_numbers_are_exact_however_they_are_written(numbers: list[int]) -> None:
    for written_as in (str, "{:,}".format, lambda n: f" {n} ", lambda n: f"{n}.0"):
        assert whole([written_as(n) for n in numbers]) == numbers
        assert nanoseconds([written_as(n) for n in numbers], None) == numbers
    assert whole(numbers) == numbers


@given(st.lists(st.decimals(0, 10**6, places=9)))
def test_fractions_of_a_second_are_exact(numbers: list[Decimal]) -> None:
    expected = [int(n * 10**9) for n in numbers]
    assert nanoseconds([format(n, "f") for n in numbers], "s") == expected
    assert nanoseconds(numbers, "s") == expected


def test_sizes_are_read_and_may_be_missing() -> None:
    assert sizes(["402.653", "1"], "MB") == [402_653_000, 1_000_000]
    assert sizes(["1.5", None, "", float("nan")], "KiB") == [1536, None, None, None]
    for cell in ("²", "1_000", "0x10", "nan", "inf", True, object()):
        with pytest.raises(ValueError, match="no number"):
            whole([cell])


@pytest.mark.real_data
def test_sums_of_a_recorded_table_equal_those_of_plain_python() -> None:
    with REAL_KERNELS.open(newline="") as stream:
        expected = [
            (row["Name"], int(row["Total Time (ns)"]), int(row["Instances"]))
            for row in csv.DictReader(stream)
        ]
    assert kernels(REAL_KERNELS) == expected
    assert kernels(pd.read_csv(REAL_KERNELS)) == expected
