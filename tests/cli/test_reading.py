"""The options about reading, on the command line and in Python: limits, processes, damage."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.comparison_helpers import training
from tests.support.docs_helpers import code_blocks, page_text
from tests.support.make_trace import kineto_layout
from tracelens_ext import TreePerfAnalyzer, generate_perf_report_pytorch
from tracelens_ext.cli import parallel, run
from tracelens_ext.cli.app import app
from tracelens_ext.errors import TraceCutOffError, TraceError, TraceTooLargeError
from tracelens_ext.readers import ahead, read_trace, source
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import ReadingOptions, size_text

SALVAGING = ReadingOptions(allow_truncated=True)
PAGE = "large-and-damaged-traces.md"
OPTIONS = (
    "--allow-truncated",
    "--max-bytes",
    "--jobs",
    "--nsys",
    "--kernel-annotations",
    "--rank",
    "--no-cache",
    "--verify-cache",
    "--notes",
)
#: Of commands that look into CUDA graphs.
OF_GRAPHS = "--kernel-annotations"
WHOLE = kineto_layout(training(40).document()).encode()
#: A few bytes before the end of an event in the middle.
CUT = WHOLE[: WHOLE.index(b"}", len(WHOLE) // 2) - 3]


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "cut.json").write_bytes(CUT)
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(WHOLE)[:-500])
    (tmp_path / "whole.json").write_bytes(WHOLE)
    return tmp_path / "cut.json"


@pytest.mark.parametrize(
    "command", ["report", "compare", "iterations", "tree", "kernels", "gaps", "fleet"]
)
def test_every_command_that_reads_has_the_options(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    shown = shown.partition("\n  Examples:")[0]
    own, _, shared = shown.partition(
        "Options for reading traces (described in 'tracelens-ext --help'):"
    )
    looks = command in ("report", "tree", "kernels", "compare", "iterations")
    expected = [option for option in OPTIONS if looks or option != OF_GRAPHS]
    assert [option for option in OPTIONS if option in shared] == expected
    assert not any(re.search(rf"{option}\b", own) for option in OPTIONS), (
        "the command's own options come first"
    )
    if command not in ("report", "kernels", "compare"):
        assert len(shown.splitlines()) <= 32


def test_the_program_explains_the_options_about_reading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out.partition(
        "Options of every command that reads traces:"
    )[2]
    shown = shown.partition("\nShell completion:")[0]
    assert [line.split()[0] for line in shown.splitlines() if line[2:3].strip()] == [
        *OPTIONS
    ]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {"allow_truncated": False, "max_bytes": None, "jobs": None, "nsys": None}),
        (["--allow-truncated", "--jobs", "3"], {"allow_truncated": True, "jobs": 3}),
        (
            ["--max-bytes", "1.5 GB", "--nsys", "/x/nsys"],
            {"max_bytes": 15 * 10**8, "nsys": "/x/nsys"},
        ),
        (["--max-bytes", "2GiB"], {"max_bytes": 2 << 30}),
        (["--max-bytes", "100"], {"max_bytes": 100}),
    ],
)
def test_readers_find_what_was_chosen(
    options: list[str],
    settings: dict[str, Any],
    cut: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tracelens_ext import analyzer

    seen = []

    def noted(*_: object, reading: ReadingOptions, **__: object) -> object:
        seen.append(reading)
        return read_trace(training(2).document())

    monkeypatch.setattr(analyzer, "read_trace", noted)
    assert run(["kernels", str(cut), *options]) == 0
    assert {name: getattr(seen[0], name) for name in settings} == settings


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ["--max-bytes", "5 bananas"],
            "--max-bytes '5 bananas' is not a size; write it as 5GB",
        ),
        (["--max-bytes", "0"], "--max-bytes '0' is not a size"),
        (["--max-bytes", "-1GB"], "is not a size"),
        (["--jobs", "0"], "--jobs"),
        (["--jobs", "many"], "--jobs"),
    ],
)
def test_wrong_usage(
    options: list[str], problem: str, cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tree", str(cut), *options]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


# Salvage.


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
@pytest.mark.parametrize("command", ["report", "tree", "kernels", "gaps", "iterations"])
@pytest.mark.usefixtures("few_tables")
def test_without_it_the_error_names_it_and_with_it_the_loss_is_told(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, name]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tracelens-ext: {name}: ")
    assert error.endswith("or analyze what comes before that with --allow-truncated\n")
    assert run([command, name, "--allow-truncated"]) == 0
    shown = capsys.readouterr()
    assert shown.out
    assert f"tracelens-ext: {name}: Salvaged (the " in shown.err
    assert shown.err.endswith("lost.\n")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("output", ["x.xlsx", "x.json", "x.md", "x.html"])
@pytest.mark.usefixtures("few_tables")
def test_every_report_says_what_is_lost(output: str, cut: Path) -> None:
    if output.endswith("html"):
        pytest.importorskip("plotly")
        pytest.importorskip("jinja2")
    option = "--html" if output.endswith("html") else "-o"
    assert run(["report", str(cut), "--allow-truncated", "-q", option, output]) == 0
    if output.endswith("xlsx"):
        with zipfile.ZipFile(output) as package:
            text = "".join(
                package.read(name).decode()
                for name in package.namelist()
                if name.endswith("xml")
            )
    else:
        text = cut.with_name(output).read_text(encoding="utf-8")
    assert "Salvaged (the JSON ends prematurely, after" in text


def test_nothing_is_said_of_a_trace_that_is_whole(
    cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(cut.with_name("whole.json"))
    assert run(["tree", path]) == 0
    plain = capsys.readouterr()
    assert run(["tree", path, "--allow-truncated"]) == 0
    assert capsys.readouterr() == plain


def test_in_python(cut: Path) -> None:
    with pytest.raises(TraceCutOffError):
        TreePerfAnalyzer(cut)
    analyzer = TreePerfAnalyzer.from_file(cut, allow_truncated=True)
    same = TreePerfAnalyzer(cut, reading=SALVAGING)
    (note,) = analyzer.trace.provenance.notes
    assert same.trace.provenance.notes == (note,)
    before = len(json.loads(CUT[: CUT.rindex(b"},")] + b"}]}")["traceEvents"])
    assert len(analyzer.trace) == analyzer.trace.provenance.present == before
    assert f"all {before:,} events before byte" in note
    with pytest.raises(TraceCutOffError):
        generate_perf_report_pytorch(cut, cut.with_name("x.xlsx"))
    assert generate_perf_report_pytorch(
        cut, cut.with_name("x.xlsx"), allow_truncated=True
    )


def test_every_cut_gives_every_event_before_it(tmp_path: Path) -> None:
    """And the note counts the bytes that are lost."""
    document = training(1).document()
    events = document["traceEvents"]
    data = kineto_layout(document).encode()
    path = tmp_path / "cut.json"
    whole = read_trace(document)
    for length in range(len(data.rstrip()) - 1, 0, -7):
        path.write_bytes(data[:length])
        complete = sum(data.find(_end_of(event), 0, length) >= 0 for event in events)
        if not complete:
            with pytest.raises(TraceError):
                read_trace(path, reading=SALVAGING)
            continue
        trace = read_trace(path, reading=SALVAGING)
        assert trace.provenance.present == complete
        assert trace.ts.tolist() == whole.ts[: len(trace)].tolist()
        (note,) = trace.provenance.notes
        assert f"all {complete:,} events" in note


def _end_of(event: dict[str, Any]) -> bytes:
    """What only that event of a trace in Kineto's layout ends with."""
    (text,) = (
        part for part in kineto_layout({"traceEvents": [event]}).split("[\n", 1)[1:]
    )
    return text[: text.rindex("}", 0, text.rindex("]")) + 1].strip().encode()


