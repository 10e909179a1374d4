"""Runs commands in processes of their own, and stops each at a chosen moment.

Reads from standard input a JSON list of cases, and writes a list of what became of each. A case is

* `arguments` of the command, `folder` to run in;
* `at`: `open` (of the file that is being written, or of the trace) or `rename`, the moment when
  something happens: `signal` (its number) is sent to the process, or `errno` is raised there;
  `reading`: whether the trace's file is meant;
* `limit`: how large a file may grow, bytes: then every write beyond it fails, for real.

All modules are imported once, and every case is a fork: a process a case at little cost. Audit
events tell of the moments, so nothing in the program has to be there for its tests.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

_MOMENTS = {"open": "open", "rename": "os.rename"}
_GRACE_S = 10.0


def _watch(case: dict[str, Any]) -> None:
    """Make the case's trouble happen at its moment, once."""
    moment = _MOMENTS[case["at"]]
    done = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if done or event != moment or not _is_meant(case, arguments[0]):
            return
        done = True
        if "errno" in case:
            raise OSError(case["errno"], os.strerror(case["errno"]))
        if case["signal"] == signal.SIGINT:
            os.killpg(os.getpid(), signal.SIGINT)  # as a terminal does
        else:
            os.kill(os.getpid(), case["signal"])

    sys.addaudithook(hook)


def _is_meant(case: dict[str, Any], what: Any) -> bool:  # of any event
    if isinstance(what, int):  # a descriptor, such as that of bytecode which is written
        return False
    return os.fsdecode(what).endswith(".json.gz" if case.get("reading") else ".tmp")


def _run(case: dict[str, Any]) -> NoReturn:
    from tracelens_ext.cli import main

    code = 70
    try:
        os.setsid()
        os.chdir(case["folder"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(
                os.open(case["streams"] + name, os.O_WRONLY | os.O_CREAT, 0o600), number
            )
        if "limit" in case:
            resource.setrlimit(resource.RLIMIT_FSIZE, (case["limit"], case["limit"]))
        if "at" in case:
            _watch(case)
        main(case["arguments"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 71
    except BaseException:
        traceback.print_exc()  # nobody else sees it: the process ends below
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _left_behind(group: int) -> bool:
    """Return True if a process of the group is still alive after a while."""
    end = time.monotonic() + _GRACE_S
    while any(_is_alive(process, group) for process in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > end:
            return True
        time.sleep(0.05)
    return False


def _is_alive(process: Path, group: int) -> bool:
    try:
        state, _, of_group = (
            (process / "stat").read_text().rpartition(")")[2].split()[:3]
        )
    except OSError:  # it has ended meanwhile
        return False
    return int(of_group) == group and state != "Z"


def main() -> None:
    """Run the cases, after one run that nothing happens to: it loads all there is to load."""
    from tracelens_ext.cli import run

    cases = json.load(sys.stdin)
    trace = os.path.join(cases[0]["folder"], "trace.json.gz")  # noqa: PTH118
    with tempfile.TemporaryDirectory() as folder:
        everything = [
            "-o",
            f"{folder}/r.xlsx",
            "--html",
            f"{folder}/r.html",
            "--csv-dir",
            folder,
        ]
        if run(["report", trace, *everything, "--quiet"]):
            sys.exit("the trace cannot be reported")
    results = []
    for case in cases:
        child = os.fork()
        if child == 0:
            _run(case)
        _, status = os.waitpid(child, 0)
        results.append(
            {"code": os.waitstatus_to_exitcode(status), "left": _left_behind(child)}
        )
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
