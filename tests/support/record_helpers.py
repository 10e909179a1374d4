"""Programs that are recorded, and what became of them.

They run with a stand-in for PyTorch, or with the real one of `TORCH_PYTHON`.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens_ext.recorder.hook_folder import HookFolder, ProcessOutcome
from tracelens_ext.recorder.record_options import RecordOptions
from tracelens_ext.recorder.summary import RecordingSummary

STAND_IN = Path(__file__).parent / "stand_in_torch"
#: An interpreter that imports the real PyTorch: that of the tests, unless another one is named.
TORCH_PYTHON = os.environ.get("TRACELENS_EXT_TORCH_PYTHON", sys.executable)

#: A program that trains; its argument is the number of iterations.
TRAINING = """
import sys
import torch

model = torch.nn.Sequential(torch.nn.Module(), torch.nn.Module())
optimizer = torch.optim.SGD()
for _ in range(int(sys.argv[1])):
    model()
    optimizer.step()
print("done")
"""

#: A program that infers.
INFERENCE = """
import sys
import torch

model = torch.nn.Sequential(torch.nn.Module(), torch.nn.Module())
for _ in range(int(sys.argv[1])):
    model()
print("done")
"""


@dataclass(frozen=True)
class Event:
    """An event of a trace, times in µs."""

    category: str
    name: str
    start: float
    end: float
    arguments: dict[str, Any]

    def lies_within(self, other: Event) -> bool:
        """Return whether the event begins and ends within another one."""
        return other.start <= self.start and self.end <= other.end

    def crosses_border_of(self, other: Event) -> bool:
        """Return whether a border of another event lies within this one."""
        crosses_start = self.start < other.start < self.end
        crosses_end = self.start < other.end < self.end
        return crosses_start or crosses_end


@dataclass(frozen=True)
class Trace:
    """A trace that was recorded."""

    members: dict[str, Any]

    @property
    def events(self) -> list[Event]:
        """All events with a duration."""
        return [
            Event(
                event.get("cat", ""),
                event["name"],
                event["ts"],
                event["ts"] + event["dur"],
                event.get("args", {}),
            )
            for event in self.members["traceEvents"]
            if event.get("ph") == "X"
        ]

    def of_category(self, category: str) -> list[Event]:
        """Return the events of a category."""
        return [event for event in self.events if event.category == category]

    @property
    def iterations(self) -> list[Event]:
        """The marks of iterations, in their order."""
        marks = [
            event
            for event in self.of_category("user_annotation")
            if event.name.startswith("ProfilerStep#")
        ]
        return sorted(marks, key=lambda mark: mark.start)

    @property
    def marks(self) -> list[str]:
        """The names of the iterations, in their order."""
        return [mark.name for mark in self.iterations]

    def per_iteration(self, name: str) -> list[int]:
        """Return how many events whose names begin like this each iteration has."""
        events = [event for event in self.events if event.name.startswith(name)]
        return [
            sum(event.lies_within(mark) for event in events) for mark in self.iterations
        ]


@dataclass(frozen=True)
class RecordingFolder:
    """The folder into which a program was recorded."""

    folder: Path

    @property
    def traces(self) -> list[str]:
        """The names of the traces."""
        return sorted(path.name for path in self.folder.glob("*.trace.json.gz"))

    @property
    def files(self) -> list[str]:
        """The names of all files, hidden ones too."""
        if not self.folder.exists():
            return []
        return sorted(path.name for path in self.folder.iterdir())

    def trace(self, rank: int = 0) -> Trace:
        """Return a trace."""
        path = self.folder / f"rank{rank}.pt.trace.json.gz"
        with gzip.open(path) as file:
            return Trace(json.load(file))

    def marks(self, rank: int = 0) -> list[str]:
        """Return the names of the iterations of a trace, in their order."""
        return self.trace(rank).marks


@dataclass(frozen=True)
class Recorded(RecordingFolder):
    """What became of a program that was recorded by the command."""

    exit_code: int
    output: str
    messages: str


@dataclass(frozen=True)
class Hooked(RecordingFolder):
    """What became of a program that ran with the hook, without a report."""

    exit_code: int
    output: str
    errors: str  #: the program's own
    outcomes: list[ProcessOutcome]
    sentences: list[str]  #: what the command would say

    @property
    def messages(self) -> str:
        """What the command would say, in one text."""
        return "\n".join(self.sentences)


def written_program(folder: Path, program: str) -> Path:
    """Write a Python program into a folder, and return its path."""
    script = folder / "program.py"
    script.write_text(program, "utf-8")
    return script


def record(
    folder: Path,
    *options: str,
    program: str = TRAINING,
    arguments: tuple[str, ...] = ("20",),
    command: list[str] | None = None,
    **environment: str,
) -> Recorded:
    """Record a program by the command, with the stand-in for PyTorch.

    Args:
        folder: Where the program and the recording go.
        options: Of the command.
        program: A Python program.
        arguments: Those of the program.
        command: What is run instead of the program.
        environment: Further variables.
    """
    script = written_program(folder, program)
    output = folder / "out"
    if command is None:
        command = [sys.executable, str(script), *arguments]
    variables = os.environ | {"PYTHONPATH": str(STAND_IN)} | environment
    run = [sys.executable, "-m", "tracelens_ext", "record", "-o", str(output)]
    done = subprocess.run(
        [*run, *options, "--", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=variables,
    )
    return Recorded(output, done.returncode, done.stdout, done.stderr)


def run_with_hook(
    folder: Path,
    program: str = "",
    *arguments: str,
    python: str = TORCH_PYTHON,
    command: list[str] | None = None,
    options: RecordOptions | None = None,
    timeout_s: float = 240.0,
    environment: Mapping[str, str] | None = None,
) -> Hooked:
    """Run a program with the hook, as the command does, and make no report.

    Args:
        folder: Where the program and the recording go.
        program: A Python program.
        arguments: Those of the program.
        python: The interpreter.
        command: What is run instead of the program.
        options: What to record.
        timeout_s: How long the program may take.
        environment: Further variables.
    """
    script = written_program(folder, program)
    output = folder / "out"
    chosen = options or RecordOptions()
    hook = HookFolder.create(output, chosen)
    run = command or [python, str(script), *arguments]
    done = subprocess.run(
        run,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=hook.environment({**os.environ, **(environment or {})}),
        timeout=timeout_s,
    )
    summary = RecordingSummary(
        command=run,
        options=chosen,
        outcomes=hook.outcomes(),
        python_ran=hook.python_ran,
        problems=hook.problems(),
    )
    outcomes = list(summary.outcomes)
    sentences = summary.sentences()
    hook.remove()
    return Hooked(
        output, done.returncode, done.stdout, done.stderr, outcomes, sentences
    )