def test_damage_before_the_first_event_is_an_error_still(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    for text in (
        '{"schemaVersion": 1, "dev',
        '{"traceEvents": [{"ph": "X", ',
        '{"traceEvents": [%',
    ):
        path.write_text(text)
        with pytest.raises(TraceError) as caught:
            read_trace(path, reading=SALVAGING)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("damage", ["garbage", "two documents"])
def test_damage_in_the_middle(damage: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    place = WHOLE.index(b'"ph"', len(WHOLE) // 2)
    if damage == "garbage":
        data = WHOLE[:place] + b"%%%" + WHOLE[place:]
        problem = "is not valid JSON at byte"
        lost = len(data) - WHOLE.rindex(b"{", 0, place)
    else:
        data = WHOLE + WHOLE
        problem = "has more data after the end"
        lost = len(WHOLE)
    path.write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(TraceError, match=f"{problem}.*--allow-truncated$"):
        read_trace(path)
    trace = read_trace(path, reading=SALVAGING)
    (note,) = trace.provenance.notes
    assert problem in note
    assert f"the last {lost:,} bytes" in note
    whole = read_trace(training(40).document())
    assert trace.names == whole.names[: len(trace.names)]
    assert trace.ts.tolist() == whole.ts[: len(trace)].tolist()
    assert len(trace) >= len(whole) // 3


def test_a_check_sum_that_does_not_agree(tmp_path: Path) -> None:
    path = tmp_path / "damaged.json.gz"
    data = gzip.compress(WHOLE)
    path.write_bytes(data[:-8] + bytes(4) + data[-4:])
    trace = read_trace(path, reading=SALVAGING)
    assert len(trace) == len(read_trace(training(40).document()))
    assert "values before it may be wrong" in trace.provenance.notes[0]


def test_what_is_salvaged_is_never_cached(cut: Path) -> None:
    cache = TraceCache(cut.parent / "cache", worth_keeping=0)
    read_trace(cut, cache=cache, reading=SALVAGING)
    with pytest.raises(TraceCutOffError):
        read_trace(cut, cache=cache)
    assert not cache.folder.exists()


# The most bytes.


def bomb(path: Path, size: int) -> Path:
    """A file that unpacks to so many bytes, beginning as a trace does."""
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        event = json.dumps(
            {"ph": "X", "cat": "cpu_op", "name": " " * 10**6, "ts": 1, "dur": 1}
        )
        for _ in range(size // len(event)):
            file.write(event.encode() + b",")
        file.write(b"]}")
    return path


def test_a_gzip_bomb_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bomb(tmp_path / "bomb.json.gz", 30 * 10**6)
    assert path.stat().st_size < 100_000
    for allow_truncated in ([], ["--allow-truncated"]):
        assert run(["tree", str(path), "--max-bytes", "20MB", *allow_truncated]) == 1
        assert capsys.readouterr().err == (
            f"tracelens-ext: {path}: unpacks to more than 20 MB of text; if you trust it, raise"
            " the limit with --max-bytes\n"
        )


def test_by_default_so_many_times_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bomb(tmp_path / "bomb.json.gz", 30 * 10**6)
    read_trace(path, cache=False)  # below the size that is always allowed
    monkeypatch.setattr(source, "_ALLOWED_BYTES", 10**6)
    allowed = size_text(100 * path.stat().st_size)
    with pytest.raises(
        TraceTooLargeError, match=f"than {allowed} of text, 100 times its size; "
    ):
        read_trace(path)
    read_trace(path, reading=ReadingOptions(max_bytes=40 * 10**6))
    monkeypatch.setattr(source, "_MOST_BYTES", 2 * 10**6)
    with pytest.raises(TraceTooLargeError, match="than 2 MB of text; "):
        read_trace(path)


def test_a_plain_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(65 * 10**9)
    with pytest.raises(TraceTooLargeError, match="holds more than 64 GB of text; "):
        read_trace(path)


def test_the_limit_holds_whatever_is_cached(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE)
    cache = TraceCache(tmp_path / "cache", worth_keeping=0)
    read_trace(path, cache=cache)
    with pytest.raises(TraceTooLargeError):
        read_trace(path, cache=cache, reading=ReadingOptions(max_bytes=len(WHOLE) - 1))
    read_trace(path, cache=cache, reading=ReadingOptions(max_bytes=len(WHOLE)))


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (10**6, "1 MB"),
        (64 * 10**9, "64 GB"),
    ],
)
def test_sizes_as_people_write_them(size: int, shown: str) -> None:
    assert size_text(size) == shown


def test_the_options_are_the_last_of_the_help() -> None:
    import typer.main

    group: Any = typer.main.get_command(app)
    names = [name for p in group.get_command(None, "kernels").params for name in p.opts]
    assert names[-len(OPTIONS) :] == list(OPTIONS)


# The page about all this.


def blocks(language: str) -> list[str]:
    text = page_text(PAGE).partition("\n## The cache of parsed traces\n")[0]
    return code_blocks(text, language)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.json.gz").write_bytes(gzip.compress(WHOLE))
    Path("cut_off.json.gz").write_bytes(gzip.compress(WHOLE)[:-500])


@pytest.mark.usefixtures("page")
def test_the_commands_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    commands = [
        line.removeprefix("$ ") for line in lines if line.startswith("$ tracelens-ext")
    ]
    assert len(commands) >= 4
    for command in commands:
        assert run(shlex.split(command)[1:]) == 0, command
        assert bool(capsys.readouterr().err) is ("--allow-truncated" in command)


@pytest.mark.usefixtures("page")
def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks("python"):
        exec(compile(code, PAGE, "exec"), {})  # noqa: S102  # the page's own
    assert "Salvaged (" in capsys.readouterr().out


def test_the_page_names_every_limit() -> None:
    text = page_text(PAGE) + page_text("files.md")
    assert source._MOST_BYTES == 64 * 10**9
    assert source._ALLOWED_BYTES == 2 * 10**8
    assert f"{source._ALLOWED_EXPANSION} times" in text
    assert f"{ahead.WORTHWHILE_BYTES // 10**6} MB of text or more" in text
    assert f"({parallel.WORTHWHILE_BYTES // 10**6} MB of text together" in text
