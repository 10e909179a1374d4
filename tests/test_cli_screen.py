"""What is on a screen of some width, in a pipe, and in every help; what people type by habit."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from tracelens_ext.cli import run
from tracelens_ext.cli.app import _made, offered_commands
from tracelens_ext.cli.screen import all_notes, console, show_notes

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
    "findings": ["The data loader", "13.7 ms"],
    "what-if": ["GEMM", "47.620"],
    "roofline": ["_flash_attention_forward", "SDPA_bwd", "18.850"],
    "phases --phase train=ProfilerStep": ["train", "45.852"],
}


def printed(command: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> str:
    name, *options = command.split()
    assert run([name, str(trace), *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_important_fits_80_columns(
    command: str,
    demo_trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = printed(command, demo_trace, capsys)
    assert [each for each in COMMANDS[command] if each not in narrow] == []
    long = [line for line in narrow.splitlines() if len(line) > 80 and str(demo_trace) not in line]
    assert long == []


@pytest.mark.parametrize("command", ["kernels", "tree"])
def test_pipes_have_200_columns(
    command: str,
    short_demo_trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = printed(command, short_demo_trace, capsys)
    assert max(map(len, piped.splitlines())) > 120
    monkeypatch.setenv("COLUMNS", "200")
    assert printed(command, short_demo_trace, capsys) == piped


def test_notes_take_five_lines_and_the_rest_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    notes = ["one " * 15, "two " * 15, "three", "four"]

    def shown(given: list[str]) -> list[str]:
        show_notes(given, console())
        return capsys.readouterr().out.splitlines()

    assert shown(notes[2:]) == ["three", "four"]
    assert shown(notes)[-1] == "and 2 more notes: --notes"
    assert len(shown(notes)) == 5
    assert shown(["long " * 90])[-2:] == [("long " * 8).strip() + " …", "and 1 more note: --notes"]
    asked = all_notes.set(True)
    assert len(shown(notes)) == 6
    all_notes.reset(asked)


@pytest.mark.parametrize("name", offered_commands())
def test_every_help_ends_with_three_examples_that_can_be_typed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([name, "-h"]) == 0
    shown = capsys.readouterr().out
    examples = offered_commands()[name].examples
    assert len(set(examples)) == 3
    assert [line.strip() for line in shown.splitlines()[-3:]] == [
        f"tracelens-ext {each}" for each in examples
    ]
    assert not re.search(r"<(int|str|float|path|list)|list\[|[{]TRACE", shown)
    for example in examples:
        words = shlex.split(re.split(r" [|>] (?=[a-z])", example)[0])
        command = _made(offered_commands()[words.pop(0)])
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
        ("fleet --trace_dir x", "tracelens-ext fleet FOLDER -o RESULTS, or report FOLDER"),
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
