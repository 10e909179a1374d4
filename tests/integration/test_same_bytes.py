"""A report is the same to the byte, however it came about."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import msgspec
import pytest

from tests.support.make_trace import LAYOUTS, short_demo
from tracelens_ext.cli import run
from tracelens_ext.readers import ahead, json_events
from tracelens_ext.readers.cache import store as cache
from tracelens_ext.readers.kineto import PURE_PYTHON
from tracelens_ext.readers.kineto import reader as kineto

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "trace.json"
DOCUMENT = short_demo()
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture(autouse=True)
def _a_cache_for_small_traces(tmp_path: Path) -> Iterator[None]:
    """Threads and cache for any size; both only where a run asks for them."""
    with (
        mock.patch.object(ahead, "WORTHWHILE_BYTES", 0),
        mock.patch.object(cache, "WORTH_KEEPING", 0),
        mock.patch.dict(
            os.environ, {"TRACELENS_EXT_CACHE_DIR": str(tmp_path / "cache")}
        ),
    ):
        os.environ.pop("TRACELENS_EXT_NO_CACHE", None)
        yield


def _reports(
    folder: Path, data: bytes, monkeypatch: pytest.MonkeyPatch, *options: str
) -> dict[str, bytes]:
    """Every format of a report of these bytes, by file name; by the same path for all."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_bytes(data)
    monkeypatch.chdir(folder)
    asked = [
        "report",
        NAME,
        *options,
        "--gaps",
        "--short-kernel-study",
        "--force",
        "--quiet",
    ]
    assert run([*asked, "-o", "r.xlsx", "--html", "r.html", "--csv-dir", "csv"]) == 0
    for name in ("r.json", "r.md"):
        assert run([*asked, "-o", name]) == 0
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != NAME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _assert_same(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    assert {"r.xlsx", "r.html", "r.json", "r.md", "csv/findings.csv"} <= set(expected)
    assert set(found) == set(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.fixture
def text() -> bytes:
    return LAYOUTS["kineto"](DOCUMENT).encode()


@pytest.mark.process
def test_serial_parallel_and_cached(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _reports(
        tmp_path / "serial", text, monkeypatch, "--jobs", "1", "--no-cache"
    )
    monkeypatch.setattr(
        json_events, "SLICE_BYTES", 1 << 16
    )  # many slices, so that threads share them
    parallel = _reports(
        tmp_path / "parallel", text, monkeypatch, "--jobs", "2", "--no-cache"
    )
    _assert_same(parallel, expected)
    assert not (tmp_path / "cache").exists()
    _assert_same(
        _reports(tmp_path / "cached", text, monkeypatch, "--jobs", "1"), expected
    )
    assert list((tmp_path / "cache").iterdir())
    monkeypatch.setattr(
        kineto, "read", lambda *_: pytest.fail("the cache was to be used")
    )
    _assert_same(_reports_again(tmp_path / "cached", monkeypatch), expected)


def _reports_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """As `_reports`, with the file as it is."""
    monkeypatch.setattr(Path, "write_bytes", lambda *_: 0)
    return _reports(folder, b"", monkeypatch)


@pytest.mark.process
def test_gzipped_and_not(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _reports(tmp_path / "plain", text, monkeypatch, "--no-cache")
    packed = gzip.compress(text)
    found = _reports(
        tmp_path / "packed", packed, monkeypatch, "--no-cache", "--jobs", "2"
    )
    _assert_same(found, expected)


@pytest.mark.process
def test_layouts_and_readers(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _reports(tmp_path / "kineto", text, monkeypatch, "--no-cache")
    other = LAYOUTS["one line"](DOCUMENT).encode()
    monkeypatch.setenv(PURE_PYTHON, "1")
    _assert_same(
        _reports(tmp_path / "other", other, monkeypatch, "--no-cache"), expected
    )


@pytest.mark.process
@pytest.mark.real_data
@pytest.mark.parametrize("name", ["nvidia/torch_compile_triton"])
def test_real_traces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = (SHARED / f"{name}.json.gz").read_bytes()
    text = gzip.decompress(packed)
    expected = _reports(
        tmp_path / "serial", packed, monkeypatch, "--jobs", "1", "--no-cache"
    )
    monkeypatch.setattr(json_events, "SLICE_BYTES", 1 << 13)
    _assert_same(_reports(tmp_path / "two", text, monkeypatch, "--jobs", "2"), expected)
    other = msgspec.json.format(text, indent=1)  # the same numbers, digit by digit
    _assert_same(
        _reports(tmp_path / "other", other, monkeypatch, "--jobs", "1"), expected
    )
