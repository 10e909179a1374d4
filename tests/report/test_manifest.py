"""Only what this program made is written over, and an input never is."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.comparison_helpers import training, write
from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic_folders import write_folder
from tracelens_ext.report.manifest import (
    MANIFEST,
    check_folder,
    check_output,
    has_own_mark,
    manifest_files,
)
from tracelens_ext.report.report import Report
from tracelens_ext.report.writing import OutputFormat, write_report

REPORT = Report("A report", {"table": pd.DataFrame({"a": [1]})}, notes=["A note."])
if TYPE_CHECKING:
    from collections.abc import Callable

FILES = [chosen for chosen in OutputFormat if not chosen.is_folder]


def written(*names: str, text: str = "ours") -> dict[str, Callable[[Path], object]]:
    """Files to write, all with the same text."""
    return dict.fromkeys(names, lambda path: path.write_text(text))


@pytest.mark.parametrize("chosen", FILES)
def test_each_format_carries_its_mark(tmp_path: Path, chosen: OutputFormat) -> None:
    (path,) = write_report(REPORT, {tmp_path / f"a{chosen.suffix}": chosen})
    assert has_own_mark(path)
    renamed = path.rename(tmp_path / "renamed")
    assert has_own_mark(renamed), "the mark is inside"
    check_output(renamed)


def test_a_page_carries_its_mark(tmp_path: Path) -> None:
    for name in ("jinja2", "plotly"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    from tracelens_ext.report.html import write_html

    write_html(tmp_path / "a.html", REPORT)
    assert has_own_mark(tmp_path / "a.html")


STRANGERS = {
    "notes.txt": b"written by me",
    "page.html": b"<!doctype html><title>tracelens-ext</title>",
    "data.json": b'{"note": "not the first member", "generator": "tracelens-ext"}',
    "quoted.md": b"I quote:\n\n<!-- written by tracelens-ext -->\n",
    "zip.xlsx": b"PK\x03\x04" + b"broken" * 20,
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_file_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(STRANGERS[name])
    assert not has_own_mark(path)
    with pytest.raises(
        OutputError, match="was not written by tracelens-ext; choose another name"
    ):
        check_output(path)
    check_output(path, force=True)


def test_strangers_workbooks_and_archives_stay(tmp_path: Path) -> None:
    from openpyxl import Workbook

    workbook = tmp_path / "theirs.xlsx"
    Workbook().save(workbook)
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("a.txt", "<dc:creator>tracelens-ext</dc:creator>")
    encrypted = tmp_path / "encrypted.xlsx"
    with zipfile.ZipFile(encrypted, "w") as opened:
        opened.writestr("docProps/core.xml", "<dc:creator>tracelens-ext</dc:creator>")
    content = bytearray(encrypted.read_bytes())
    for start in (content.index(b"PK\x03\x04") + 6, content.index(b"PK\x01\x02") + 8):
        content[start] |= 1  # the flag of an encrypted member
    encrypted.write_bytes(content)
    for path in (workbook, archive, encrypted):
        assert not has_own_mark(path)


def test_a_trace_is_an_input_not_an_output(
    short_demo_trace: Path, tmp_path: Path
) -> None:
    assert not has_own_mark(short_demo_trace)
    assert not has_own_mark(write(tmp_path / "t.json", training(1)))


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes with names")
def test_what_is_no_file_is_left_to_the_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for path in (
        pipe,
        link,
        tmp_path,
        tmp_path / "absent",
        Path("/dev/null"),
        Path("a\0b"),
    ):
        assert not has_own_mark(path)
        check_output(path)


def test_an_empty_file_has_nothing_to_lose(tmp_path: Path) -> None:
    (tmp_path / "new.xlsx").touch()  # as mktemp makes it
    check_output(tmp_path / "new.xlsx")


def test_an_input_is_never_written_over(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", training(1))
    link = tmp_path / "link.json"
    hard = tmp_path / "hard.json"
    link.symlink_to(trace)
    hard.hardlink_to(trace)
    others = [tmp_path / "absent.json"]
    for path in (trace, link, hard, tmp_path / "." / "trace.json"):
        with pytest.raises(OutputError, match="is the trace itself"):
            check_output(path, [*others, trace], force=True)
        with pytest.raises(OutputError, match="is the trace itself"):
            check_folder(tmp_path, [path.name], [trace], force=True)


def test_a_folder_knows_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    check_folder(folder, ["a.csv"])  # not there yet
    write_folder(folder, written("a.csv", "b.csv"))
    assert manifest_files(folder) == ["a.csv", "b.csv"]
    (folder / "mine.csv").write_text("theirs")
    check_folder(folder, ["a.csv", "b.csv", "new.csv"])
    with pytest.raises(
        OutputError, match="mine\\.csv: exists and was not written by tracelens-ext"
    ):
        check_folder(folder, ["a.csv", "mine.csv"])
    check_folder(folder, ["mine.csv"], force=True)


def test_tables_of_an_earlier_report_go(tmp_path: Path) -> None:
    """In a folder of our own, which is exchanged, and in one that is not."""
    for theirs in ([], ["mine.csv"]):
        for name in theirs:
            (tmp_path / name).write_text("theirs")
        write_folder(tmp_path, written("a.csv", "old.csv"))
        write_folder(tmp_path, written("old.parquet"))
        assert manifest_files(tmp_path) == ["old.parquet", "a.csv", "old.csv"]
        write_folder(tmp_path, written("a.csv", "b.csv"))
        ours = ["a.csv", "b.csv", "old.parquet"]
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            MANIFEST,
            *sorted(ours + theirs),
        ]
        assert manifest_files(tmp_path) == ours


def test_a_manifest_from_elsewhere_reaches_no_other_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside.csv"
    outside.write_text("theirs")
    folder = tmp_path / "folder"
    folder.mkdir()
    hostile = [
        "../outside.csv",
        str(outside),
        "..",
        ".",
        "",
        "a\0b",
        7,
        None,
        ["x"],
        "sub/x.csv",
    ]
    manifest = {"generator": "tracelens-ext", "files": [*hostile, "a.csv"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert manifest_files(folder) == ["a.csv"]
    write_folder(folder, written("b.csv"))
    assert outside.read_text() == "theirs"


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["generator", "files", "x"]),
                inner | st.just("tracelens-ext"),
                max_size=3,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_manifest_is_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / MANIFEST).write_bytes(content)
    for name in manifest_files(folder):
        assert (folder / name).parent == folder


def test_a_deep_manifest_is_none(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    assert manifest_files(tmp_path) == []


@pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)
def test_programs_that_read_a_whole_folder_skip_the_manifest(tmp_path: Path) -> None:
    from importlib import import_module

    write_report(REPORT, {tmp_path: OutputFormat.parquet})
    dataset = import_module("pyarrow.dataset").dataset(tmp_path)
    assert [Path(file).name for file in dataset.files] == ["table.parquet"]


def test_a_damaged_workbook_is_a_strangers(tmp_path: Path) -> None:
    (path,) = write_report(REPORT, {tmp_path / "a.xlsx": OutputFormat.xlsx})
    with zipfile.ZipFile(path) as archive:
        packed = archive.getinfo("docProps/core.xml").header_offset + 60
    whole = path.read_bytes()
    for at in range(packed, packed + 40):
        path.write_bytes(
            whole[:at]
            + bytes(each ^ 0xFF for each in whole[at : at + 8])
            + whole[at + 8 :]
        )
        if not has_own_mark(path):  # else a check sum alone is wrong
            with pytest.raises(OutputError, match="was not written by tracelens-ext"):
                check_output(path)
