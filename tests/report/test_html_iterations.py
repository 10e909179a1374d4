"""The charts of iterations on the page: what a bar is, which are marked, where the axis ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.report_html_helpers import HOSTILE, charts_of, iterations
from tracelens_ext.report.html import page_figures
from tracelens_ext.report.html_iteration_bars import MOST_BARS
from tracelens_ext.report.html_iterations import iteration_figures
from tracelens_ext.report.html_texts import plotly_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.report.html_figures import Figure

_PARTS = ("computation", "exposed_comm", "exposed_memcpy", "idle")


def figures(frame: pd.DataFrame) -> dict[str, Figure]:
    return {figure.title: figure for figure in iteration_figures(frame)}


def spec(figure: Figure) -> Mapping[str, Any]:
    return figure.spec


def traces(figure: Figure, kind: str, **having: object) -> list[dict[str, Any]]:
    """The traces of a kind (`bar`, `lines`, `markers`), with these values."""
    return [
        trace
        for trace in spec(figure)["data"]
        if kind in (trace["type"], trace.get("mode"))
        and all(trace.get(name) == value for name, value in having.items())
    ]


def pieces(figure: Figure) -> list[list[float]]:
    bars = traces(figure, "bar", hoverinfo="skip")
    return [[value or 0.0 for value in piece["y"]] for piece in bars]


def heights(figure: Figure) -> list[float]:
    values: list[float] = np.sum(pieces(figure), axis=0).tolist()
    return values


def walls(figure: Figure) -> list[float | None]:
    lines = traces(figure, "lines")
    assert len(lines) in (0, 2)
    assert not lines or lines[0]["y"] == lines[1]["y"]
    found: list[float | None] = lines[0]["y"][::3] if lines else []
    return found


def marks(figure: Figure) -> dict[str, list[Any]]:
    (trace,) = traces(figure, "markers")
    return {
        "bar": list(trace["x"]),
        "height": trace["y"],
        "hover": list(trace["customdata"]),
    }


def hover(figure: Figure) -> list[str]:
    (strips,) = traces(figure, "bar", yaxis="y2")
    found: list[str] = strips["customdata"]
    return found


def top(figure: Figure) -> float:
    """Where the axis ends, without the room above the bars."""
    clip: float = spec(figure)["layout"]["yaxis"]["autorangeoptions"]["clipmax"]
    return clip / 1.08


def below(figure: Figure) -> tuple[list[str], str]:
    axis = spec(figure)["rooms"][-1]["xaxis"]
    return axis["ticktext"], axis["title"]["text"]


def ends(figure: Figure) -> list[str]:
    notes = spec(figure)["rooms"][-1]["annotations"]
    return [f"{note['x']} {note['text']}".replace("\u00a0", " ") for note in notes]


def test_a_bar_an_iteration() -> None:
    frame = iterations(5)
    found = figures(frame)
    assert list(found) == ["Iterations", "Iterations by category"]
    times, categories = found.values()
    assert [name for name, _ in times.legend] == [
        "Computation",
        "Exposed communication",
        "Exposed memory copies",
        "Idle",
        "Wall time",
    ]
    for piece, part in zip(pieces(times), _PARTS, strict=True):
        assert piece == frame[f"{part}_time_ms"].tolist()
    assert walls(times) == frame["wall_time_ms"].tolist()
    assert [name for name, _ in categories.legend] == ["GEMM", "Communication"]
    assert pieces(categories)[0] == frame["GEMM_time_ms"].tolist()
    assert walls(categories) == []
    for figure in (times, categories):
        assert below(figure) == (["3", "4", "5", "6", "7"], "ProfilerStep#")
        assert figure.sheet == "iterations"
        assert top(figure) == pytest.approx(max(heights(figure)))
        assert ends(figure) == []
    first = hover(times)[0].replace("\u00a0", " ")
    assert first.startswith(
        "<b>ProfilerStep#3</b><br>wall time: 20.00 ms<br>Computation: 10.00 ms"
    )
    assert times.summary.startswith("5 iterations, median wall time 20.00")


def test_the_odd_ones_are_marked_in_the_chart_that_shows_why() -> None:
    frame = iterations(7)
    frame.loc[2, "odd"] = "idle_time_ms, kernels"
    frame.loc[5, "odd"] = "GEMM_time_ms"
    times, categories = figures(frame).values()
    assert marks(times)["bar"] == [2]
    assert marks(times)["height"][0] == pytest.approx(
        heights(times)[2] + 0.025 * top(times)
    )
    assert "idle_time_ms, kernels" in marks(times)["hover"][0]
    assert marks(categories)["bar"] == [5]
    assert times.summary.endswith("odd (marked): ProfilerStep#5")


def test_one_far_longer_than_the_rest_does_not_hide_them() -> None:
    frame = iterations(30)
    frame.loc[0, ["idle_time_ms", "wall_time_ms"]] = 5000.0
    frame.loc[0, "odd"] = "wall_time_ms"
    times = figures(frame)["Iterations"]
    ceiling = top(times)
    assert ceiling == pytest.approx(3 * float(np.median(heights(times))))
    assert spec(times)["layout"]["yaxis"]["ticksuffix"] == " ms"
    assert ends(times) == ["0 ↑ 5.01 s"]
    assert marks(times)["height"][0] == pytest.approx(1.025 * ceiling)


def test_a_wall_time_that_is_not_the_height_of_the_bar_has_its_own_line() -> None:
    frame = iterations(5).assign(wall_time_ms=[30.0, 10.0, 20.0, 20.0, 25.0])
    times = figures(frame)["Iterations"]
    assert walls(times) == [30.0, 10.0, 20.0, 20.0, 25.0]
    assert heights(times) == [20.0] * 5
    assert top(times) == pytest.approx(30.0), "the highest line has room"
    assert (
        "median wall time 20.00\u00a0ms each, from 10.00\u00a0ms to 30.00"
        in times.summary
    )
    frame.loc[0, "wall_time_ms"] = 4000.0
    times = figures(frame)["Iterations"]
    assert walls(times) == [None, 10.0, 20.0, 20.0, 25.0]
    assert ends(times) == ["0 ↑ wall time 4.00 s"]
    # All far longer than the GPU's work: the lines decide where the axis ends.
    times = figures(iterations(5).assign(wall_time_ms=900.0))["Iterations"]
    assert walls(times) == [900.0] * 5


def test_those_that_are_not_whole_are_left_out() -> None:
    frame = iterations(4)
    frame.loc[3, "whole"] = False
    assert below(figures(frame)["Iterations"])[0] == ["3", "4", "5"]
    frame["whole"] = [True, False, False, False]
    assert figures(frame) == {}
    assert figures(frame.iloc[:0]) == {}


def test_a_chart_a_process_and_device() -> None:
    one = iterations(3)
    several = pd.concat(
        [one.assign(process=p, device=d) for p in (7, 8) for d in (0, 1)]
    )
    more = pd.concat([several, one.assign(process=9, device=0)], ignore_index=True)
    drawn = iteration_figures(more)
    titles = [figure.title for figure in drawn]
    assert titles[::2] == [
        f"Iterations, process {p}, device {d}" for p in (7, 8) for d in (0, 1)
    ]
    assert len({figure.key for figure in drawn}) == len(drawn) == 8


@pytest.mark.parametrize(
    ("labels", "names", "across"),
    [
        (["forward"] * 3, ["1", "2", "3"], "forward"),
        (
            ["warm up", "step 2", "step 3"],
            ["1", "2", "3"],
            "iteration, in order of time",
        ),
        (["7", "9", "11"], ["7", "9", "11"], ""),
    ],
)
def test_what_stands_below_the_bars(
    labels: list[str], names: list[str], across: str
) -> None:
    frame = iterations(3).assign(iteration=labels)
    assert below(figures(frame)["Iterations"]) == (names, across)


def test_many_categories_are_a_dozen_and_the_rest() -> None:
    extra = {f"Category {n}_time_ms": [float(n)] * 3 for n in range(1, 20)}
    found = figures(iterations(3).assign(**extra))["Iterations by category"]
    assert len(found.legend) == 13
    assert found.legend[-1][0] == "(9 others)"
    total = (
        3 * sum(range(1, 20))
        + iterations(3)[["GEMM_time_ms", "Communication_time_ms"]].sum().sum()
    )
    assert sum(heights(found)) == pytest.approx(total)


@pytest.mark.slow
@given(st.integers(2, 3 * MOST_BARS), st.integers(0, 2**32 - 1))
def test_of_many_a_bar_is_the_mean_of_some(count: int, seed: int) -> None:
    frame = iterations(count)
    random = np.random.default_rng(seed)
    for part in _PARTS:
        frame[f"{part}_time_ms"] = random.integers(0, 9, count).astype(float)
    frame["odd"] = np.where(random.random(count) < 0.1, "idle_time_ms", "")
    frame["wall_time_ms"] = random.integers(0, 30, count).astype(float)
    times = figures(frame).get("Iterations")
    assert times is not None
    sums = frame[[f"{part}_time_ms" for part in _PARTS]].sum(axis=1).to_numpy()
    drawn = heights(times) if times.legend else []
    a_bar = math.ceil(count / MOST_BARS)
    if drawn:
        groups = [sums[at : at + a_bar] for at in range(0, count, a_bar)]
        scale = 1e3 if spec(times)["layout"]["yaxis"]["ticksuffix"] == " µs" else 1.0
        assert drawn == pytest.approx([scale * group.mean() for group in groups])
        assert len(drawn) <= MOST_BARS
        times_ms = frame["wall_time_ms"].to_numpy()
        means = [
            scale * times_ms[at : at + a_bar].mean() for at in range(0, count, a_bar)
        ]
        ceiling = top(times)
        expected = [mean if mean <= ceiling * (1 + 1e-12) else None for mean in means]
        assert len(walls(times)) == len(drawn)
        assert all(
            found is None if wanted is None else found == pytest.approx(wanted)
            for found, wanted in zip(walls(times), expected, strict=True)
        )
    assert marks(times)["bar"] == [
        at // a_bar for at in np.flatnonzero(frame["odd"].to_numpy() != "").tolist()
    ]
    assert all(0 <= height <= 1.0251 * top(times) for height in marks(times)["height"])


def test_hostile_names_are_text() -> None:
    # one that pyarrow's texts cannot hold
    names = pd.Series(list(HOSTILE), dtype=object)
    frame = iterations(len(HOSTILE)).assign(iteration=names, odd="idle_time_ms")
    found = figures(frame)["Iterations"]
    for at, name in enumerate(HOSTILE):
        assert hover(found)[at].startswith(f"<b>{plotly_lines(name)}</b><br>")
        assert marks(found)["hover"][at].startswith(
            f"<b>{plotly_lines(name)}</b> is odd<br>"
        )
    frame = iterations(2).assign(iteration=HOSTILE[0])
    assert "<" not in below(figures(frame)["Iterations"])[1]
    hostile = iterations(2).rename(columns={"GEMM_time_ms": f"{HOSTILE[9]}_time_ms"})
    for text in hover(figures(hostile)["Iterations by category"]):
        assert "<a" not in text.replace("<b>ProfilerStep", "")


def test_the_page_draws_them_when_the_table_is_there() -> None:
    tables = {"iterations": iterations(3)}
    drawn = [figure.title for figure in page_figures(tables, charts_of(tables))]
    assert drawn == ["Iterations", "Iterations by category"]
