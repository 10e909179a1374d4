"""A spreadsheet program opens what is written, and shows what is meant."""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.support.report_helpers import write_workbook
from tracelens_ext.report.tables.charts import Chart

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("soffice") is None, reason="needs LibreOffice"),
]

ODD_TEXTS = [
    "=1+1",
    "+1",
    "@x",
    "#N/A",
    "_x0041_",
    "1e5",
    "<b>&amp;",
    "a\ufffdb",
    "x" * 32_767,
]
SHEETS = {
    "kernels": pd.DataFrame(
        {
            "kernel_name": ["kernel_mha", "nvjet_tst", "scaleMatrix"],
            "kernel_category": ["Flash Attention Forward", "GEMM", "Memory Ops"],
            "count": [1000, 1, 1],
            "total_time_ms": [0.15, 1234.5, 0.08],
            "avg_time_us": [150.0, 220.0, 80.0],
            "percent": [33.3, 48.9, 17.8],
            "size (bytes)": [1200, 33_554_432, 8_589_934_592],
            "difference (%)": [5.0, -5.0, 0.0],
        }
    ),
    "odd texts": pd.DataFrame({"name": [*ODD_TEXTS[:7], "a\x00b", ODD_TEXTS[8]]}),
}
# Comma, quotes, UTF-8, from the first line, in English, as shown, every sheet to its own file.
ALL_SHEETS_AS_SHOWN = (
    "csv:Text - txt - csv (StarCalc):44,34,76,1,,1033,false,true,true,false,false,-1"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workbook and what LibreOffice makes of it."""
    folder = tmp_path_factory.mktemp("office")
    write_workbook(
        folder / "book.xlsx",
        SHEETS,
        facts=[("duration (ms)", 34.892)],
        charts=[
            Chart(
                "GPU time by category", "kernels", "kernel_category", "total_time_ms"
            ),
            Chart(
                "All of it", "kernels", "kernel_category", "total_time_ms", "stacked"
            ),
        ],
    )
    for kind in (ALL_SHEETS_AS_SHOWN, "pdf"):
        subprocess.run(
            [
                "soffice",
                f"-env:UserInstallation=file://{folder}/profile",
                "--headless",
                "--convert-to",
                kind,
                "--outdir",
                str(folder),
                str(folder / "book.xlsx"),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    return folder


def shown(folder: Path, sheet: str) -> list[list[str]]:
    with (folder / f"book-{sheet}.csv").open(encoding="utf-8", newline="") as stream:
        csv.field_size_limit(100_000)
        return list(csv.reader(stream))


def test_numbers_are_shown_with_their_units(folder: Path) -> None:
    header, *rows = shown(folder, "kernels")
    assert header == list(SHEETS["kernels"].columns)
    assert [row[2:] for row in rows] == [
        ["1,000", "0.150 ms", "150.000 µs", "33.30%", "1,200 B", "+5.00%"],
        ["1", "1,234.500 ms", "220.000 µs", "48.90%", "33.55 MB", "-5.00%"],
        ["1", "0.080 ms", "80.000 µs", "17.80%", "8.59 GB", "0.00%"],
    ]


def test_texts_stay_texts(folder: Path) -> None:
    _, *rows = shown(folder, "odd texts")
    assert [row[0] for row in rows] == ODD_TEXTS


def test_the_summary(folder: Path) -> None:
    rows = shown(folder, "summary")
    assert ["duration (ms)", "34.892 ms"] in [row[:2] for row in rows]


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext")
def test_charts_are_drawn(folder: Path) -> None:
    text = subprocess.run(
        ["pdftotext", "-layout", str(folder / "book.pdf"), "-"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    pages = text.split("\f")
    (chart,) = [
        page for page in pages if "GPU time by category (ms)" in page and "200" in page
    ]
    # the longest on top
    assert chart.index("GEMM") < chart.index("Flash Attention Forward")
    assert "All of it (ms)" in text
