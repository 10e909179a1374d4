"""Reports for the tests of the HTML page, and a strict reader of it."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pandas as pd

from tests.support.report_helpers import write_html
from tracelens_ext.report.tables.registry import offered_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelens_ext.report.tables.charts import Chart

#: Names that would do something where a writer forgets to escape them: in HTML, in a script, in
#: an attribute, in a template, in plotly's labels and its templates.
HOSTILE = (
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 2'>",
    "</script><script>window.pwned = 3</script>",
    "</table></body><svg onload=window.pwned=4>",
    "{{ 7 * 191 }} {% raw %} {# gone #}",
    "${7 * 191} `window.pwned = 5`",
    "\"double\" 'single' quotes onmouseover=window.pwned=6",
    "]]> <!-- --> <![CDATA[",
    "line\u2028separator\u2029paragraph",
    "<b>bold</b> <a href='javascript:window.pwned=7'>link</a><br>&lt;i&gt; &amp;amp;",
    "%{y} %{customdata} $x^2$ %{x:.3f}",
    "nul\x00 bell\x07 lone\ud800 \ufffe right\u202eto left",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float*)",
    "__proto__",
    "<!--<script>",
    "=cmd|' /C calc'!A0",
    "\u4e2d\u6587 \U0001f600",
)


def charts_of(tables: Mapping[str, pd.DataFrame]) -> list[Chart]:
    """What the sheets of these names draw of these tables."""
    charts = [chart for offered in offered_tables() for chart in offered.item.charts]
    return [c for c in charts if c.sheet in tables and c.fits(tables[c.sheet])]


def write_page(
    path: Path, tables: Mapping[str, pd.DataFrame], **more: Any
) -> list[str]:
    """Write tables, and the charts that their sheets draw, as a page."""
    return write_html(path, tables, charts=charts_of(tables), **more)


def small_report() -> dict[str, pd.DataFrame]:
    """Tables of a perf report: three operations, two categories, a graph launch."""
    timeline = {
        "computation_time": 60.0,
        "exposed_comm_time": 20.0,
        "exposed_memcpy_time": 0.0,
        "busy_time": 80.0,
        "idle_time": 120.0,
        "total_time": 200.0,
        "total_comm_time": 30.0,
        "total_memcpy_time": 1.0,
    }
    categories = pd.DataFrame(
        [
            ("aten::mm", "GEMM", 10, 40.0),
            ("aten::mul", "Elementwise", 5, 15.5),
            ("(unlinked)", "GEMM", 7, 44.25),
            ("aten::mm", "Memory Ops", 1, 0.25),
        ],
        columns=["cpu_op", "kernel_category", "count", "total_time_ms"],
    )
    kernels = pd.DataFrame(
        [
            (
                f"kernel_{n:02d}",
                "GEMM" if n % 2 else "Elementwise",
                n,
                1.5 * n,
                100.0 * n / 325,
            )
            for n in range(25, 0, -1)
        ],
        columns=[
            "kernel",
            "kernel_category",
            "count",
            "total_time_ms",
            "% of GPU time",
        ],
    )
    launches = pd.DataFrame(
        {
            "launch": ["cudaGraphLaunch"] * 2,
            "path": ["step > forward", ""],
            "launches": [6, 1],
            "kernels_per_launch": [339, 12],
            "busy_time_ms": [90.0, 10.0],
            "GEMM_percent": [75.0, 100.0],
            "Elementwise_percent": [25.0, 0.0],
        }
    )
    return {
        "gpu_timeline": pd.DataFrame(
            {
                "type": list(timeline),
                "time ms": list(timeline.values()),
                "percent": [time / 2 for time in timeline.values()],
            }
        ),
        "gpu_time_by_category": by_category(categories),
        "kernels_by_category": kernels,
        "kernel_categories": categories,
        "graph_launches": launches,
    }


def by_category(categories: pd.DataFrame) -> pd.DataFrame:
    """The table `gpu_time_by_category` of the table by operation."""
    sums: dict[str, float] = {}
    for name, time in zip(
        categories["kernel_category"], categories["total_time_ms"], strict=True
    ):
        sums[name] = sums.get(name, 0.0) + time
    longest = sorted(sums, key=lambda name: -sums[name])
    return pd.DataFrame(
        {
            "kernel_category": pd.Series(longest, dtype=object),
            "total_time_ms": [sums[name] for name in longest],
        }
    )


def iterations(count: int) -> pd.DataFrame:
    """The table of that many iterations, from ProfilerStep#3 on, 20 ms each, and alike."""
    parts = {
        "computation": 10.0,
        "exposed_comm": 4.0,
        "exposed_memcpy": 1.0,
        "idle": 5.0,
    }
    times = {"wall": 20.0, "busy": 15.0} | parts
    return pd.DataFrame(
        {
            "iteration": [f"ProfilerStep#{number}" for number in range(3, count + 3)],
            "start_ms": [20.0 * number for number in range(count)],
            **{f"{name}_time_ms": [time] * count for name, time in times.items()},
            "kernels": [100] * count,
            "whole": [True] * count,
            "odd": [""] * count,
            "GEMM_time_ms": [10.0] * count,
            "Communication_time_ms": [6.0] * count,
        }
    )


