"""CSV files hold everything, exactly."""

from __future__ import annotations

import csv
import errno
import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens_ext.errors import OutputError
from tracelens_ext.report import formats
from tracelens_ext.report.formats import file_names, write_tables
from tracelens_ext.report.manifest import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


def test_files_and_their_content(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "kernel_name": ["a, b", 'say "x"', None, "=1+1"],
            "time_ms": [0.1 + 0.2, math.nan, math.inf, 1e300],
            "count": [1, 2, 3, 2**62],
            "single": np.array([0.1, 1, 2, 3], dtype=np.float32),
            "yes": [True, False, True, False],
            "category": pd.Categorical(["x", None, "y", "µ"]),
        }
    )
    folder = tmp_path / "new" / "folder"
    paths = write_tables(folder, {"kernels": frame, "empty": frame.iloc[:0]})
    assert paths == [folder / "kernels.csv", folder / "empty.csv"]
    assert paths[0].read_bytes().decode() == (
        "kernel_name,time_ms,count,single,yes,category\n"
        '"a, b",0.30000000000000004,1,0.1,True,x\n'
        '"say ""x""",,2,1.0,False,\n'
        ",inf,3,2.0,True,y\n"
        "=1+1,1e+300,4611686018427387904,3.0,False,µ\n"
    )
    assert read(paths[1]) == [list(frame.columns)]
    again = pd.read_csv(paths[0])
    assert again["time_ms"].dropna().tolist() == [0.1 + 0.2, math.inf, 1e300]
    assert again["count"].tolist() == frame["count"].tolist()


def test_long_texts_are_whole(tmp_path: Path) -> None:
    (path,) = write_tables(tmp_path, {"t": pd.DataFrame({"name": ["x" * 100_000]})})
    assert len(path.read_text()) == 5 + 100_000 + 1


ANY_TEXT = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(
    ["\r", "a\r\nb", "\n", '"', ",", "\ud800", "\x00", "\u2028", "\ufeff"]
)


@given(
    st.lists(st.tuples(ANY_TEXT, ANY_TEXT, st.integers()), min_size=1, max_size=6),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_any_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, int]],
    coded: bool,
) -> None:
    frame = pd.DataFrame(rows, columns=["one", "two\r", "number"], dtype=object)
    if coded:
        # Arrow refuses half characters
        texts = pd.Index(frame["one"].unique(), dtype=object)
        frame["one"] = pd.Categorical(frame["one"], categories=texts)
    (path,) = write_tables(tmp_path_factory.getbasetemp() / "any", {"t": frame})
    text = path.read_bytes().decode("utf-8")  # valid, whatever the names held
    assert "\ufffd" in text or not any(
        "\ud800" <= c <= "\udfff" for r in rows for c in r[0] + r[1]
    )
    header, *read_rows = read(path)
    assert header == ["one", "two\r", "number"]
    replaced = [
        [
            "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in str(value))
            for value in row
        ]
        for row in rows
    ]
    assert read_rows == replaced


def test_file_names(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1]})
    wanted = [
        "ops",
        "OPS",
        "a/../b",
        "..",
        "con",
        "nul.x",
        "",
        "x\0y",
        "ü" * 300,
        "\ud800",
    ]
    paths = write_tables(tmp_path, dict.fromkeys(wanted, frame))
    assert [path.stem for path in paths] == [
        "ops",
        "OPS_2",
        "a_.._b",
        "table",
        "_con",
        "_nul.x",
        "table_2",
        "x_y",
        "ü" * 100,
        "_",
    ]
    assert all(
        path.parent == tmp_path and path.read_text() == "a\n1\n" for path in paths
    )


@given(st.lists(st.text(st.characters(codec=None), max_size=30), max_size=10))
def test_file_names_are_always_valid(wanted: list[str]) -> None:
    names = file_names(wanted, "")
    assert len({name.casefold() for name in names}) == len(wanted)
    for name in names:
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert len(name.encode()) <= 210


def test_a_failure_leaves_every_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"a": [1]})
    first, second = write_tables(tmp_path, {"one": frame, "two": frame})
    real = formats.write_csv

    def full_after_the_first(path: Path, frame: pd.DataFrame) -> None:
        if "two" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, frame)

    monkeypatch.setattr(formats, "write_csv", full_after_the_first)
    other = pd.DataFrame({"a": [2]})
    with pytest.raises(
        OutputError, match=r"two\.csv: cannot be written: no space left"
    ):
        write_tables(tmp_path, {"one": other, "two": other})
    assert first.read_text() == second.read_text() == "a\n1\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        MANIFEST,
        "one.csv",
        "two.csv",
    ]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("mine")
    write_tables(tmp_path, {"one": pd.DataFrame({"a": [1]})})
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, words in {
        str(tmp_path / "file"): "it is a file",
        str(tmp_path / "file" / "deeper"): "a part of the path is a file",
        str(tmp_path / ("n" * 300)): "the name is too long",
        "a\0b": "is not a valid folder name",
    }.items():
        with pytest.raises(OutputError, match=words):
            write_tables(folder, {"t": pd.DataFrame({"a": [1]})})
