"""Programs that are recorded, with a stand-in for PyTorch, and what became of them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).parent / "stand_in_torch"

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
class Recorded:
    """What became of a program that was recorded."""

    exit_code: int
    output: str
    messages: str
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

    def trace(self, rank: int = 0) -> dict[str, Any]:
        """Return the members of a trace."""
        path = self.folder / f"rank{rank}.pt.trace.json.gz"
        with gzip.open(path) as file:
            members: dict[str, Any] = json.load(file)
        return members

    def marks(self, rank: int = 0) -> list[str]:
        """Return the names of the iterations of a trace, in their order."""
        events = [
            event
            for event in self.trace(rank)["traceEvents"]
            if event.get("name", "").startswith("ProfilerStep#")
        ]
        return [event["name"] for event in sorted(events, key=lambda e: e["ts"])]


def record(
    folder: Path,
    *options: str,
    program: str = TRAINING,
    arguments: tuple[str, ...] = ("20",),
    command: list[str] | None = None,
    **environment: str,
) -> Recorded:
    """Record a program in a process of its own.

    Args:
        folder: Where the program and the recording go.
        options: Of the command.
        program: A Python program.
        arguments: Those of the program.
        command: What is run instead of the program.
        environment: Further variables.
    """
    script = folder / "program.py"
    script.write_text(program, "utf-8")
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
    return Recorded(done.returncode, done.stdout, done.stderr, output)
