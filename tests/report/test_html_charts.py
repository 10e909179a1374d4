"""Which charts a report gets, what they show, and that plotly sees text where text is meant."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.report_html_helpers import (
    HOSTILE,
    charts_of,
    hostile_report,
    small_report,
)
from tracelens_ext.categorize import builtin_categorizer
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.html import page_figures
from tracelens_ext.report.html_headline import headline
from tracelens_ext.report.html_texts import (
    duration_text,
    elided_kernel_name,
    in_one_line,
    json_for_script,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.report.tables.charts import Chart

if TYPE_CHECKING:
    from tracelens_ext.report.html_figures import Figure

# What plotly may read as markup: a tag, or an entity.
_TAG_OR_ENTITY = re.compile(r"<[^<>]*>|&[^;\s]*;?")


def _figures(sheets: dict[str, pd.DataFrame]) -> dict[str, Any]:
    return {figure.title: figure for figure in page_figures(sheets, charts_of(sheets))}


def _texts(value: object) -> list[str]:
    """All texts in a figure's spec but the templates, which hold none of the trace."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [
            t
            for key, part in value.items()
            if key != "hovertemplate"
            for t in _texts(part)
        ]
    return (
        [t for part in value for t in _texts(part)] if isinstance(value, list) else []
    )


def _piece(figure: Figure, place: int) -> list[float]:
    return [value or 0.0 for value in figure.spec["data"][place]["x"]]


def _names(figure: Figure) -> list[str]:
    """The names of bars where there is most room."""
    names: list[str] = figure.spec["rooms"][-1]["yaxis"]["ticktext"]
    return names


def _axis(figure: Figure) -> str:
    return str(figure.spec["layout"]["xaxis"]["ticksuffix"]).strip()


def test_the_charts_of_a_perf_report() -> None:
    figures = _figures(small_report())
    assert list(figures) == [
        "GPU timeline",
        "GPU time by category",
        "Top kernels",
        "GPU time by operation",
        "GPU time by graph launch",
    ]
    timeline = figures["GPU timeline"]
    assert [name for name, _ in timeline.legend] == [
        "Computation",
        "Exposed communication",
        "Idle",
    ]
    assert [_piece(timeline, n) for n in range(3)] == [[30.0], [10.0], [60.0]]
    assert (
        timeline.summary == "Computation 30.0%, exposed communication 10.0%, idle 60.0%"
    )
    operations = figures["GPU time by operation"]
    assert _names(operations) == [
        "(unlinked)",
        "aten::mm",
        "aten::mul",
    ]
    assert [name for name, _ in operations.legend] == [
        "GEMM",
        "Elementwise",
        "Memory Ops",
    ]
    assert _piece(operations, 0) == [44.25, 40.0, 0.0]
    assert operations.sheet == "kernel_categories"


def test_a_bar_a_graph_launch_divided_by_category() -> None:
    launches = _figures(small_report())["GPU time by graph launch"]
    assert _names(launches) == [
        "6 \u00d7 339 kernels: step &gt; forward",
        "1 \u00d7 12 kernels: cudaGraphLaunch",
    ]
    assert [name for name, _ in launches.legend] == ["GEMM", "Elementwise"]
    assert [_piece(launches, n) for n in range(2)] == [[67.5, 10.0], [22.5, 0.0]]


def test_launch_sites_of_one_name_stay_apart_and_need_no_categories() -> None:
    frame = small_report()["graph_launches"].iloc[:, :5]
    frame = pd.concat([frame.iloc[:1], frame.iloc[:1]], ignore_index=True)
    launches = _figures({"graph_launches": frame})["GPU time by graph launch"]
    assert [name[:3] for name in _names(launches)] == ["#1 ", "#2 "]
    assert _piece(launches, 0) == [90.0, 90.0]
    assert launches.legend == []


