"""The cache on the command line: on for large traces, and no difference but the time."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from tests.support.comparison_helpers import training, write
from tests.support.docs_helpers import code_blocks, page_text
from tracelens_ext.cli import run
from tracelens_ext.cli.app import app
from tracelens_ext.readers.cache.store import TraceCache

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Commands that read no trace, or read it by other commands.
NOT_READING = {"demo", "explain", "formats", "mcp", "ranks", "record"}
PAGE = "large-and-damaged-traces.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of these tests; every trace is worth keeping in it."""
    here = tmp_path / "cache"
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(here))
    monkeypatch.delenv("TRACELENS_EXT_CACHE_SIZE", raising=False)
    monkeypatch.delenv("TRACELENS_EXT_NO_CACHE", raising=False)
    monkeypatch.setattr("tracelens_ext.readers.cache.store.WORTH_KEEPING", 0)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.json", training(3))
    write(tmp_path / "b.json", training(4, gemm_us=50))
    return here


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were parsed."""
    from tracelens_ext.readers import formats

    names: list[str] = []
    original = formats.read_file

    def noted(source: object, *rest: Any, **options: Any) -> object:
        names.append(str(source))
        return original(source, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(formats, "read_file", noted)
    yield names


COMMANDS = [
    ["report", "a.json", "-o", "out/x.json", "--short-kernel-study"],
    ["iterations", "a.json", "--json"],
    ["kernels", "a.json"],
    ["gaps", "a.json"],
    ["tree", "a.json"],
    ["tree", "a.json", "--folded"],
]


def outcome(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[object, ...]:
    """Exit code, what is printed, and every file that is written."""
    code = run([*arguments])
    out, err = capsys.readouterr()
    written = {path.name: path.read_bytes() for path in sorted(Path("out").glob("*"))}
    return code, out, err, written


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        pytest.param(
            ["compare", "a.json", "b.json", "-o", "out/x.json"], marks=pytest.mark.slow
        ),
    ],
    ids=" ".join,
)
def test_the_result_is_the_same_to_the_byte(
    command: list[str], capsys: pytest.CaptureFixture[str], parsed: list[str]
) -> None:
    plain = outcome([*command, "--no-cache"], capsys)
    first = outcome(command, capsys)
    count = len(parsed)
    second = outcome(command, capsys)
    assert plain[0] == 0
    assert len(parsed) == count, "nothing was parsed the second time"
    assert plain == first
    assert first == second


@pytest.mark.parametrize("switch", ["option", "variable"])
def test_it_can_be_switched_off(
    switch: str, folder: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[str]
) -> None:
    option = ["--no-cache"] if switch == "option" else []
    if switch == "variable":
        monkeypatch.setenv("TRACELENS_EXT_NO_CACHE", "1")
    for _ in range(2):
        assert run(["tree", "a.json", *option]) == 0
    assert len(parsed) == 2
    assert not folder.exists()


def test_small_traces_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(folder))
    assert run(["tree", str(folder.parent / "a.json")]) == 0
    assert not folder.exists()


def test_every_command_that_reads_a_trace_has_the_options() -> None:
    group: Any = typer.main.get_command(app)
    every = {name: group.get_command(None, name) for name in group.commands}
    single = {
        n: command for n, command in every.items() if not hasattr(command, "commands")
    }
    assert {"report", "demo"} <= single.keys()
    for name, command in single.items():
        has = "no_cache" in (parameter.name for parameter in command.params)
        assert has is (name not in NOT_READING), name


def test_a_stale_entry_costs_a_line(
    capsys: pytest.CaptureFixture[str], parsed: list[str]
) -> None:
    run(["tree", "a.json"])
    write(Path("a.json"), training(2))
    capsys.readouterr()
    assert run(["tree", "a.json"]) == 0
    err = capsys.readouterr().err
    assert re.fullmatch(
        r"tracelens-ext: .*a\.json: has changed since it was cached; .*\n", err
    )
    assert len(parsed) == 2


def test_verify(parsed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(["iterations", "a.json", "--verify-cache"]) == 0
    assert len(parsed) == 1
    assert capsys.readouterr().err == ""


def test_a_cache_that_cannot_be_written_costs_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write_text("in the way")
    assert run(["tree", "a.json"]) == 0
    out, err = capsys.readouterr()
    assert "GPU busy time" in out
    assert "TRACELENS_EXT_NO_CACHE=1" in err


def test_a_cache_that_cannot_be_looked_at_is_not_called_empty(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    folder.write_text("in the way")
    for command in ("info", "clear"):
        assert run(["cache", command]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"tracelens-ext: {folder}: cannot be used (")


def test_what_cannot_be_removed_is_not_called_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["tree", "a.json"]) == 0

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    capsys.readouterr()
    assert run(["cache", "clear"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Permission denied" in shown.err


def test_info_and_clear(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert run(["cache", "info"]) == 0
    assert (
        f"Folder: {folder}\nTraces: 0, 0.0 MB of 5,000.0 MB" in capsys.readouterr().out
    )
    run(["tree", "a.json"])
    run(["tree", "b.json"])
    write(Path("b.json"), training(1))
    capsys.readouterr()
    assert run(["cache", "info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {Path(line.split()[0]).name: line.split()[-1] for line in lines[-2:]}
    assert states == {"a.json": "usable", "b.json": "outdated"}
    assert run(["cache", "clear"]) == 0
    assert re.fullmatch(r"Removed 2 traces, [0-9.]+ MB\n", capsys.readouterr().out)
    assert list(folder.iterdir()) == []


def test_a_wrong_size_is_a_wrong_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_EXT_CACHE_SIZE", "huge")
    for arguments in (["cache", "info"], ["tree", "a.json"]):
        assert run(arguments) == 2
        assert "write it as 5GB" in capsys.readouterr().err


def test_json_says_nothing_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        run(["iterations", "a.json", "--json"])
        assert "cache" not in json.dumps(json.loads(capsys.readouterr().out))


def blocks(language: str) -> list[str]:
    text = page_text(PAGE).partition("\n## The cache of parsed traces\n")[2]
    return code_blocks(text, language)


def test_the_commands_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    commands = [
        line.removeprefix("$ ") for line in lines if line.startswith("$ tracelens-ext")
    ]
    assert len(commands) >= 3
    for command in commands:
        assert run(shlex.split(command, comments=True)[1:]) == 0, command
        assert capsys.readouterr().err == ""


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "trace.json", training(3))
    monkeypatch.setenv("HOME", str(tmp_path))
    for code in blocks("python"):
        exec(compile(code, PAGE, "exec"), {})  # noqa: S102  # the page's own
    assert TraceCache(tmp_path / "traces").entries() == [], "small traces are not kept"
