"""What is on a screen of some width, in a pipe, and in every help; what people type by habit."""

from __future__ import annotations

import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fleet_helpers import needs_fleet, write_ranks
from tracelens_ext.cli import run
from tracelens_ext.cli.app import build_command, offered_commands
from tracelens_ext.cli.screen import console, show_notes

if TYPE_CHECKING:
    from pathlib import Path

#: Command → what has to be on a screen of 80 columns.
COMMANDS = {
    "report --no-workbook": ["flash_bwd_dq", "25.618", "GEMM", "49.676"],
    "kernels --gaps --top 3": ["nvjet_tst_64x16", "576", "Avg Gap (ms)"],
    "gaps --top 3": ["idle_", "gap_ms", "cause"],
    "iterations": ["ProfilerStep#5", "49.852"],
    "tree": ["flash_bwd_dq", "busy_time_ms", "24.005"],
    "memory": ["aten::linear", "GB", "1.498"],
    "counters": ["HtoD", "23.826"],
    "findings": ["GPU waits for the data loader", "13.7 ms"],
    "what-if": ["GEMM", "47.620"],
    "roofline": ["_flash_attention_forward", "SDPA_bwd", "18.850"],
    "phases --phase train=ProfilerStep": ["train", "45.852"],
}


ON_TRACES = [f"{command} " for command in COMMANDS]
#: What prints whatever a trace holds, in a folder with `t.json.gz`, two of its like, and `ranks/`.
OTHERS: list[Any] = [
    "cache clear",
    "cache info",
    "chart --categorizer builtin t.json.gz --out-dir chart --force",
    "compare t.json.gz ranks/rank0.json.gz",
    "demo d.json.gz",
    "explain ampere_sgemm_128x64_tn",
    "export t.json.gz -o small.json.gz --force",
    pytest.param("fleet ranks -o NEW --workers 0", marks=needs_fleet),
    "formats",
    "nsys stats t.json.gz --iterations 2",
    "plugins",
    "plugins list",
    "plugins new my-kernels --folder NEW",
    pytest.param("ranks results", marks=needs_fleet),
    "reproduce t.json.gz",
    "report --no-workbook --compare t.json.gz ranks/rank0.json.gz",
    "rules list --category GEMM",
    "rules show gemm",
    "rules suggest t.json.gz",
    "sql t.json.gz 'select * from kernel_summary'",
]
NOT_RUN = {
    "record": "runs a program, whose output it leaves alone",
    "mcp": "speaks with a program until that hangs up",
    "rules check": "tries all rules, which takes long; its output knows no width",
}


def test_every_command_is_shown_here() -> None:
    named = [each if isinstance(each, str) else str(each.values[0]) for each in OTHERS]
    words = {*COMMANDS, *named, *NOT_RUN}
    for name in offered_commands():
        of_several = getattr(build_command(offered_commands()[name]), "commands", [""])
        for each in of_several:
            command = f"{name} {each}".strip()
            assert any(f"{line} ".startswith(f"{command} ") for line in words), command


@pytest.fixture(scope="module")
def folder(short_demo_trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("screen")
    shutil.copy(short_demo_trace, made / "t.json.gz")
    write_ranks(made / "ranks", dict.fromkeys(range(4), 100))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [*(each.replace(" ", " t.json.gz ", 1) for each in ON_TRACES), *OTHERS]
)
def test_pipes_have_200_columns(
    command: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setattr("tracelens_ext.readers.cache.store.WORTH_KEEPING", 0)
    run(["counters", "t.json.gz"])  # which is then in the cache
    if command == "ranks results":
        assert run(shlex.split("fleet ranks -o results --workers 0")) == 0
    shown = []
    for columns in (None, "200"):
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", columns)
        capsys.readouterr()
        words = command.replace("NEW", f"new{columns}")
        assert run(shlex.split(words)) == 0
        shown.append(capsys.readouterr().out.replace(f"new{columns}", "new"))
    assert shown[0] == shown[1] != ""


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_important_fits_80_columns(
    command: str,
    demo_trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, *options = command.split()
    assert run([name, str(demo_trace), *options]) == 0
    narrow = capsys.readouterr().out
    assert [each for each in COMMANDS[command] if each not in narrow] == []
    long = [
        line
        for line in narrow.splitlines()
        if len(line) > 80 and str(demo_trace) not in line
    ]
    assert long == []


def test_notes_take_five_lines_and_the_rest_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    notes = ["one " * 15, "two " * 15, "three", "four"]

    def shown(given: list[str], *, whole: bool = False) -> list[str]:
        show_notes(given, console(), whole=whole)
        return capsys.readouterr().out.splitlines()

    assert shown(notes[2:]) == ["three", "four"]
    assert shown(notes)[-1] == "and 2 more notes; show them with --notes"
    assert len(shown(notes)) == 5
    assert shown(["long " * 90])[-2:] == [
        ("long " * 8).strip() + " …",
        "and 1 more note; show them with --notes",
    ]
    assert len(shown(notes, whole=True)) == 6


@pytest.mark.parametrize("name", offered_commands())
def test_every_help_ends_with_examples_that_can_be_typed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tracelens_ext.roofline.peaks.read_peaks", str)  # no such file
    assert run([name, "-h"]) == 0
    shown = capsys.readouterr().out
    examples = offered_commands()[name].examples
    assert len(set(examples)) >= 3
    assert [line.strip() for line in shown.splitlines()[-len(examples) :]] == [
        f"tracelens-ext {each}" for each in examples
    ]
    assert not re.search(r"<(int|str|float|path|list)|list\[|[{]TRACE", shown)
    for example in examples:
        words = shlex.split(re.split(r" [|>] (?=[a-z])", example)[0])
        command = build_command(offered_commands()[words.pop(0)])
        while hasattr(command, "commands") and words:
            command = command.commands[words.pop(0)]
        with command.make_context(name, words):
            pass


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        ("report --profile_json_path x.json", "tracelens-ext report TRACE"),
        ("--profile_json_path x.json", "tracelens-ext report TRACE"),
        ("report --output_xlsx_path=x.xlsx", "--output FILE.xlsx of report"),
        ("report --output_csvs_dir x", "--csv-dir FOLDER of report"),
        ("report --gpu_arch_json_path x", "--device-peaks FILE of report or roofline"),
        ("report --enable_kernel_summary", "--kernel-summary of report"),
        ("kernels --short_kernel_study", "--short-kernel-study of report"),
        (
            "fleet --trace_dir x",
            "tracelens-ext fleet FOLDER -o RESULTS, or report FOLDER",
        ),
    ],
)
def test_options_of_other_programs_are_told_by_our_name(
    typed: str, here: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split()) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"; here: {here}; see 'tracelens-ext" in told


def test_a_bare_trace_shows_its_report_and_writes_nothing(
    short_demo_trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(short_demo_trace.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert run(["trace.json.gz", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "What would save the most time" in out
    assert "Top 2 kernels" in out
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]
    assert run(["absent.json.gz"]) == 1
    assert "absent.json.gz: no such file" in capsys.readouterr().err
    assert run(["repotr"]) == 2
    assert "Did you mean 'report'" in capsys.readouterr().err
