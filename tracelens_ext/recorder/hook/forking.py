"""Lets processes end that were forked after the profiler was prepared.

Kineto has a thread that waits on a condition variable. A forked process does not have that thread,
but at its end the destructor of the variable waits for the thread, forever.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional


class ForkedEnd:
    """The functions of the C library that end a forked process; None if they do not exist."""

    def __init__(self) -> None:
        # This is looked up before `fork`: afterwards, a lock that it needs may be held forever.
        library: Optional[Any] = None
        try:
            library = ctypes.CDLL(None)
            self._on_exit = library.on_exit  # of glibc
            # As an attribute in a class, Python would mangle this name.
            self._at_exit = getattr(library, "__cxa_atexit")
            self._end = ctypes.cast(library._exit, ctypes.c_void_p)
            self._flush = ctypes.cast(library.fflush, ctypes.c_void_p)
            self._is_usable = True
        except (AttributeError, OSError, TypeError):
            self._is_usable = False

    def apply(self) -> None:
        """Let this process end with its exit code before destructors of libraries run.

        Functions that are registered last run first: the output of C is flushed, and then the
        process ends.
        """
        if self._is_usable:
            self._on_exit(self._end, None)
            self._at_exit(self._flush, None, None)
