"""Threads that read ahead, and how much a machine can read at once."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

#: Bytes of text from which on threads are worth their start.
WORTHWHILE_BYTES = 16 * 10**6
#: How many times larger than the file the text of a gzipped trace is taken to be.
_TIMES_UNPACKED = 10
#: More threads would wait for the one that cuts slices and takes over what became of them.
_MOST_THREADS = 8
_PIECE_BYTES = 1 << 20
#: What the program and its libraries need for a trace, besides about as much as it has text.
_TRACE_BYTES = 200 * 10**6
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def text_bytes(size: int, *, compressed: bool) -> int:
    """About how many bytes of text a file of `size` bytes holds."""
    return size * _TIMES_UNPACKED if compressed else size


def traces_at_once(largest: int) -> int:
    """How many traces of up to so many bytes of text half of the memory can hold; 1 at least."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with suppress(OSError, ValueError):  # a container may have less
            memory = min(memory, int(_CONTAINER_MEMORY.read_text()))
    except (AttributeError, OSError, ValueError):
        return 1
    return max(1, memory // 2 // (_TRACE_BYTES + largest))


def threads_for(size: int | None, jobs: int | None, *, compressed: bool) -> int:
    """How many threads may read a file ahead; 0 if it is small or there is one core for it."""
    count = min(jobs or cores(), _MOST_THREADS)
    small = text_bytes(size or 0, compressed=compressed) < WORTHWHILE_BYTES
    return 0 if small or count < 2 else count


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor | None]:
    """So many threads, None if there are none; they end with the block, also after an error."""
    if not count:
        yield None
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(count, "tracelens-ext")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class Stream(Protocol):
    """What gives bytes."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""
        ...


class ReadAhead:
    """A stream of which a thread reads the next piece while this one works on the last.

    Args:
        stream: of which nobody else reads until `close`.
    """

    def __init__(self, stream: Stream) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._read = stream.read
        self._thread = ThreadPoolExecutor(1, "tracelens-ext")
        self._next: Future[bytes] = self._thread.submit(self._read, _PIECE_BYTES)
        self._piece = b""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end. What the stream raises is raised in its place."""
        if not self._piece and (piece := self._next.result()):
            self._piece = piece
            self._next = self._thread.submit(self._read, _PIECE_BYTES)
        piece, self._piece = self._piece[:size], self._piece[size:]
        return piece

    def close(self) -> None:
        """Have the thread end."""
        self._thread.shutdown()
