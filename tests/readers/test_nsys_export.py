"""Reports of Nsight Systems are converted with `--nsys`; a stand-in takes the place of `nsys`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.nsys_export_maker import training
from tests.support.nsys_report_maker import call, report
from tests.support.statistics_helpers import TWO_GPUS
from tracelens_ext.analysis.nsys_statistics.inputs import event_totals
from tracelens_ext.analysis.nsys_statistics.nvtx_ranges import project_ranges
from tracelens_ext.analysis.nsys_statistics.totals import (
    Total,
    kernel_totals,
    memory_totals,
)
from tracelens_ext.cli import run
from tracelens_ext.cli.named_traces import find_traces
from tracelens_ext.errors import TraceFormatError, TraceNotFoundError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.readers.nsys.csv_tables import NsysCsvReport, open_report, report_in
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import EventKind
from tracelens_ext.trace.linking import link

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens_ext.trace import Trace

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="the program is a script with a #! line"
)

_FAKE = """#!{python}
import pathlib, shutil, sys
here = pathlib.Path(__file__).parent
with (here / "runs").open("a") as runs:
    print(*sys.argv[1:], sep="|", file=runs)
{body}
"""
_EXPORTS = """
given = dict(word.split("=", 1) for word in sys.argv[2:-1])
assert sys.argv[1] == "export" and given["--type"] == "sqlite"
assert pathlib.Path(sys.argv[-1]).read_bytes() == b"a report"
shutil.copy(here / "export", given["--output"])
"""


class Fake:
    """A folder with a program named `nsys`, and a report."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "programs"
        self.folder.mkdir()
        self.program = self.folder / "nsys"
        training().write(self.folder / "export")
        self.report = folder / "run 1.nsys-rep"
        self.report.write_bytes(b"a report")
        self.does(_EXPORTS)

    def does(self, body: str) -> None:
        self.program.write_text(_FAKE.format(python=sys.executable, body=body))
        self.program.chmod(0o755)

    @property
    def runs(self) -> int:
        log = self.folder / "runs"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
    return made


#: The program on the PATH.
BY_NSYS = ReadingOptions(nsys="nsys")


@pytest.fixture
def cache(tmp_path: Path) -> TraceCache:
    return TraceCache(tmp_path / "cache")


def assert_read(trace: Trace, report: Path) -> None:
    assert len(trace) == 26
    assert trace.provenance.path == str(report)
    assert trace.provenance.format.startswith("Nsight Systems")


@pytest.mark.process
@pytest.mark.parametrize("name", ["run 1.nsys-rep", "old.qdrep", "LOUD.NSYS-REP"])
def test_a_report_is_converted(fake: Fake, name: str, tmp_path: Path) -> None:
    report = fake.report.rename(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    assert_read(read_trace(report, reading=BY_NSYS), report)
    assert sorted(tmp_path.iterdir()) == before
    assert fake.runs == 1


@pytest.mark.process
def test_the_program_may_be_given_by_its_path(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    reading = ReadingOptions(nsys=str(fake.program))
    assert_read(read_trace(fake.report, reading=reading), fake.report)


@pytest.mark.process
def test_the_export_is_kept_until_the_report_changes(
    fake: Fake, cache: TraceCache
) -> None:
    for _ in range(2):
        assert_read(read_trace(fake.report, cache=cache, reading=BY_NSYS), fake.report)
    assert fake.runs == 1
    (entry,) = cache.entries()
    assert (entry.path, entry.usable, len(entry.files)) == (str(fake.report), True, 2)
    assert entry.size > (fake.folder / "export").stat().st_size
    os.utime(fake.report, (1, 1))
    assert [entry.usable for entry in cache.entries()] == [False]
    assert_read(read_trace(fake.report, cache=cache, reading=BY_NSYS), fake.report)
    assert fake.runs == 2
    assert not [path for path in cache.folder.iterdir() if path.name.startswith(".")]
    count, size = cache.clear()
    assert (count, size > 10_000) == (1, True)
    assert list(cache.folder.iterdir()) == []


@pytest.mark.process
def test_a_trace_cached_without_nsys_is_not_reused_with_it(
    fake: Fake, cache: TraceCache
) -> None:
    cache.worth_keeping = 0
    fake.report.write_bytes(
        report([call(0, 0, 100)], strings=["cudaLaunchKernel_v7000"])
    )
    assert len(read_trace(fake.report, cache=cache)) == 1
    fake.does(_EXPORTS.replace("assert pathlib", "# assert pathlib"))
    assert_read(read_trace(fake.report, cache=cache, reading=BY_NSYS), fake.report)
    assert len(read_trace(fake.report, cache=cache)) == 1
    assert fake.runs == 1


@pytest.mark.process
def test_an_export_that_is_too_big_is_not_kept(fake: Fake, cache: TraceCache) -> None:
    cache.limit = 1_000
    assert_read(read_trace(fake.report, cache=cache, reading=BY_NSYS), fake.report)
    assert list(cache.folder.iterdir()) == []


@pytest.mark.process
def test_a_report_is_converted_without_a_writable_cache(
    fake: Fake, tmp_path: Path
) -> None:
    notes: list[str] = []
    (tmp_path / "file").write_text("in the way")
    cache = TraceCache(tmp_path / "file" / "cache", tell=notes.append)
    assert_read(read_trace(fake.report, cache=cache, reading=BY_NSYS), fake.report)
    assert "is not kept in the cache" in notes[-1]


@pytest.mark.process
def test_an_abandoned_folder_is_removed(fake: Fake, cache: TraceCache) -> None:
    left = cache.folder / ".nsys-abc.tmp"
    left.mkdir(parents=True)
    (left / "export.sqlite").write_bytes(b"half")
    os.utime(left, (1, 1))
    read_trace(fake.report, cache=cache, reading=BY_NSYS)
    assert not left.exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "print('loading'); sys.exit('Importer error: \\x1b[31mno\\tsuch version\\n\\n')",
            "failed with exit code 1 (Importer error: [31mno such version)",
        ),
        ("print('only here'); sys.exit(3)", "failed with exit code 3 (only here)"),
        (
            "sys.exit('Error: the report is corrupt\\nat 0x12\\nStatus: done')",
            "failed with exit code 1 (Error: the report is corrupt)",
        ),
        ("sys.exit(9)", "failed with exit code 9 (no message)"),
        ("sys.exit('x' * 10_000)", f"({'x' * 300}…)"),
        ("pass", "`nsys export` wrote no database"),
    ],
)
def test_a_failure_of_nsys_is_quoted(
    fake: Fake, cache: TraceCache, body: str, said: str
) -> None:
    fake.does(body)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(fake.report, cache=cache, reading=BY_NSYS)
    assert said in caught.value.problem.replace("\x1b", "")
    assert str(caught.value).isprintable()
    assert list(cache.folder.iterdir()) == []


