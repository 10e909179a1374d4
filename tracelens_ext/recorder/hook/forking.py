"""Lets processes end that were forked after the profiler was prepared.

Kineto has a thread that waits for a condition variable. A forked process has no such thread, yet
the destructor of the variable waits for it when the process ends, for ever.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional


class ForkedEnd:
    """The functions of the C library that end a forked process; None where there are none."""

    def __init__(self) -> None:
        # Looked up before `fork`, as another thread may hold a lock that this needs.
        library: Optional[Any] = None
        try:
            library = ctypes.CDLL(None)
            self._on_exit = library.on_exit  # of glibc
            # Written as an attribute, Python would mangle the name.
            self._at_exit = getattr(library, "__cxa_atexit")
            self._end = ctypes.cast(library._exit, ctypes.c_void_p)
            self._flush = ctypes.cast(library.fflush, ctypes.c_void_p)
            self._is_usable = True
        except (AttributeError, OSError, TypeError):
            self._is_usable = False

    def apply(self) -> None:
        """Have this process end, with its exit code, before destructors of libraries run.

        What was registered last runs first: what C wrote is flushed, then the process ends.
        """
        if self._is_usable:
            self._on_exit(self._end, None)
            self._at_exit(self._flush, None, None)
