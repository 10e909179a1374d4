"""What is the same for all processes that Python's or Dask's workers run in."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: When this process is killed, Python's helper cleans up, and would print that it had to.
_IGNORED = "ignore::UserWarning:multiprocessing.resource_tracker"


@contextmanager
def processes_starting(**environment: str) -> Iterator[None]:
    """Start processes in this block that leave Ctrl-C to this one, and import no stranger's files.

    A terminal sends Ctrl-C to every process of a program. Workers would each print a traceback, and
    die before they can be stopped in order. Threads that are started here do not get it either;
    this thread gets it when the block ends.

    A Python process would import modules from the working folder first, which may hold anything.

    Args:
        environment: more variables of the processes' environment.
    """
    warnings = filter(None, [os.environ.get("PYTHONWARNINGS"), _IGNORED])
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": ",".join(warnings)}
    before = {name: os.environ.get(name) for name in environment}
    try:
        os.environ.update(environment)
        # Python starts this helper with the first worker, and would unblock Ctrl-C then.
        resource_tracker.ensure_running()
        with _interrupts_blocked():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
