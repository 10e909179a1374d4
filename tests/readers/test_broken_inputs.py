"""Every broken input gives the numbers, or the message and exit code, in its sidecar file."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broken_input_helpers import (
    FOLDER,
    SUFFIX,
    agrees,
    corpus,
    expectation,
    outcome,
    portable,
)
from tests.support.trace_properties import what_was_read
from tracelens_ext.cli import run
from tracelens_ext.readers import read_trace
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from pathlib import Path

ALL = [path.name for path in corpus()]
USABLE = [name for name in ALL if expectation(FOLDER / name)["exit"] == 0]
BROKEN = [name for name in ALL if name not in USABLE]
FAILS = {"exit", "error"}
WORKS = {"exit", "events", "dropped", "kernels", "unlinked", "notes"}


def test_the_corpus_is_large_and_every_file_has_its_expectation() -> None:
    assert len(ALL) >= 60
    sidecars = {path.name for path in FOLDER.iterdir() if path.suffix == SUFFIX}
    assert sidecars == {name + SUFFIX for name in ALL}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 400_000


def test_every_expectation_is_complete() -> None:
    for name in ALL:
        expected = expectation(FOLDER / name)
        for each in (expected, expected.get("allow_truncated", expected)):
            given = set(each) - {"allow_truncated"}
            assert given == (WORKS if each["exit"] == 0 else FAILS), name


def _some(names: list[str], every: int) -> list[Any]:
    """Return the names for a test; `make test` uses only every nth of them."""
    return [
        name if number % every == 0 else pytest.param(name, marks=pytest.mark.slow)
        for number, name in enumerate(names)
    ]


@pytest.mark.parametrize("name", [*_some(BROKEN, 2), *_some(USABLE, 6)])
def test_a_report_of_each_broken_input_is_as_expected(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = outcome(FOLDER / name, tmp_path, capfd)
    assert agrees(found, expectation(FOLDER / name)), found


@pytest.mark.parametrize("name", _some(BROKEN, 3))
def test_allow_truncated_salvages_what_is_expected(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The events before the damage are salvaged; without such events, the message is the same."""
    expected = expectation(FOLDER / name)
    found = outcome(FOLDER / name, tmp_path, capfd, "--allow-truncated")
    assert agrees(found, expected.get("allow_truncated", expected)), found


@pytest.mark.parametrize(
    "name", [*_some(BROKEN[1:] + BROKEN[:1], 2), *_some(USABLE[::4], 2)]
)
def test_kernels_of_each_broken_input_are_as_expected(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another command gives the same message, or the same number of launches."""
    expected = expectation(FOLDER / name)
    code = run(["kernels", str(FOLDER / name), "--json"])
    printed, said = capfd.readouterr()
    assert code == expected["exit"]
    assert "Traceback" not in said
    if code:
        assert printed == ""
        line = portable(
            said.removeprefix(f"tracelens-ext: {FOLDER / name}: ").removesuffix("\n")
        )
        assert agrees({"exit": code, "error": line}, expected), said
        return
    rows = json.loads(printed)["tables"]["kernel_statistics"]
    launches = sum(count for count, _ in expected["kernels"].values())
    assert sum(row["count"] for row in rows) == launches


@pytest.mark.parametrize("name", _some([name for name in USABLE if ".json" in name], 2))
def test_every_event_is_accounted_for_in_every_kind_of_source(
    name: str, tmp_path: Path
) -> None:
    """Read and dropped events add up; the name of the file and compression make no difference."""
    data = (FOLDER / name).read_bytes()
    trace = read_trace(FOLDER / name)
    made = trace.provenance
    assert made.present == len(trace) + made.metadata_events + sum(
        made.dropped.values()
    )
    assert made.present == expectation(FOLDER / name)["events"]
    assert dict(made.dropped) == expectation(FOLDER / name)["dropped"]
    other = tmp_path / "another name.txt"
    other.write_bytes(data)
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    for source in (
        other,
        io.BytesIO(data),
        io.BytesIO(text),
        io.BytesIO(gzip.compress(text)),
    ):
        assert what_was_read(read_trace(source)) == what_was_read(trace)
    assert (
        read_trace(other, reading=ReadingOptions(allow_truncated=True)).provenance.notes
        == ()
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [
        "cut_off_in_a_name.json",
        "cut_off_in_the_stream.json.gz",
        "invalid_utf_8.json",
        "correlation_shared_by_processes.json",
        "no_ts.json",
        "damaged_header.sqlite",
    ],
)
def test_the_program_exits_with_the_expected_code(name: str, tmp_path: Path) -> None:
    expected = expectation(FOLDER / name)
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_ext", "kernels", str(FOLDER / name)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == expected["exit"]
    assert done.stderr.count("\n") == bool(expected["exit"] or expected.get("dropped"))
    assert list(tmp_path.iterdir()) == []


def test_several_broken_traces_do_not_spoil_a_good_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each broken trace gets a line, and the good one is reported."""
    names = [
        "cut_off_in_a_name.json",
        "unsorted.json",
        "empty.json",
        "two_documents.json",
    ]
    arguments: list[Any] = [str(FOLDER / name) for name in names]
    assert (
        run(["report", *arguments, "-o", f"{tmp_path}/", "--format", "json", "--quiet"])
        == 1
    )
    printed, said = capfd.readouterr()
    assert printed == ""
    told = [line.split(": ")[1] for line in said.splitlines()]
    assert told == [str(FOLDER / name) for name in names if name != "unsorted.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["unsorted_perf_report.json"]