def hostile_report() -> dict[str, pd.DataFrame]:
    """The same tables with hostile names wherever a name can stand."""
    many = len(HOSTILE)
    times = [float(many - place) for place in range(many)]
    # Of one type whatever pandas keeps texts in: Arrow, where installed, refuses half characters.
    names, turned, shifted = (
        pd.Series(texts, dtype=object)
        for texts in (HOSTILE, HOSTILE[::-1], [*HOSTILE[3:], *HOSTILE[:3]])
    )
    categories = pd.DataFrame(
        {"cpu_op": names, "kernel_category": turned, "total_time_ms": times}
    )
    return {
        "gpu_timeline": small_report()["gpu_timeline"],
        "gpu_time_by_category": by_category(categories),
        "kernel_categories": categories,
        "kernels_by_category": pd.DataFrame(
            {
                "kernel": names,
                "kernel_category": shifted,
                "total_time_ms": times,
                "<script>window.pwned = 8</script>": names,
            }
        ),
        "<img src=x onerror=window.pwned=9>": pd.DataFrame({"</th><script>": times}),
    }


@dataclass
class Element:
    """An element of a page: its tag, attributes, text directly in it, and children."""

    tag: str
    attributes: dict[str, str | None]
    parent: Element | None
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """All elements of a tag within, in order."""
        found = [self] if self.tag == tag else []
        for child in self.children:
            found += child.all(tag)
        return found

    def content(self) -> str:
        """All text within."""
        return self.text + "".join(child.content() for child in self.children)

    def with_id(self, name: str) -> Element:
        """The one element of an id."""
        found = [
            element
            for element in self.everything()
            if element.attributes.get("id") == name
        ]
        assert len(found) == 1, name
        return found[0]

    def everything(self) -> list[Element]:
        """This element and all within."""
        return [
            self,
            *(below for child in self.children for below in child.everything()),
        ]


class _Reader(HTMLParser):
    """Builds the tree, and refuses what is not nested properly."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.here = Element("document", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, attrs)
        element = Element(tag, dict(attrs), self.here)
        self.here.children.append(element)
        if tag not in self.VOID:
            self.here = element

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"</{tag}> ends <{self.here.tag}>"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


@dataclass
class Page:
    """A page that was read back.

    Attributes:
        source: the file.
        root: its elements.
        data: what is embedded for the script.
        plotly: the unpacked plotly.js.
    """

    source: str
    root: Element
    data: dict[str, Any]
    plotly: str

    def table(self, name: str) -> Element:
        """The section of a table, by its heading."""
        sections = self.root.with_id("tables").all("section")
        found = [
            section
            for section in sections[1:]
            if section.all("h3")[0].content() == name
        ]
        assert len(found) == 1, name
        return found[0]

    def frame(self, place: int) -> list[tuple[Any, ...]]:
        """The embedded rows of a table."""
        columns = self.data["tables"][place]["columns"]
        values = [
            [self.data["texts"][code] if code >= 0 else "" for code in column["values"]]
            if column["kind"] == "text"
            else column["values"]
            for column in columns
        ]
        return list(zip(*values, strict=True))


def read_page(path: Path, *, sources: str = "\0") -> Page:
    """Read a page strictly: properly nested, ids used once, every reference leads somewhere.

    Args:
        path: the page.
        sources: how references may begin that lead outside.
    """
    source = path.read_text(encoding="utf-8")
    assert source.startswith("<!doctype html>\n")
    reader = _Reader()
    reader.feed(source)
    reader.close()
    assert reader.here is reader.root, f"<{reader.here.tag}> is not closed"
    root = reader.root
    elements = root.everything()
    ids = [
        element.attributes["id"] for element in elements if "id" in element.attributes
    ]
    assert len(set(ids)) == len(ids)
    for element in elements:
        target = element.attributes.get("href") or ""
        if target.startswith(sources):
            continue
        assert (
            target[1:] in ids if target.startswith("#") else target in ("", "data:,")
        ), target
        assert (element.attributes.get("aria-labelledby") or ids[0]) in ids
    packed = base64.b64decode(root.with_id("packed-plotly").text)
    return Page(
        source,
        root,
        json.loads(root.with_id("report-data").text),
        zlib.decompress(packed).decode(),
    )
