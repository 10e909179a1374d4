"""Lets processes end that were forked after the profiler had been prepared.

Kineto, PyTorch's profiling library, has a thread that waits for a condition variable. A forked
process does not have that thread. When it ends, the destructor of the variable would wait for the
thread forever.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional


class ForkedEnd:
    """The end of a forked process, with functions of the C library.

    Without these functions (of glibc), `apply` does nothing.
    """

    def __init__(self) -> None:
        # The functions are looked up before `fork`. After it, another thread of the parent process
        # may have left a lock taken that the look-up needs.
        library: Optional[Any] = None
        try:
            library = ctypes.CDLL(None)
            self._on_exit = library.on_exit  # of glibc
            # As an attribute, Python would mangle the name.
            self._at_exit = getattr(library, "__cxa_atexit")
            self._end = ctypes.cast(library._exit, ctypes.c_void_p)
            self._flush = ctypes.cast(library.fflush, ctypes.c_void_p)
            self._is_usable = True
        except (AttributeError, OSError, TypeError):
            self._is_usable = False

    def apply(self) -> None:
        """Make this process end with its exit code before the destructors of libraries run.

        Functions that were registered last run first: `fflush` writes buffered output of C, then
        `_exit` ends the process.
        """
        if self._is_usable:
            self._on_exit(self._end, None)
            self._at_exit(self._flush, None, None)
