"""Pickles of which only plain data is read: nothing in the file is run."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.text import one_line

#: Unpickling may take so much memory beyond what is in use, and so many times the file.
_EXTRA_MEMORY = 2**28
_MEMORY_PER_BYTE = 60


class _PlainUnpickler(pickle.Unpickler):
    """Makes containers, texts and numbers, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  # as the base class
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, but only plain data is read"
        )


def unpickled(path: str, data: bytes, what: str, remedy: str) -> object:
    """Return the content of a pickle: containers, texts and numbers.

    It is unpickled in a thread with a large stack: hashes of deeply nested tuples are recursive.

    Args:
        path: the file as the user named it.
        data: its content.
        what: what it should be, for messages.
        remedy: what to do if it is something else.

    Raises:
        TraceFormatError: it is no pickle of plain data.
    """

    def load() -> object:
        with _bounded_memory(len(data)):
            stream = io.BufferedReader(io.BytesIO(data))
            # Without `readinto`, which allocates what the pickle claims before it is read.
            file = SimpleNamespace(
                read=stream.read, readline=stream.readline, peek=stream.peek
            )
            return _PlainUnpickler(file).load()

    previous_size = threading.stack_size(min(2**30, 2**26 + 256 * len(data)))
    try:
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(load)
    finally:
        threading.stack_size(previous_size)
    error = loaded.exception()
    if error is None:
        return loaded.result()
    if isinstance(error, EOFError) or "truncated" in str(error):
        raise TraceCutOffError(
            path, "the pickle ends prematurely", "copy or record it again"
        )
    if isinstance(error, MemoryError):
        reason = "it asks for more memory than it can need"
    else:
        reason = one_line(str(error)).rstrip(".") or type(error).__name__
    problem = f"is not a {what} (the pickle cannot be read: {reason})"
    raise TraceFormatError(path, problem, remedy)


@contextmanager
def _bounded_memory(file_size: int) -> Iterator[None]:
    """Allow the process only so much more memory as a file of this size may need, on Linux."""
    try:
        import resource

        pages_in_use = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        previous = resource.getrlimit(resource.RLIMIT_AS)
        in_use = pages_in_use * resource.getpagesize()
        limit = in_use + _EXTRA_MEMORY + _MEMORY_PER_BYTE * file_size
        if previous[0] != resource.RLIM_INFINITY:
            limit = min(limit, previous[0])
        resource.setrlimit(resource.RLIMIT_AS, (limit, previous[1]))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, previous)
