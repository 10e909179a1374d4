"""Processes that decode slices of a large trace, and the order in which they are taken over.

The result is what one process makes, to the byte: slices are taken over in the order of the file,
and the codes of each slice become those of the trace in the order of first sight. If a worker dies
or refuses a slice, this process decodes it; that costs time and nothing else.

The workers are plain interpreters started with one line of code, not `multiprocessing`, so that
they never import the user's main program. They import from the same places as this process, and
neither from the working folder nor from places that the environment adds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from msgspec.structs import replace

from tracelens_ext.readers.kineto.slice_worker import (
    MESSAGE,
    READY,
    SLOT_ROOM,
    SLOTS,
    TEXT_ROOM,
    read_answer,
)
from tracelens_ext.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.readers.kineto.columns import SliceColumns, SliceReader
    from tracelens_ext.readers.kineto.reader import KinetoColumns
    from tracelens_ext.readers.kineto.slice_worker import Answer
    from tracelens_ext.readers.source import ByteSource

#: Bytes of text from which on workers are worth their start.
WORTHWHILE_BYTES = 64 * 10**6
#: How many times larger than the file the text of a gzipped trace is taken to be.
_TIMES_UNPACKED = 10
#: More workers would wait for this process, which cuts slices and takes them over.
_MOST_WORKERS = 8
_PROGRAM = (
    "import signal, sys;"
    "signal.signal(signal.SIGINT, signal.SIG_IGN);"
    "sys.path[:] = sys.argv[2:];"
    "from tracelens_ext.readers.kineto.slice_worker import main;"
    "main(int(sys.argv[1]))"
)
_GRACE_S = 1.0
#: What the program and its libraries need for a trace, besides about as much as it has text.
_TRACE_BYTES = 200 * 10**6
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")
#: A worker that does not answer for so long is taken to be dead; an answer takes milliseconds.
_PATIENCE_S = 60.0


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
        with contextlib.suppress(OSError, ValueError):  # a container may have less
            memory = min(memory, int(_CONTAINER_MEMORY.read_text()))
    except (AttributeError, OSError, ValueError):
        return 1
    return max(1, memory // 2 // (_TRACE_BYTES + largest))


def interpreter(program: str, *arguments: str) -> list[str]:
    """The command of a Python process that imports from where this one does and nowhere else."""
    here = str(Path(__file__).resolve().parents[2])
    path = [os.path.abspath(entry) for entry in sys.path if entry]  # noqa: PTH100  # as it stands
    path = path if here in path else [here, *path]
    return [sys.executable, "-I", "-c", program, *arguments, *path]


def quiet_environment() -> dict[str, str]:
    """This process's environment; numerical libraries start no threads of their own."""
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def slices_ahead(source: ByteSource, columns: KinetoColumns) -> Iterator[SliceWorkers | None]:
    """Workers for a trace; None if it is small or there is no core for them.

    This process decodes too while all workers are busy, so there is one less of them than jobs.
    They end with the block, also after an error.
    """
    jobs = read_settings().jobs
    count = min((cores() if jobs is None else jobs) - 1, _MOST_WORKERS)
    size = text_bytes(source.size or 0, compressed=source.compressed)
    if count < 1 or size < WORTHWHILE_BYTES or os.name != "posix" or not sys.executable:
        yield None
        return
    workers = SliceWorkers(columns)
    try:
        workers.start(count)
        yield workers
    finally:
        workers.stop()