@pytest.mark.process
def test_an_nsys_that_cannot_be_run_is_reported(fake: Fake) -> None:
    fake.program.write_text("#!/no/such/interpreter\n")
    with pytest.raises(TraceFormatError, match="cannot be run"):
        read_trace(fake.report, reading=BY_NSYS)


@pytest.mark.process
def test_an_nsys_that_writes_something_else_is_reported(fake: Fake) -> None:
    (fake.folder / "export").write_bytes(b"no database at all")
    with pytest.raises(TraceFormatError, match="is a damaged SQLite database"):
        read_trace(fake.report, reading=BY_NSYS)


def test_a_missing_nsys_is_reported(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TraceFormatError) as caught:
        read_trace(fake.report, reading=ReadingOptions(nsys="/opt/nsys"))
    assert "the program /opt/nsys to convert it was not found" in caught.value.problem
    assert "leave out --nsys" in caught.value.remedy
    assert "nsys export --type sqlite" in caught.value.remedy


def test_nsys_is_run_only_where_it_is_named(fake: Fake) -> None:
    with pytest.raises(
        TraceFormatError, match="is not an Nsight Systems report"
    ) as caught:
        read_trace(fake.report)
    assert "--nsys PROGRAM" in caught.value.remedy
    assert fake.runs == 0


def test_other_content_under_the_name_of_a_report(fake: Fake) -> None:
    training().write(fake.report)
    assert len(read_trace(fake.report, reading=BY_NSYS)) == 26
    fake.report.write_bytes(b"")
    with pytest.raises(TraceFormatError, match="is empty"):
        read_trace(fake.report, reading=BY_NSYS)
    fake.report.unlink()
    with pytest.raises(TraceNotFoundError, match="no such file"):
        read_trace(fake.report, reading=BY_NSYS)
    assert fake.runs == 0


