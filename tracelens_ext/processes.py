"""How many processes a machine has room for, and how worker processes are started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Filter for the warning that the resource tracker of `multiprocessing` prints when this process is
#: killed and leaves shared memory behind, which the tracker then removes.
_IGNORED = "ignore::UserWarning:multiprocessing.resource_tracker"

#: The memory that a process needs for a trace, in addition to about the size of its text.
_TRACE_BYTES = 200 * 10**6
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def traces_at_once(largest: int) -> int:
    """Return how many traces fit into half of the memory, at least 1.

    Args:
        largest: the bytes of text of the largest trace.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with suppress(
            OSError, ValueError
        ):  # a container may have less memory than the machine
            memory = min(memory, int(_CONTAINER_MEMORY.read_text()))
    except (AttributeError, OSError, ValueError):
        return 1
    return max(1, memory // 2 // (_TRACE_BYTES + largest))


def return_freed_memory() -> None:
    """Return the memory of freed arrays, which glibc keeps, to the system.

    After reading a trace, that is a quarter of the memory of the process.
    """
    import ctypes  # slow to import

    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def processes_starting(**environment: str) -> Iterator[None]:
    """Let processes that are started in this block ignore Ctrl-C and the working folder.

    A terminal sends Ctrl-C to every process of a program. Workers would then print tracebacks and
    die before they can be stopped in order. A Ctrl-C during the block reaches this thread when the
    block ends. And Python would import modules from the working folder first, where anything may
    be.

    Args:
        environment: environment variables for the processes.
    """
    from multiprocessing import resource_tracker

    warnings = filter(None, [os.environ.get("PYTHONWARNINGS"), _IGNORED])
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": ",".join(warnings)}
    before = {name: os.environ.get(name) for name in environment}
    unblocked = None
    try:
        os.environ.update(environment)
        # Python would start the resource tracker with the first worker, and unblock Ctrl-C then.
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