class _Worker:
    """One process, and the slots that it shares with this one."""

    def __init__(self) -> None:
        size = SLOTS * SLOT_ROOM
        memory_file = _anonymous_file()
        try:
            os.truncate(memory_file, size)
            self._memory = mmap.mmap(memory_file, size)
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter
                interpreter(_PROGRAM, str(memory_file)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(memory_file,),
                env=quiet_environment(),
                bufsize=0,
            )
        finally:
            os.close(memory_file)
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout)
        self.free = list(range(SLOTS))
        self.ready, self.alive = False, True

    def is_ready(self) -> bool:
        """Whether it has started, and still runs."""
        if self.alive and not self.ready and self._says_something():
            self.ready = self.alive = self._receive(len(READY)) == READY
        return self.alive and self.ready

    def has_answered(self) -> bool:
        """Whether `answer` returns at once."""
        return not self.alive or self._says_something()

    def _says_something(self, within_s: float = 0.0) -> bool:
        poll = select.poll()  # `select.select` refuses the descriptors of a program with many
        poll.register(self._replies, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def request(self, text: bytes) -> bool:
        """Have an array of events decoded; False if the process has died."""
        slot = self.free[-1]
        self._memory[slot * SLOT_ROOM : slot * SLOT_ROOM + len(text)] = text
        try:
            self._requests.write(MESSAGE.pack(slot, len(text)))
        except OSError:
            self.alive = False
            return False
        self.free.pop()
        return True

    def answer(self) -> Answer | None:
        """The answer to the oldest request; None if it was refused or the process has died."""
        reply = self._receive(MESSAGE.size) if self.alive else b""
        if len(reply) != MESSAGE.size:
            self.alive = False
            return None
        slot, length = MESSAGE.unpack(reply)
        self.free.append(slot)
        with memoryview(self._memory) as memory:
            return read_answer(memory[slot * SLOT_ROOM :], length) if length else None

    def _receive(self, size: int) -> bytes:
        received = b""
        with contextlib.suppress(OSError):
            while len(received) < size and self._says_something(_PATIENCE_S):
                piece = self._replies.read(size - len(received))
                if not piece:
                    break
                received += piece
        return received

    def stop(self) -> None:
        """End the process and wait for that."""
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._memory.close()


class SliceWorkers:
    """Worker processes that decode slices, several at a time; answers come in the file's order."""

    def __init__(self, columns: KinetoColumns) -> None:
        self._columns = columns
        self._workers: list[_Worker] = []
        self._requested: deque[_Worker] = deque()

    def start(self, count: int) -> None:
        """Start so many processes, or as many as the system gives."""
        with contextlib.suppress(OSError, ValueError):
            for _ in range(count):
                self._workers.append(_Worker())

    def has_room(self) -> bool:
        """Whether another slice can be put."""
        return self._next() is not None

    def _next(self) -> _Worker | None:
        """The worker with the least to do that has room for more."""
        able = [worker for worker in self._workers if worker.is_ready() and worker.free]
        return max(able, key=lambda worker: len(worker.free), default=None)

    def put(self, text: bytes) -> bool:
        """Have an array of events decoded; False if it is too long or the worker has died."""
        worker = self._next()
        if worker is None or len(text) > TEXT_ROOM or not worker.request(text):
            return False
        self._requested.append(worker)
        return True

    def is_ready(self) -> bool:
        """Whether the oldest slice is decoded, or its worker is gone."""
        return self._requested[0].has_answered()

    def take(self) -> int | None:
        """Take over the oldest slice.

        Returns:
            How many events it holds; None if it was refused or its worker died.
        """
        answer = self._requested.popleft().answer()
        if answer is None:
            return None
        self._columns.take(_translated(answer, self._columns.slices))
        return answer.columns.count

    def forget(self) -> None:
        """Drop every slice that was put and not taken over."""
        while self._requested:
            self._requested.popleft().answer()

    def stop(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()


def _translated(answer: Answer, reader: SliceReader) -> SliceColumns:
    """The columns of an answer in the codes of the trace."""
    columns = answer.columns
    texts = reader.texts.codes(answer.texts, len(answer.texts))
    return replace(
        columns,
        lane=reader.lanes.codes(answer.lanes, len(answer.lanes))[columns.lane],
        name=reader.names.codes(answer.names, len(answer.names))[columns.name],
        texts={name: (rows, texts[codes]) for name, (rows, codes) in columns.texts.items()},
    )


def _anonymous_file() -> int:
    """A file without a name, in memory if the system can; it is gone with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tracelens-ext", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
