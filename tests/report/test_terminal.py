"""Tables in a terminal: numbers whole, names cut and harmless, at any width."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import FrameTable, frame_table, safe_text

NAME = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>>"
KERNELS = pd.DataFrame(
    {
        "kernel_name": [
            NAME,
            "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
            "kernel_mha",
        ],
        "kernel_category": ["Elementwise", "GEMM", "Flash Attention Forward"],
        "cpu_op": ["aten::add", "graph", "graph"],
        "count": [1234, 1, 10],
        "total_time_ms": [934.5678, 0.22, 0.15],
        "avg_time_us": [900.46, 220.0, 15.0],
        "% of total time": [99.97, 0.018, 0.012],
    }
)


def render(table: FrameTable, width: int, encoding: str = "utf-8") -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    Console(file=stream, width=width, color_system=None).print(table)
    stream.seek(0)
    return stream.read().splitlines()


def test_at_160_columns_everything_is_there() -> None:
    lines = render(frame_table(KERNELS, title="Top kernels"), 160)
    assert lines[0].rstrip() == "Top kernels"
    assert "too narrow" not in "".join(lines)
    assert len(lines) == 5 + 3
    assert "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT" in lines[6]
    assert "Flash Attention Forward" in lines[7]
    assert lines[5].split()[-5:] == [
        "aten::add",
        "1,234",
        "934.568",
        "900.460",
        "100.0%",
    ]
    assert lines[6].split()[-4:] == ["1", "0.220", "220.000", "<0.1%"]


@pytest.mark.slow
def test_a_wider_terminal_never_shows_less_of_a_name() -> None:
    shown = 0
    for width in range(30, 130):
        rows = [
            line
            for line in render(frame_table(KERNELS), width)
            if line.startswith("void")
        ]
        name = rows[0].split("  ")[0]
        assert len(name) >= shown, width
        shown = len(name)


@pytest.mark.parametrize("width", [24, 40, 80, 120])
def test_different_names_never_look_alike(width: int) -> None:
    begin = "void at::native::vectorized_elementwise_kernel<4, at::native::"
    end = ", char*>(int)"
    names = [
        f"{begin}{'x' * 40}{op}{'y' * 90}{end}" for op in ("Add", "Add", "Mul", "M", "")
    ]
    frame = pd.DataFrame({"name": names, "n": range(5)})
    lines = render(frame_table(frame), width)
    cells = [line.rsplit(maxsplit=1)[0] for line in lines if line.startswith("void")]
    assert cells[0] == cells[1]
    assert len(set(cells)) == 4


def test_at_80_columns_names_give_way_not_numbers() -> None:
    lines = render(frame_table(KERNELS), 80)
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(lines)
    for number in ("934.568", "900.460", "220.000", "0.150"):
        assert number in text
    assert "void at:" in text
    assert "…" in text


def test_columns_and_rows_to_show() -> None:
    table = frame_table(KERNELS, columns=["count", "kernel_name", "nope"], rows=1)
    lines = render(table, 80)
    assert lines[0].split() == ["count", "kernel_name"]
    assert lines[2].split()[0] == "1,234"
    assert lines[3] == "2 more rows not shown".ljust(len(lines[3]))
    assert (
        render(frame_table(KERNELS, rows=2), 160)[-1].strip() == "1 more row not shown"
    )
    assert "more" not in "".join(render(frame_table(KERNELS, rows=3), 160))


def test_what_does_not_fit_is_named() -> None:
    lines = render(frame_table(KERNELS), 40)
    text = " ".join(" ".join(lines).split())
    assert "kernel_name" in text
    missing = text.split("not shown (terminal too narrow): ")[1]
    assert missing.endswith("avg_time_us, % of total time")
    assert "934.568" not in text.split("too narrow")[0]


def test_of_many_columns_that_do_not_fit_the_first_are_named() -> None:
    frame = pd.DataFrame({f"column_{number}": [number] for number in range(40)})
    (text,) = " ".join(render(frame_table(frame), 40)).split(
        "not shown (terminal too narrow): "
    )[1:]
    *names, more = " ".join(text.split()).split(", ")
    assert len(names) == 8
    first = int(names[0].removeprefix("column_"))
    assert (names[-1], more) == (
        f"column_{first + 7}",
        f"{40 - first - 8} more columns",
    )


def test_markup_and_controls_mean_nothing() -> None:
    names = [
        "[bold red]x[/]",
        "\x1b[31mred\x1b[0m",
        "a\nb\tc",
        "\u202eevil",
        ":smile:",
        "\ud800",
    ]
    frame = pd.DataFrame({"[b]name": pd.Series(names, dtype=object)})
    lines = render(frame_table(frame), 60)
    assert [line.rstrip() for line in lines if "─" not in line] == [
        "[b]name",
        "[bold red]x[/]",
        "\\x1b[31mred\\x1b[0m",
        "a\\nb\\tc",
        "\\u202eevil",
        ":smile:",
        "\\ud800",
    ]


def test_styles_only_mark_the_header() -> None:
    stream = io.StringIO()
    console = Console(
        file=stream, width=160, force_terminal=True, color_system="standard"
    )
    console.print(frame_table(KERNELS, title="T"))
    header, _, rows = stream.getvalue().partition("─")
    assert "\x1b[1m" in header
    assert "\x1b[" not in rows


def test_an_ascii_terminal() -> None:
    frame = pd.DataFrame({"name": ["é" + "x" * 90], "duration (µs)": [1.5]})
    lines = render(frame_table(frame, title="µ"), 60, encoding="ascii")
    assert lines[0].strip() == "u"
    assert "(us)" in lines[2]
    assert "\\xe9xxx" in lines[4]
    assert "..." in lines[4]


def test_numbers_of_all_types() -> None:
    frame = pd.DataFrame(
        {
            "time_ms": [math.nan, math.inf, -1.0],
            "count": pd.array([1, None, 10**18 + 1], dtype="Int64"),
            "mean count": [0.5, 2.0, 3.0],
            "yes": [True, False, True],
            "any": [1, "x", None],
        }
    )
    rows = [line.split() for line in render(frame_table(frame), 120)[2:]]
    assert rows == [
        ["1", "0.50", "True", "1"],
        ["inf", "2.00", "False", "x"],
        ["-1.000", "1,000,000,000,000,000,001", "3.00", "True"],
    ]


def test_empty_frames() -> None:
    assert render(frame_table(KERNELS.iloc[:0]), 160)[0].split()[0] == "kernel_name"
    assert "".join(render(frame_table(pd.DataFrame()), 80)).strip() == ""


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcdefghij", 7, "abcd…ij"),
        ("abcdef", 1, "…"),
        ("abcdef", 0, ""),
        ("日本語日本語", 7, "日本…語"),
    ],
)
def test_cut_middle(text: str, width: int, expected: str) -> None:
    assert cut_middle(text, width) == expected


@given(st.text(), st.integers(0, 40))
def test_cut_texts_fit(text: str, width: int) -> None:
    text = safe_text(text)
    shown = cut_middle(text, width)
    assert cell_len(shown) <= width
    assert shown == text or "…" in shown or width == 0
    assert safe_text(text) == text


@given(
    st.lists(
        st.tuples(st.text(max_size=60), st.floats(0, 1e9), st.integers(0, 10**12)),
        max_size=5,
    ),
    st.integers(1, 200),
)
@settings(deadline=None, max_examples=60)
def test_any_table_at_any_width(rows: list[tuple[str, float, int]], width: int) -> None:
    """No line is wider than the terminal; each number is whole, or its column is not there."""
    frame = pd.DataFrame(rows, columns=["name", "total_time_ms", "count"])
    lines = render(frame_table(frame), width)
    assert all(cell_len(line) <= width for line in lines)
    body = [line for line in lines[1:] if "─" not in line]
    left_out = "".join("".join(lines).split())
    if "toonarrow" not in left_out:
        for row, (_, _, count) in zip(body[len(body) - len(rows) :], rows, strict=True):
            assert row.split()[-1] == f"{count:,}"