def test_a_bar_a_device() -> None:
    one = small_report()["gpu_timeline"]
    both = pd.concat([one.assign(device=0), one.assign(device=3)], ignore_index=True)
    both.loc[both["device"] == 3, ["time ms", "percent"]] = 0.0
    both.loc[(both["device"] == 3) & (both["type"] == "idle_time"), "percent"] = 100.0
    timeline = _figures({"gpu_timeline": both})["GPU timeline"]
    assert _names(timeline) == ["GPU 0", "GPU 3"]
    assert [_piece(timeline, n) for n in range(3)] == [
        [30.0, 0.0],
        [10.0, 0.0],
        [60.0, 100.0],
    ]
    assert timeline.summary.endswith("idle 60.0% to 100.0%")


def test_idle_time_is_split_where_the_table_splits_it() -> None:
    frame = small_report()["gpu_timeline"]
    split = pd.DataFrame(
        {
            "type": ["micro_idle_time", "macro_idle_time"],
            "time ms": [20.0, 100.0],
            "percent": [10.0, 50.0],
        }
    )
    timeline = _figures({"gpu_timeline": pd.concat([frame, split], ignore_index=True)})
    pieces = timeline["GPU timeline"].legend
    assert [name for name, _ in pieces][2:] == ["Idle, short gaps", "Idle, long gaps"]
    assert sum(_piece(timeline["GPU timeline"], n)[0] for n in range(4)) == 100.0


@pytest.mark.parametrize(
    ("sheet", "columns", "title"),
    [
        (
            "kernel_summary",
            ("Parent cpu_op", "Kernel duration (µs)_sum"),
            "GPU time by operation",
        ),
        ("kernel_summary", ("Kernel name", "Kernel duration (µs)_sum"), "Top kernels"),
        (
            "ops_summary",
            ("name", "total_direct_kernel_time_ms"),
            "GPU time by operation",
        ),
        ("cpu_ops", ("cpu_op", "self_time_ms"), "CPU time by operation"),
        (
            "ops_summary_by_category",
            ("op category", "total_direct_kernel_time_ms"),
            "GPU time by operation category",
        ),
    ],
)
def test_without_categories_other_tables_serve(
    sheet: str, columns: tuple[str, str], title: str
) -> None:
    frame = pd.DataFrame(
        [("a", 1000.0), ("b", 3000.0), ("a", 1000.0)], columns=list(columns)
    )
    (figure,) = _figures({sheet: frame}).values()
    assert figure.title == title
    in_seconds = not columns[1].endswith("_ms")  # µs
    assert _piece(figure, 0) == ([3.0, 2.0] if in_seconds else [3000.0, 2000.0])
    assert _axis(figure) == "ms"
    assert figure.summary == "b 60.0%, a 40.0%"


def test_absent_empty_and_strange_tables_give_no_chart() -> None:
    sheets = small_report()
    strange = {name: frame.rename(columns=str.upper) for name, frame in sheets.items()}
    del strange["graph_launches"]
    empty = {name: frame.iloc[:0] for name, frame in sheets.items()}
    zero = {"kernel_categories": sheets["kernel_categories"].assign(total_time_ms=0.0)}
    for tables in ({}, strange, empty, zero):
        assert _figures(tables) == {}
        assert headline(tables) == []


def test_a_category_has_one_color_everywhere() -> None:
    assert color_of("GEMM") == color_of("gemm") == color_of("computation_time")
    assert color_of("idle_time") == color_of("CPU(non-GPU)") == "#aab1bd"
    # of a plugin: follows from the name alone
    assert color_of("my fused op") == "#c47e4f"
    grey = {
        color_of(name) for name in ("(3 others)", "(unlinked)", "Uncategorized", "")
    }
    assert len(grey) == 1


def test_the_built_in_categories_have_colors_of_their_own() -> None:
    packs = builtin_categorizer().packs
    names = {
        rule.category
        for bound in packs
        if bound.pack.kind == "kernel"
        for rule in bound.pack.rules
    }
    assert len({color_of(name) for name in names}) == len(names)


