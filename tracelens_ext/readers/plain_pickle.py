"""Reads pickles that contain only plain data; no code of the file is run."""

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

#: Unpickling may allocate this many bytes, plus this many bytes per byte of the file.
_EXTRA_MEMORY = 2**28
_MEMORY_PER_BYTE = 60


class _PlainUnpickler(pickle.Unpickler):
    """Makes containers, texts and numbers, and refuses classes and functions."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  # as the base class
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, but only plain data is read"
        )


def unpickled(path: str, data: bytes, what: str, remedy: str) -> object:
    """Return the content of a pickle: containers, texts and numbers.

    A thread with a large stack does the work, because hashing deeply nested tuples is recursive.

    Args:
        path: the file as the user named it.
        data: its content.
        what: the name of the expected content in messages, such as "memory snapshot".
        remedy: what the user should do if it is something else.

    Raises:
        TraceCutOffError: the pickle is cut off.
        TraceFormatError: it is damaged, or contains more than plain data.
    """

    def load() -> object:
        with _bounded_memory(len(data)):
            stream = io.BufferedReader(io.BytesIO(data))
            # An object without `readinto`: with that method, the unpickler allocates the sizes that
            # a pickle claims before it reads the data.
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
    reason = one_line(str(error)).rstrip(".") or type(error).__name__
    if isinstance(error, MemoryError):
        reason = "it asks for more memory than it can need"
    problem = f"is not a {what} (the pickle cannot be read: {reason})"
    raise TraceFormatError(path, problem, remedy)


@contextmanager
def _bounded_memory(file_size: int) -> Iterator[None]:
    """Limit the memory of the process, on Linux, to what a file of this size may need."""
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
