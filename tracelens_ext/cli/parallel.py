"""Reports of several traces in processes of their own, with the same outcome as in this one.

A process is told what the command was asked for and then, one at a time, which trace to report on;
it answers with what this process would have said. What it cannot answer (an error that is not the
trace's, an end by the system) is left to this process, which then meets the same error itself.
The processes are plain interpreters, as in `readers/workers.py`, and talk in lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from tracelens_ext.errors import OutputError
from tracelens_ext.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens_ext.cli.report import Run

#: Together the traces must have so many bytes of text to be worth the start of processes.
WORTHWHILE_BYTES = 200 * 10**6
_PROGRAM = (
    "import sys;"
    "sys.path[:] = sys.argv[1:];"
    "from tracelens_ext.cli.parallel_worker import main;"
    "main()"
)
_PATIENCE_S = 5.0
_PIECE = 1 << 16


@dataclass(frozen=True)
class Outcome:
    """What became of one trace.

    Attributes:
        row: of the summary; None when there was an error.
        written: the files written.
        error: what to say when there was one.
        said: the lines that went to standard error.
        told: the problems of plugins among them.
    """

    row: dict[str, Any] | None
    written: list[str]
    error: str | None
    said: list[str]
    told: list[str]


@contextlib.contextmanager
def reports_elsewhere(run: Run, traces: Sequence[Path]) -> Iterator[_Reports]:
    """Have traces reported on in other processes, if there are cores for them and it pays.

    The processes are gone when the block is left, however that comes about.

    Args:
        run: what the command was asked for.
        traces: the traces.
    """
    from tracelens_ext.readers.kineto.workers import cores, traces_at_once

    sizes = [_text_bytes(trace) for trace in traces]
    asked = read_settings().jobs
    jobs = asked or cores()
    count = min(jobs, len(traces))
    if asked is None:
        count = min(count, traces_at_once(max(sizes, default=0)))
    reports = _Reports(traces)
    worthwhile = sum(sizes) >= WORTHWHILE_BYTES
    try:
        if count > 1 and worthwhile and not run.comparing and os.name == "posix":
            reports.start(count, _description(run, traces, max(1, jobs // count)))
        yield reports
    finally:
        reports.stop()


def retold(outcome: Outcome, told: set[str]) -> tuple[dict[str, Any], list[Path]]:
    """Say what another process would have said, and give its row and its files.

    Args:
        outcome: what it answered.
        told: the problems of plugins that were shown, and are not shown again; grows.

    Raises:
        OutputError: there was an error; the message is that of the error.
    """
    from tracelens_ext.cli.load import plugin_line
    from tracelens_ext.cli.messages import say

    repeated = {plugin_line(problem) for problem in told.intersection(outcome.told)}
    for line in outcome.said:
        if line not in repeated:
            say(line, error=True)
    told.update(outcome.told)
    if outcome.error is not None or outcome.row is None:
        raise OutputError(outcome.error or "")
    return outcome.row, [Path(path) for path in outcome.written]


def _text_bytes(trace: Path) -> int:
    """About how much text a trace has."""
    from tracelens_ext.readers.kineto.workers import text_bytes

    try:
        return text_bytes(trace.stat().st_size, compressed=trace.suffix == ".gz")
    except OSError:
        return 0


def _description(run: Run, traces: Sequence[Path], jobs: int) -> dict[str, Any]:
    """What a process must know to do as this one would, as JSON."""
    from tracelens_ext.cli.reading import cache_choice

    return {
        "traces": [str(trace) for trace in traces],
        "wanted": asdict(run.wanted),
        "options": asdict(run.options),
        "build": asdict(run.report_options),
        "force": run.force,
        "reading": asdict(read_settings()) | {"jobs": jobs},
        "cache": cache_choice(),
    }


def _as_json(value: object) -> str:
    """What JSON has no word for: paths and patterns."""
    return value.pattern if isinstance(value, re.Pattern) else os.fspath(cast("Path", value))


class _Process:
    """One process, and the trace that it works on."""

    def __init__(self, description: str) -> None:
        from tracelens_ext.readers.kineto.workers import interpreter, quiet_environment

        self._process = subprocess.Popen(  # noqa: S603  # this interpreter
            interpreter(_PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=quiet_environment(),
            bufsize=0,
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self.answers = cast("IO[bytes]", self._process.stdout)
        self._text = b""
        self.index: int | None = None
        self._description = description + "\n"

    def report(self, index: int) -> bool:
        """Have it report on a trace; False if it has died."""
        text, self._description = f"{self._description}{index}\n", ""
        self.index = index
        try:
            self._requests.write(text.encode())
        except OSError:
            return False
        return True

    def lines(self) -> list[Any] | None:
        """What it says, which has come; None at its end."""
        piece = self.answers.read(_PIECE)
        if not piece:
            return None
        *lines, self._text = (self._text + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def terminate(self) -> None:
        """Ask it to stop: it removes what it has half written."""
        for pipe in (self._requests, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.terminate()

    def wait(self) -> None:
        """Wait for its end, and end it if that takes long."""
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Reports:
    """What became of each trace, in the order in which it is asked for."""

    def __init__(self, traces: Sequence[Path]) -> None:
        self._traces = traces
        self._next = 0
        self._outcomes: dict[int, Outcome | None] = {}
        self._processes: list[_Process] = []
        self._ready = selectors.DefaultSelector()
        self._undo = contextlib.ExitStack()
        self._advance: Any = None

    def start(self, count: int, description: dict[str, Any]) -> None:
        """Start so many processes, or as many as the system gives."""
        from tracelens_ext.cli.progress import several_progress

        text = json.dumps(description, default=_as_json)
        self._advance = self._undo.enter_context(several_progress([t.name for t in self._traces]))
        with contextlib.suppress(OSError):
            for _ in range(count):
                process = _Process(text)
                self._processes.append(process)
                self._ready.register(process.answers, selectors.EVENT_READ, process)
                self._give(process)

    def _give(self, process: _Process) -> None:
        """The next trace to a process that has none, until there are no more of either."""
        process.index = None
        if self._next < len(self._traces):
            index, self._next = self._next, self._next + 1
            if not process.report(index):
                self._lose(process)

    def _lose(self, process: _Process) -> None:
        """A process has died; its trace is left to whoever asks."""
        if process.index is not None:
            self._outcomes[process.index] = None
        self._ready.unregister(process.answers)
        self._processes.remove(process)
        process.terminate()
        process.wait()

    def take(self, index: int) -> Outcome | None:
        """What became of a trace; None when this process must report on it itself."""
        while index not in self._outcomes:
            if not any(process.index is not None for process in self._processes):
                return None
            for key, _ in self._ready.select():
                self._hear(key.data)
        return self._outcomes.pop(index)

    def _hear(self, process: _Process) -> None:
        lines = process.lines()
        if lines is None:
            self._lose(process)
            return
        for line in lines:
            if "done" in line:
                if self._advance is not None:
                    self._advance(process.index, line["done"], line["size"])
                continue
            if process.index is not None:
                self._outcomes[process.index] = Outcome(**line) if line else None
                if self._advance is not None:
                    self._advance(process.index, None, None)
            self._give(process)

    def stop(self) -> None:
        """End all processes."""
        self._undo.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        self._processes.clear()
        self._ready.close()