def test_small_and_large_times_have_an_axis_that_fits() -> None:
    chart = Chart("T", "s", "name", "total_time_ms")
    for time, axis, value in (
        (0.25, "µs", 250.0),
        (2.0, "ms", 2.0),
        (20_000.0, "s", 20.0),
    ):
        frame = pd.DataFrame({"name": ["a"], "total_time_ms": [time]})
        (figure,) = page_figures({"s": frame}, [chart])
        assert (_axis(figure), _piece(figure, 0)) == (axis, [value])


def test_differences_have_no_share_of_a_whole() -> None:
    frame = pd.DataFrame({"op": ["a", "b"], "difference_ms": [2.0, -3.0]})
    chart = Chart("D", "s", "op", "difference_ms")
    (figure,) = page_figures({"s": frame}, [chart])
    ends = figure.spec["data"][-1]
    assert [text.strip() for text in ends["text"]] == ["-3 ms", "+2 ms"]
    assert ends["x"] == [0.0, 2.0], "a bar to the left has its number at zero"
    assert figure.summary == ""


def test_a_chart_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="absent"):
        page_figures({}, [Chart("T", "absent", "a", "b")])


def test_no_text_of_a_trace_is_markup_to_plotly() -> None:
    sheets = hostile_report()
    tiny = {"time ms": 0.002, "percent": 0.001}  # shown as <0.1%
    sheets["gpu_timeline"].loc[2, list(tiny)] = list(tiny.values())
    figures = page_figures(sheets, charts_of(sheets))
    assert len(figures) == 4
    seen = set()
    for figure in figures:
        for text in _texts(figure.spec):
            markup = set(_TAG_OR_ENTITY.findall(text))
            assert markup <= {"<b>", "</b>", "<br>", "&lt;", "&gt;", "&amp;"}, text
            assert text.count("<b>") == text.count("</b>") <= 1
            assert "<" not in _TAG_OR_ENTITY.sub("", text), text
            seen.add(html.unescape(text))
    # and it is all there, in the boxes beside the pointer
    everything = " ".join(seen).replace("<br>", "")
    for name in HOSTILE:
        assert in_one_line(name)[:50] in everything, name


@given(st.text())
def test_plotly_shows_any_text_as_it_is(text: str) -> None:
    escaped = plotly_text(text)
    assert not set("<>") & set(escaped)
    assert html.unescape(escaped) == in_one_line(text)
    assert re.fullmatch(r"(?:[^&]|&(?:amp|lt|gt);)*", escaped)
    assert set(_TAG_OR_ENTITY.findall(plotly_lines(text))) <= {
        "<br>",
        "&lt;",
        "&gt;",
        "&amp;",
    }


@given(st.recursive(st.text() | st.integers(-(2**53), 2**53), st.lists, max_leaves=5))
def test_json_cannot_break_out_of_its_script(value: object) -> None:
    written = json_for_script(value)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == value


def test_names_of_kernels_keep_what_tells_them_apart() -> None:
    signature = "void at::native::copy_kernel<at::Half, 4>(int, at::Half*)"
    assert elided_kernel_name(signature, 60) == "copy_kernel<Half, 4>"
    assert elided_kernel_name(signature, 12) == "copy_kernel…"
    assert elided_kernel_name("Memset (Device)", 60) == "Memset (Device)"
    gemm = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
    assert elided_kernel_name(gemm, 30).startswith("sm90_xmma_gemm_bf16")
    assert elided_kernel_name(gemm, 30).endswith("64_cublas")


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0.00 ms"),
        (0.0004, "0.4 µs"),
        (0.9, "900.0 µs"),
        (1, "1.00 ms"),
        (123.44, "123.4 ms"),
        (1234.5, "1.23 s"),
        (-2, "-2.00 ms"),
        (7_200_000, "7,200.00 s"),
    ],
)
def test_durations(ms: float, shown: str) -> None:
    assert duration_text(ms).replace("\u00a0", " ") == shown


def test_a_small_share_is_not_nothing() -> None:
    assert [percent_text(share) for share in (0, 0.01, 0.06, 99.96)] == [
        "0.0%",
        "<0.1%",
        "0.1%",
        "100.0%",
    ]
