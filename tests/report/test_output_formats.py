"""JSON, Markdown and Parquet: the same tables, whatever stands in them."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.report import formats
from tracelens_ext.report.formats import plain_column, plain_headers
from tracelens_ext.report.report import Report
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.report.writing import (
    OutputFormat,
    report_text,
    require_format,
    write_report,
)

if TYPE_CHECKING:
    from pathlib import Path

    from markdown_it.token import Token

KERNEL = "void at::native::reduce_kernel<512, 1, ReduceOp<float, a|b>>(T*) [clone .kd]"
HOSTILE = (
    KERNEL,
    "<script>alert(1)</script>",
    "![x](http://evil.example/x.png) [y](javascript:alert(1))",
    "a|b\\|c\\",
    "``` `` `",
    "*bold* _it_ __init__ ~~no~~ $x$ &lt; &#124; <!-- c -->",
    "@someone #1 GH-1 :x: www.example.com https://example.com a@b.c",
    "line\nbreak\ttab\rreturn\x1b[31mred\u202egnp.exe",
    "\ud800 half \U0001f600",
    "  blanks  at the ends  ",
    "=1+1",
    "-",
    "# heading",
    "| --- |",
    "",
)

texts = st.text(max_size=30) | st.text("ab_*`|\\<>[]()!~$&#@:/.-+=0 \n", max_size=20)


def report_of(*frames: pd.DataFrame, **more: Any) -> Report:
    sheets = {f"table {place}": frame for place, frame in enumerate(frames)}
    return Report(title="A report", sheets=sheets, **more)


def text_of(report: Report, chosen: OutputFormat) -> str:
    return "".join(report_text(report, chosen))


# JSON.


def strictly_loaded(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        pytest.fail(f"{constant} is no JSON")

    return json.loads(text.encode(), parse_constant=refuse)


def test_json_holds_rows_by_column() -> None:
    frame = pd.DataFrame(
        {"name": ["a", None], "time_ms": [1.5, np.nan], "count": [2, 3]}
    )
    facts = [
        ("Duration (ms)", 2.5),
        ("Events", np.int64(7)),
        ("Nothing", None),
        ("Pct", math.inf),
    ]
    loaded = strictly_loaded(
        text_of(report_of(frame, facts=facts, notes=["So."]), OutputFormat.json)
    )
    assert next(iter(loaded)) == "generator"
    assert loaded["generator"] == "tracelens-ext"
    assert loaded["facts"] == {
        "Duration (ms)": 2.5,
        "Events": 7,
        "Nothing": None,
        "Pct": None,
    }
    assert loaded["notes"] == ["So."]
    assert loaded["tables"] == {
        "table 0": [
            {"name": "a", "time_ms": 1.5, "count": 2},
            {"name": None, "time_ms": None, "count": 3},
        ]
    }


def test_json_of_odd_tables() -> None:
    mixed = pd.DataFrame(
        {"v": [True, 10**30, 2**64 - 1, -(2**63), "\ud800", pd.NaT, (1, 2)]}
    )
    twice = pd.DataFrame([[1, 2, 3]], columns=["a", "a", ("b", 4)])
    loaded = strictly_loaded(
        text_of(
            report_of(mixed, twice, pd.DataFrame(), pd.DataFrame({"x": []})),
            OutputFormat.json,
        )
    )["tables"]
    assert [row["v"] for row in loaded["table 0"]] == [
        True,
        str(10**30),
        2**64 - 1,
        -(2**63),
        "\ufffd",
        None,
        "(1, 2)",
    ]
    assert loaded["table 1"] == [{"a": 1, "a_2": 2, "b 4": 3}]
    assert loaded["table 2"] == loaded["table 3"] == []
    assert strictly_loaded(text_of(Report("t", {}), OutputFormat.json))["tables"] == {}


@given(
    st.lists(
        st.tuples(texts, st.floats(), st.integers(-(2**63), 2**63 - 1)), max_size=5
    ),
    texts,
    texts,
)
def test_json_keeps_every_value(
    rows: list[tuple[str, float, int]], title: str, label: str
) -> None:
    frame = pd.DataFrame(
        {
            "text": pd.Series([r[0] for r in rows], dtype=object),
            "number": pd.Series([r[1] for r in rows], dtype="float64"),
            "whole": pd.Series([r[2] for r in rows], dtype="int64"),
        }
    )
    report = Report(title, {label: frame}, facts=[(label, title)], notes=[title])
    loaded = strictly_loaded(text_of(report, OutputFormat.json))
    kept = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in label)
    assert loaded["tables"][kept] == [
        {"text": t, "number": n if math.isfinite(n) else None, "whole": w}
        for t, n, w in rows
    ]


def test_a_long_table_is_written_whole() -> None:
    frame = pd.DataFrame({"n": range(20_000)})
    loaded = strictly_loaded(text_of(report_of(frame), OutputFormat.json))
    assert [row["n"] for row in loaded["tables"]["table 0"]] == list(range(20_000))
    assert text_of(report_of(frame), OutputFormat.markdown).count("\n| ") == 20_002


# Markdown.


def rendered(markdown: str) -> list[Token]:
    return (
        MarkdownIt("commonmark", {"html": True})
        .enable("table")
        .enable("strikethrough")
        .parse(markdown)
    )


def shown(inline: Token) -> str:
    """What a reader sees of a piece of text; anything but text and code is a failure."""
    for child in inline.children or []:
        assert child.type in ("text", "code_inline"), (child.type, inline.content)
    return "".join(child.content for child in inline.children or [])


def cells(tokens: list[Token], kind: str = "td_open") -> list[str]:
    return [
        shown(tokens[place + 1])
        for place, token in enumerate(tokens)
        if token.type == kind
    ]


def as_read(text: str) -> str:
    """A text as Markdown is to show it: on one line, with nothing that acts on a screen."""
    return safe_text(
        "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    ).strip()


@pytest.mark.parametrize("hostile", HOSTILE)
def test_markdown_shows_any_text_as_it_is(hostile: str) -> None:
    # Of objects: where pyarrow is installed, pandas holds no half characters in texts.
    names = pd.Series([hostile, "next"], dtype=object)
    frame = pd.DataFrame({0: names, 1: [1.0, 2.0]})
    frame.columns = pd.Index([hostile or "name", "time_ms"], dtype=object)
    report = Report(
        hostile,
        {hostile or "table": frame},
        facts=[(hostile, hostile)],
        notes=[
            hostile,
            f"No rule matches {hostile.strip()}, which takes 3.2 % of GPU time.",
        ],
        descriptions={hostile: hostile},
    )
    tokens = rendered(text_of(report, OutputFormat.markdown))
    assert {token.type for token in tokens if token.type.startswith("html")} <= {
        "html_block"
    }
    comments = [token.content for token in tokens if token.type == "html_block"]
    assert comments == [f"{formats.MARK}\n"], "only the mark is HTML"
    expected = as_read(hostile)
    assert cells(tokens) == [expected, expected, expected, "1.000", "next", "2.000"]
    texts = [shown(token) for token in tokens if token.type == "inline"]
    assert texts[0] == expected, "the title"
    words = " ".join(as_read(word) for word in hostile.split())
    assert words in texts, "the note"
    assert (
        " ".join(f"No rule matches {words}, which takes 3.2 % of GPU time.".split())
        in texts
    )


@given(texts, texts)
def test_no_text_breaks_out_of_its_cell(first: str, second: str) -> None:
    frame = pd.DataFrame({"a": pd.Series([first, second], dtype=object), "b": [1, 2]})
    tokens = rendered(text_of(report_of(frame), OutputFormat.markdown))
    assert cells(tokens) == [as_read(first), "1", as_read(second), "2"]


@given(texts)
def test_no_note_is_more_than_text(note: str) -> None:
    tokens = rendered(text_of(report_of(notes=[note]), OutputFormat.markdown))
    kinds = [token.type for token in tokens if token.type.endswith("_open")]
    assert kinds in (
        ["heading_open", "bullet_list_open", "list_item_open", "paragraph_open"],
        ["heading_open", "bullet_list_open", "list_item_open"],  # of a blank note
    )
    for token in tokens:
        if token.type == "inline":
            shown(token)


def test_plain_words_stay_plain() -> None:
    for text in ("cpu_op", "GEMM", "3.2 % of GPU time", "mean (µs)", "a: b, c; d."):
        assert formats.inline(text) == text
    assert formats.inline(KERNEL) == f"`{KERNEL}`"
    assert formats.cell(KERNEL) == "`" + KERNEL.replace("|", "\\|") + "`"


@pytest.mark.parametrize("repeated", ["a", "a_", "`"])
def test_a_name_of_a_megabyte_is_written(repeated: str) -> None:
    """A pattern that backtracks would take hours for it."""
    name = repeated * (1_000_000 // len(repeated)) + "#"
    assert formats.cell(name).count(repeated) >= name.count(repeated)


def test_markdown_numbers_stand_to_the_right_with_their_units() -> None:
    frame = pd.DataFrame(
        {
            "name": ["x"],
            "total_time_ms": [1234.5],
            "% of GPU time": [12.345],
            "count": [3],
            "difference_ms": [0.5],
            "ratio": [np.nan],
            "yes": [True],
        }
    )
    lines = text_of(report_of(frame), OutputFormat.markdown).splitlines()
    assert lines[-3:] == [
        "| name | total_time_ms | % of GPU time | count | difference_ms | ratio | yes |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | :--- |",
        "| x | 1,234.500 | 12.3% | 3 | +0.500 |  | True |",
    ]


# Parquet.


def test_parquet_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: known(name, *rest) if name != "pyarrow" else None,
    )
    with pytest.raises(UsageError, match=r"pip install 'tracelens-ext\[parquet\]'"):
        require_format(OutputFormat.parquet)
    with pytest.raises(UsageError):
        write_report(report_of(), {tmp_path / "out": OutputFormat.parquet})
    assert not (tmp_path / "out").exists()
    require_format(OutputFormat.csv)


def test_parquet_keeps_types_and_values(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    frame = pd.DataFrame(
        {
            "name": ["a", None],
            "half": pd.Series(["\ud800", "x"], dtype=object),
            "time_ms": [1.5, np.nan],
            "count": np.array([2, 2**53 + 1]),
            "yes": [True, False],
            "mixed": [1, "two"],
            "numbers": pd.Series([1, 2.5], dtype=object),
            "huge": pd.Series([10**30, 1], dtype=object),
            "large": np.array([2**63, 1], dtype=np.uint64),
            "none": pd.Series([None, None], dtype=object),
        }
    )
    frames = {"a/b": frame, "empty": frame.iloc[:0], "nothing": pd.DataFrame()}
    write_report(Report("t", frames), {tmp_path / "new" / "out": OutputFormat.parquet})
    paths = sorted((tmp_path / "new" / "out").glob("*.parquet"))
    assert [path.name for path in paths] == [
        "a_b.parquet",
        "empty.parquet",
        "nothing.parquet",
    ]
    table = parquet.read_table(paths[0])
    assert table.schema.metadata[b"generator"] == b"tracelens-ext"
    assert table.to_pydict() == {
        "name": ["a", None],
        "half": ["\ufffd", "x"],
        "time_ms": [1.5, None],
        "count": [2, 2**53 + 1],
        "yes": [True, False],
        "mixed": ["1", "two"],
        "numbers": [1.0, 2.5],
        "huge": [str(10**30), "1"],
        "large": [str(2**63), "1"],
        "none": [None, None],
    }
    empty = parquet.read_table(paths[1])
    assert [str(kind) for kind in empty.schema.types[2:5]] == [
        "double",
        "int64",
        "bool",
    ]
    assert empty.num_rows == 0


def test_parquet_leaves_the_old_files_when_one_cannot_be_written(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pd.DataFrame({"a": [1]})
    write_report(Report("t", {"one": frame}), {tmp_path: OutputFormat.parquet})
    written = tmp_path / "one.parquet"
    before = written.read_bytes()
    (tmp_path / "two.parquet").mkdir()
    with pytest.raises(
        OutputError, match=r"two\.parquet: cannot be written: it is a folder"
    ):
        write_report(
            Report("t", {"one": frame + 1, "two": frame}),
            {tmp_path: OutputFormat.parquet},
            force=True,
        )
    assert written.read_bytes() == before
    with pytest.raises(OutputError, match="it is a file; give a folder"):
        write_report(Report("t", {"one": frame}), {written: OutputFormat.parquet})


# All.


def test_each_format_writes_the_same_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"kernel_name": [KERNEL], "time_ms": [0.1]})
    report = report_of(frame, notes=["A note."])
    for chosen in OutputFormat:
        if (
            chosen is OutputFormat.parquet
            and importlib.util.find_spec("pyarrow") is None
        ):
            continue
        target = (
            tmp_path
            / "deep"
            / ("folder" if chosen.is_folder else f"file{chosen.suffix}")
        )
        write_report(report, {target: chosen})
        for written in [target] if target.is_file() else target.iterdir():
            assert written.stat().st_size > 0
    loaded = json.loads((tmp_path / "deep" / "file.json").read_bytes())
    assert loaded["tables"]["table 0"] == [{"kernel_name": KERNEL, "time_ms": 0.1}]
    table = pd.read_csv(tmp_path / "deep" / "folder" / "table 0.csv")
    assert table.to_dict("records") == [{"kernel_name": KERNEL, "time_ms": 0.1}]
    with pytest.raises(ValueError, match="is not a string"):
        text_of(report, OutputFormat.csv)


def test_a_text_that_cannot_be_made_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    broken = Report("t", {"good": pd.DataFrame({"a": [1]}), "bad": None})  # type: ignore[dict-item]
    with pytest.raises(AttributeError):
        write_report(broken, {target: OutputFormat.json})
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("series", "values"),
    [
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series([1.5, None], dtype="Float64"), [1.5, None]),
        (pd.Series([True, None], dtype="boolean"), [True, None]),
        (pd.Series(["a", None], dtype="str"), ["a", None]),
        (pd.Series(["b", "a", None], dtype="category"), ["b", "a", None]),
        (
            pd.Series([math.inf, -math.inf, 0.1], dtype="float32"),
            [None, None, float(np.float32(0.1))],
        ),
        (
            pd.Series([np.bool_(True), np.int8(3), np.float64(0.5)], dtype=object),
            [True, 3, 0.5],
        ),
        (pd.Series([pd.Timestamp("2024-01-02")]), ["2024-01-02 00:00:00"]),
    ],
)
def test_columns_of_every_type(series: pd.Series, values: list[object]) -> None:
    got = plain_column(series)
    assert got == values
    assert [type(value) for value in got] == [type(value) for value in values]


def test_headers_are_told_apart() -> None:
    columns = pd.Index(["a", "a_2", "a", "\ud800"], dtype=object)
    frame = pd.DataFrame([[1, 2, 3, 4]], columns=columns)
    assert plain_headers(frame) == ["a", "a_2", "a_3", "\ufffd"]


plain_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.sampled_from(
        ["\ud800", np.int64(7), np.float64("nan"), np.bool_(True), pd.NaT, pd.NA]
    )
)
documents = st.recursive(
    plain_values,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
    ),
    max_leaves=20,
)


def as_json_has_it(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name.replace("\ud800", "\ufffd"): as_json_has_it(of)
            for name, of in value.items()
        }
    if isinstance(value, list):
        return [as_json_has_it(of) for of in value]
    return plain_column(pd.Series([value], dtype=object))[0]


@given(documents, st.sampled_from([None, 1]))
def test_a_nested_document_has_the_values_that_a_table_would_have(
    document: Any, indent: int | None
) -> None:
    text = formats.nested_json_text(document, indent=indent)
    assert json.loads(text) == as_json_has_it(document)
    assert indent or "\n" not in text


def test_a_table_in_a_nested_document_is_the_list_of_its_rows() -> None:
    frame = pd.DataFrame({"name": ["a", "\ud800"], "ms": [1.5, math.nan]}, dtype=object)
    rows = [{"name": "a", "ms": 1.5}, {"name": "\ufffd", "ms": None}]
    assert json.loads(formats.nested_json_text({"path": frame})) == {"path": rows}
    odd = formats.nested_json_text({"path": frame, "text": "\ud800"})
    assert json.loads(odd) == {"path": rows, "text": "\ufffd"}


def test_a_nested_document_is_made_without_a_column_for_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = []

    def plain_column(series: pd.Series) -> list[formats.Plain]:
        columns.append(series)
        return list(series.tolist())

    monkeypatch.setattr(formats, "plain_column", plain_column)
    frame = pd.DataFrame({"start_ns": range(1_000), "name": ["kernel"] * 1_000})
    rows = frame.to_dict("records")
    text = formats.nested_json_text({"path": rows, "same": frame})
    assert json.loads(text) == {"path": rows, "same": rows}
    assert len(columns) == 2
