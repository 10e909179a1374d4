"""The folder with a copy of the hook, in which the processes of the program report their state."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from tracelens_ext.errors import OutputError
from tracelens_ext.recorder.hook.options import FILE_NAME
from tracelens_ext.recorder.hook.process_file import PROCESSES
from tracelens_ext.recorder.record_options import RecordOptions

_HOOK: Final = "tracelens_ext.recorder.hook"
#: Name of the copy, which the recorded program imports.
_PACKAGE: Final = "tracelens_ext_hook"
_SITECUSTOMIZE: Final = "sitecustomize.py"
_SEARCH_PATH: Final = "PYTHONPATH"


@dataclass(frozen=True)
class ProcessOutcome:
    """The result of recording one process that imported PyTorch."""

    pid: int
    host: str
    #: `waiting`, `recording`, `written`, `dropped`, `failed`, `unsupported` or `unselected`
    state: str
    reason: str  #: why nothing was recorded
    rank: int | None
    world_size: int  #: number of processes in the process group; 0 without a group
    started: float  #: when PyTorch was imported, seconds since 1970
    ended: float | None  #: when the process ended; None if it did not report its end
    iterations: int  #: number of iterations that the process completed
    trace: str  #: file name of the trace; empty without a trace
    first_iteration: int  #: number of the first recorded iteration
    #: duration of each iteration that was recorded completely
    recorded_ms: tuple[float, ...]
    before_ms: (
        float | None
    )  #: median duration of the iterations before; None if unknown
    #: the other Python profiler because of which stacks were not recorded; empty without one
    stacks_off_because: str
    #: why the snapshot of memory is missing; empty if it is not missing
    snapshot_problem: str

    @property
    def recorded(self) -> int:
        """Number of iterations that were recorded completely."""
        return len(self.recorded_ms)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> ProcessOutcome:
        """Return the outcome from the facts that a process wrote into its file."""
        return cls(
            pid=int(facts.get("pid", 0)),
            host=str(facts.get("host", "")),
            state=str(facts.get("state", "")),
            reason=str(facts.get("reason", "")),
            rank=facts.get("rank"),
            world_size=int(facts.get("world_size") or 0),
            started=float(facts.get("started", 0.0)),
            ended=facts.get("exited") or facts.get("ended"),
            iterations=int(facts.get("iterations") or 0),
            trace=str(facts.get("trace", "")),
            first_iteration=int(facts.get("first_iteration") or 0),
            recorded_ms=tuple(facts.get("recorded_ms") or ()),
            before_ms=facts.get("before_ms"),
            stacks_off_because=str(facts.get("stacks_off_because") or ""),
            snapshot_problem=str(facts.get("snapshot_problem") or ""),
        )


@dataclass(frozen=True)
class HookFolder:
    """The folder with the hook, which is put in front of `PYTHONPATH`."""

    path: Path

    @classmethod
    def create(cls, output: Path, options: RecordOptions) -> HookFolder:
        """Copy the hook and the options into a new folder below the output folder.

        Raises:
            OutputError: The folder cannot be written.
        """
        name = f".tracelens-ext-{socket.gethostname()}-{os.getpid()}"
        path = Path(os.path.abspath(output)) / name  # noqa: PTH100  # links stay as they are
        try:
            package = path / _PACKAGE
            package.mkdir(parents=True)
            (path / PROCESSES).mkdir()
            for source in resources.files(_HOOK).iterdir():
                if source.name.endswith(".py"):
                    # Python imports `sitecustomize` from the search path itself.
                    is_sitecustomize = source.name == _SITECUSTOMIZE
                    target = path if is_sitecustomize else package
                    (target / source.name).write_bytes(source.read_bytes())
            (path / FILE_NAME).write_text(json.dumps(asdict(options)), "utf-8")
        except OSError as error:
            message = f"{output}: cannot be written ({error.strerror})"
            raise OutputError(f"{message}; choose another folder") from error
        return cls(path)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables that make Python load the hook in a program.

        Args:
            base: The environment variables of the program without recording.
        """
        search_path = str(self.path)
        if base.get(_SEARCH_PATH):
            search_path += os.pathsep + base[_SEARCH_PATH]
        return {**base, _SEARCH_PATH: search_path}

    @property
    def python_ran(self) -> bool:
        """True if any Python process loaded the hook."""
        return (self.path / PROCESSES / "python-ran").exists()

    def outcomes(self) -> list[ProcessOutcome]:
        """Return the outcome of each process that imported PyTorch, in the order of importing."""
        outcomes = []
        for path in (self.path / PROCESSES).glob("*.json"):
            try:
                facts = json.loads(path.read_text("utf-8"))
                outcomes.append(ProcessOutcome.of(facts))
            except (OSError, ValueError, TypeError):
                continue  # some file systems show a new file before it is complete
        return sorted(outcomes, key=lambda outcome: (outcome.started, outcome.pid))

    def problems(self) -> list[str]:
        """Return the distinct reasons why processes could not load the hook."""
        paths = sorted((self.path / PROCESSES).glob("problem-*"))
        return list(dict.fromkeys(path.read_text("utf-8") for path in paths))

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