@pytest.mark.process
def test_on_the_command_line(
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("TRACELENS_EXT_NO_CACHE")
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(tmp_path / "users"))
    monkeypatch.setenv("COLUMNS", "200")
    for _ in range(2):
        assert run(["kernels", str(fake.report), "--nsys", "nsys"]) == 0
        assert "gemm<float>" in capsys.readouterr().out
    assert fake.runs == 1
    assert run(["cache", "info"]) == 0
    assert "run 1.nsys-rep" in capsys.readouterr().out
    assert run(["kernels", str(fake.report), "--no-cache", "--nsys", "nsys"]) == 0
    assert fake.runs == 2
    assert run(["cache", "clear"]) == 0
    assert "Removed 1 trace" in capsys.readouterr().out
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(["kernels", str(fake.report)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., list[str]]:
    def names(*arguments: str) -> list[str]:
        named = find_traces([str(tmp_path / argument) for argument in arguments])
        assert named.problems == []
        return [path.name for path in named.paths]

    return names


def test_a_folder_lists_reports_and_exports_once(
    tmp_path: Path, listed: Callable[..., list[str]]
) -> None:
    training().write(tmp_path / "a.sqlite")
    for name in ("a.nsys-rep", "b.nsys-rep", "c.qdrep", "trace.json"):
        (tmp_path / name).write_bytes(b"[]")
    with closing(sqlite3.connect(tmp_path / "songs.sqlite")) as other:
        other.execute("create table songs(title text)")
        other.commit()
    (tmp_path / "damaged.sqlite").write_bytes(
        (tmp_path / "a.sqlite").read_bytes()[:3_000]
    )
    expected = ["a.sqlite", "b.nsys-rep", "c.qdrep", "damaged.sqlite", "trace.json"]
    assert listed(".") == expected
    assert listed("*.sqlite") == ["a.sqlite", "damaged.sqlite"]


@pytest.mark.process
def test_a_report_is_recognized_under_another_name(fake: Fake, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.bin"
    content = b"NVIDIA Tegra Profiler Report 1.\n"
    renamed.write_bytes(content)
    fake.does(_EXPORTS.replace('b"a report"', repr(content)))
    assert_read(read_trace(renamed, reading=BY_NSYS), renamed)


# The real program, if an environment variable names it.

_NSYS = os.environ.get("TRACELENS_EXT_TEST_NSYS", "")


@pytest.mark.process
@pytest.mark.skipif(not _NSYS, reason="needs nsys, named in TRACELENS_EXT_TEST_NSYS")
def test_the_real_nsys_gives_the_trace_of_the_report(tmp_path: Path) -> None:
    recording = [
        "-t",
        "nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "-o",
        str(tmp_path / "run"),
    ]
    subprocess.run([_NSYS, "profile", *recording, "/bin/sleep", "0.1"], check=True)
    recorded = tmp_path / "run.nsys-rep"
    reading = ReadingOptions(nsys=_NSYS)
    for options in (reading, ReadingOptions()):
        with pytest.raises(TraceFormatError, match="without CUDA events"):
            read_trace(recorded, reading=options)
    recorded.write_bytes(recorded.read_bytes()[:5_000])
    with pytest.raises(TraceFormatError, match=r"failed with exit code \d+ \(.+\)"):
        read_trace(recorded, reading=reading)


@pytest.mark.process
@pytest.mark.skipif(not _NSYS, reason="needs nsys, named in TRACELENS_EXT_TEST_NSYS")
@pytest.mark.real_data
def test_tables_of_the_real_nsys_agree_with_the_events(tmp_path: Path) -> None:
    shutil.copyfile(TWO_GPUS, tmp_path / "run.sqlite")  # nsys writes into it
    for reports in (
        "gpukernsum,gpumemtimesum,nvtxgpuproj",  # in 2022
        "cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,nvtx_gpu_proj_trace",
    ):
        options = ["-r", reports, "--format", "csv", "-o", str(tmp_path / "run")]
        command = [_NSYS, "stats", *options, str(tmp_path / "run.sqlite")]
        subprocess.run(command, check=False, capture_output=True)
    tables = {report_in(path.read_bytes()): path for path in tmp_path.glob("run_*.csv")}

    trace = read_trace(TWO_GPUS, cache=False)
    totals = event_totals(trace)
    assert _sums(kernel_totals(tables[NsysCsvReport.KERNELS])) == _sums(totals.kernels)
    # Versions name copies differently.
    assert [*_sums(memory_totals(tables[NsysCsvReport.MEMORY_TIME])).values()] == [
        *_sums(totals.memory or []).values()
    ]
    ranges = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    ours = project_ranges(trace, link(trace), ranges)
    assert sorted(_projections(tables[NsysCsvReport.RANGES])) == sorted(
        zip(ours["start"] + trace.base_ns, ours["end"] - ours["start"], strict=True)
    )


def _sums(totals: list[Total]) -> dict[str, tuple[int, int]]:
    return {total.name: (total.time_ns, total.instances) for total in totals}


def _projections(table: Path) -> list[tuple[int, ...]]:
    names = ("projectedstart", "projectedduration")
    return [
        row
        for piece in open_report(table, NsysCsvReport.RANGES).batches
        for row in zip(
            *(piece.required(n, piece.nanoseconds(n)) for n in names), strict=True
        )
    ]
