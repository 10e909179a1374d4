"""The commands of docs/record.md: their options are there, whatever the program is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tracelens_ext.cli.app import made_command, offered_commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "record.md"
COMMANDS = re.findall(
    r"^\$ tracelens-ext record (.*)$", PAGE.read_text("utf-8"), re.MULTILINE
)


def test_every_way_to_record_has_an_example() -> None:
    programs = " ".join(COMMANDS)
    for program in ("python", "accelerate", "torchrun", "srun", "vllm", "pytest"):
        assert program in programs


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str) -> None:
    words = shlex.split(command)
    record = made_command(offered_commands()["record"])
    context = record.make_context("record", list(words))
    program = words[words.index("--") + 1 :]
    assert list(context.params["command"]) == program
