"""The commands of docs/how-to/record.md: their options are there, whatever the program is."""

from __future__ import annotations

import shlex

import pytest

from tests.support.docs_helpers import commands_of, page_text
from tracelens_ext.cli.app import build_command, offered_commands

COMMANDS = [
    command.removeprefix("record ")
    for command in commands_of(page_text("record.md"))
    if command.startswith("record ")
]


def test_every_way_to_record_has_an_example() -> None:
    programs = " ".join(COMMANDS)
    for program in ("python", "accelerate", "torchrun", "srun", "vllm", "pytest"):
        assert program in programs


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str) -> None:
    words = shlex.split(command)
    record = build_command(offered_commands()["record"])
    context = record.make_context("record", list(words))
    program = words[words.index("--") + 1 :]
    assert list(context.params["command"]) == program
