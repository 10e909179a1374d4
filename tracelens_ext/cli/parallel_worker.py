"""A process that reports on some of the traces of a command; started by `parallel.py`.

It reads lines from standard input: what the command was asked for, as JSON, then numbers of traces.
For each it says, in lines of JSON on standard output, how far it has come, and what became of it.
Where standard input ends, as it does when the process that asks is killed, it stops what it does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_BETWEEN_S = 0.1
_GRACE_S = 1.0


def main() -> None:
    """Serve until standard input ends, or the process is told to stop."""
    # Ctrl-C is for the process that started this one, which then ends it; what is half written
    # is removed on the way out.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    asked = json.loads(sys.stdin.readline() or "{}")
    traces: queue.SimpleQueue[int] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(traces,), daemon=True)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        listener.start()
        with _chosen(asked):
            while True:
                index = traces.get()
                outcome = _outcome(asked, index, partial(_say_progress, answers, [0.0]))
                answers.write(json.dumps(outcome) + "\n")
                answers.flush()
    listener.join(_GRACE_S)  # the interpreter cannot end well while that reads


def _listen(traces: queue.SimpleQueue[int]) -> None:
    """Pass on what is asked; where that ends, stop the process, whatever it is at."""
    for line in sys.stdin:
        traces.put(int(line))
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say_progress(answers: IO[str], last: list[float], done: int, size: int | None) -> None:
    """How much of the trace is read, now and then."""
    now = time.monotonic()
    if now - last[0] > _BETWEEN_S:
        last[0] = now
        answers.write(json.dumps({"done": done, "size": size}) + "\n")
        answers.flush()


def _chosen(asked: dict[str, Any]) -> contextlib.AbstractContextManager[object]:
    from tracelens_ext.cli.reading import choosing

    return choosing(asked.get("reading", {}), asked.get("cache", {}))


def _outcome(
    asked: dict[str, Any], index: int, progress: Callable[[int, int | None], None]
) -> dict[str, Any]:
    """What became of a trace; nothing when the process that asked should try for itself."""
    from tracelens_ext.cli.progress import progress_goes_to
    from tracelens_ext.cli.report_view import summary_row
    from tracelens_ext.errors import OutputError, TraceError

    run = _run(asked)
    traces = [Path(trace) for trace in asked["traces"]]
    said = io.StringIO()
    row, written, error = None, [], None
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            output = run.wanted.for_several(traces)[index]
            with progress_goes_to(progress):
                result, paths, _ = run.one(traces[index], output, traces)
        row, written = summary_row(traces[index], result), [str(path) for path in paths]
    except (TraceError, OutputError) as problem:
        error = str(problem)
    except Exception:  # noqa: BLE001  # of whatever sort: it is met again by whoever asked
        return {}
    return {
        "row": row,
        "written": written,
        "error": error,
        "said": said.getvalue().splitlines(),
        "told": sorted(run.told),
    }


def _run(asked: dict[str, Any]) -> Any:  # noqa: ANN401  # a `Run`, which must not be imported above
    from tracelens_ext.cli.load import AnalysisOptions
    from tracelens_ext.cli.outputs import Wanted
    from tracelens_ext.cli.report import Run
    from tracelens_ext.report.formats import Format
    from tracelens_ext.sheets.options import ReportOptions

    wanted, options = dict(asked["wanted"]), dict(asked["options"])
    wanted["format"] = None if wanted["format"] is None else Format(wanted["format"])
    wanted["csv_dir"] = None if wanted["csv_dir"] is None else Path(wanted["csv_dir"])
    for name in ("rules", "maps"):
        options[name] = [Path(path) for path in options[name]]
    return Run(
        wanted=Wanted(**wanted),
        options=AnalysisOptions(**options),
        report_options=ReportOptions(**asked["build"]),
        comparing=False,
        total=False,
        force=asked["force"],
        top=0,
        quiet=True,
    )
