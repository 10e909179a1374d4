"""How many processes and threads a machine has room for, and what is the same for all workers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: When this process is killed, Python's helper cleans up, and would print that it had to.
_IGNORED = "ignore::UserWarning:multiprocessing.resource_tracker"

#: What the program and its libraries need for a trace, besides about as much as it has text.
_TRACE_BYTES = 200 * 10**6
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def traces_at_once(largest: int) -> int:
    """Return how many traces of so many bytes of text half of the memory holds; at least 1."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with suppress(OSError, ValueError):  # a container may have less
            memory = min(memory, int(_CONTAINER_MEMORY.read_text()))
    except (AttributeError, OSError, ValueError):
        return 1
    return max(1, memory // 2 // (_TRACE_BYTES + largest))


def return_freed_memory() -> None:
    """Give the system what glibc keeps of freed arrays: a quarter of the memory after reading."""
    import ctypes  # not for `--help`

    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def processes_starting(**environment: str) -> Iterator[None]:
    """Start processes in this block that leave Ctrl-C to this one, and import no stranger's files.

    A terminal sends Ctrl-C to every process of a program: workers would each print a traceback, and
    die before they can be stopped in order. This thread gets it when the block ends. And Python
    would import modules from the working folder first, which may hold anything.
    """
    from multiprocessing import resource_tracker

    warnings = filter(None, [os.environ.get("PYTHONWARNINGS"), _IGNORED])
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": ",".join(warnings)}
    before = {name: os.environ.get(name) for name in environment}
    unblocked = None
    try:
        os.environ.update(environment)
        # Python starts this helper with the first worker, and would unblock Ctrl-C then.
        resource_tracker.ensure_running()
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        if unblocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
