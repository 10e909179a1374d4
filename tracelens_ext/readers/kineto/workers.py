"""Processes that decode slices of a large trace, and the order in which they are taken over.

What comes out is what one process would have made, to the byte: slices are taken over in the order
of the file, and the codes of a worker's own interners become those of the trace in the order of
first sight. A worker that dies, or refuses a slice, costs time and nothing else: whoever asked then
decodes it himself.

The workers are plain interpreters started with one line of code, not `multiprocessing`, so that
they never import the user's main program; they import from where this process does, and neither
from the working folder nor from what the environment adds.
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
from collections.abc import Hashable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np

from tracelens_ext.readers.kineto.columns import SliceColumns
from tracelens_ext.readers.kineto.slice_worker import (
    ANSWER,
    READY,
    REQUEST,
    SLOT_ROOM,
    SLOTS,
    TEXT_ROOM,
    read_slice,
)
from tracelens_ext.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracelens_ext.readers.builder import Interner
    from tracelens_ext.readers.kineto.columns import SliceReader
    from tracelens_ext.readers.kineto.reader import KinetoColumns
    from tracelens_ext.readers.kineto.slice_worker import Header
    from tracelens_ext.readers.source import ByteSource

    IntArray = npt.NDArray[np.integer]

K = TypeVar("K", bound=Hashable)

#: Bytes of text from which on workers are worth their start.
WORTHWHILE_BYTES = 64 * 10**6
#: How many times larger than the file the text of a gzipped trace is taken to be.
_TIMES_UNPACKED = 10
#: Cutting slices and taking them over keeps so many workers busy at most.
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
#: A worker that does not answer for so long, which takes milliseconds, is taken to be dead.
_PATIENCE_S = 60.0


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def text_bytes(size: int, *, compressed: bool) -> int:
    """About how much text a file of so many bytes holds."""
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
    """The command of a Python process with this one's modules, and nobody else's."""
    here = str(Path(__file__).resolve().parents[2])
    path = [os.path.abspath(entry) for entry in sys.path if entry]  # noqa: PTH100  # as it stands
    path = path if here in path else [here, *path]
    return [sys.executable, "-I", "-c", program, *arguments, *path]


def quiet_environment() -> dict[str, str]:
    """This process's environment; numerical libraries start no threads of their own."""
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def slices_ahead(source: ByteSource, columns: KinetoColumns) -> Iterator[SliceWorkers | None]:
    """Workers for a trace; None where it is small, or there is no core for them.

    This process decodes too while all are busy, so there is one less than there are jobs. They
    are gone when the block is left, however that comes about.

    Args:
        source: the trace.
        columns: takes its slices over.
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


class _Codes(Generic[K]):
    """What a worker's codes are in the trace.

    Args:
        interner: gives the trace's codes.
    """

    def __init__(self, interner: Interner[K]) -> None:
        self._interner = interner
        self._codes = np.empty(0, dtype=np.int32)

    def add(self, values: list[K]) -> None:
        """The values behind the worker's next codes."""
        if values:
            self._codes = np.append(self._codes, self._interner.codes(values, len(values)))

    def translated(self, found: IntArray) -> IntArray:
        """The worker's codes as the trace's."""
        return self._codes[found]


class _AllCodes:
    """The codes of one worker."""

    def __init__(self, reader: SliceReader) -> None:
        self.names = _Codes(reader.names)
        self.texts = _Codes(reader.texts)
        self.lanes = _Codes(reader.lanes)


class _Worker:
    """One process, and the slots that it shares with this one.

    Args:
        reader: whose codes the trace's are.
    """

    def __init__(self, reader: SliceReader) -> None:
        self._reader = reader
        self.codes = _AllCodes(reader)
        size = SLOTS * SLOT_ROOM
        with contextlib.ExitStack() as undo:
            memory_file = _anonymous_file()
            undo.callback(os.close, memory_file)
            os.truncate(memory_file, size)
            self.memory = mmap.mmap(memory_file, size)
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter
                interpreter(_PROGRAM, str(memory_file)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(memory_file,),
                env=quiet_environment(),
                bufsize=0,
            )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self.free = list(range(SLOTS))
        self.ready = False
        self.alive = True
        self.generation = 0

    def is_ready(self) -> bool:
        """Whether it has started, and still runs."""
        if self.alive and not self.ready and self._says_something():
            self.ready = self._receive(len(READY)) == READY
            self.alive = self.ready
        return self.alive and self.ready

    def has_answered(self) -> bool:
        """Whether `answer` has not to wait."""
        return not self.alive or self._says_something()

    def _says_something(self, within_s: float = 0.0) -> bool:
        poll = select.poll()  # `select.select` refuses the descriptors of a program with many
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def request(self, parts: tuple[bytes | memoryview, ...]) -> bool:
        """Have an array of events decoded, between brackets; False if it has died."""
        slot = self.free[-1]
        start = place = slot * SLOT_ROOM
        for part in (b"[", *parts, b"]"):
            self.memory[place : place + len(part)] = part
            place += len(part)
        request = REQUEST.pack(slot, self.generation, place - start)
        try:
            self._requests.write(request)
        except OSError:
            self.alive = False
            return False
        self.free.pop()
        return True

    def answer(self) -> tuple[int, int] | None:
        """The slot of its oldest request, and the bytes of the header; None if it has died."""
        answer = self._receive(ANSWER.size) if self.alive else b""
        if len(answer) != ANSWER.size:
            self.alive = False
            return None
        slot, length = ANSWER.unpack(answer)
        return slot, length

    def _receive(self, size: int) -> bytes:
        received = b""
        with contextlib.suppress(OSError):
            while len(received) < size and self._says_something(_PATIENCE_S):
                piece = self._answers.read(size - len(received))
                if not piece:
                    break
                received += piece
        return received

    def forget(self) -> None:
        """Begin anew with codes: those of slices that nobody took over must not count."""
        self.generation += 1
        self.codes = _AllCodes(self._reader)

    def stop(self) -> None:
        """End the process and wait for that."""
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        with contextlib.suppress(BufferError):  # an error's traceback may still hold columns
            self.memory.close()


class SliceWorkers:
    """Worker processes as `json_events.SlicesAhead`.

    Args:
        columns: takes the slices over.
    """

    def __init__(self, columns: KinetoColumns) -> None:
        self._columns = columns
        self._workers: list[_Worker] = []
        self._requested: deque[_Worker] = deque()

    def start(self, count: int) -> None:
        """Start so many processes, or as many as the system gives."""
        with contextlib.suppress(OSError, ValueError):
            for _ in range(count):
                self._workers.append(_Worker(self._columns.slices))

    def has_room(self) -> bool:
        """Whether a worker has."""
        return self._next() is not None

    def _next(self) -> _Worker | None:
        """The worker with the least to do that has room for more."""
        able = [worker for worker in self._workers if worker.is_ready() and worker.free]
        return max(able, key=lambda worker: len(worker.free), default=None)

    def put(self, parts: tuple[bytes | memoryview, ...]) -> bool:
        """Have a slice decoded; False if it is too big, or the worker has died."""
        worker = self._next()
        if worker is None or sum(map(len, parts)) + 2 > TEXT_ROOM or not worker.request(parts):
            return False
        self._requested.append(worker)
        return True

    def is_ready(self) -> bool:
        """Whether the oldest slice is decoded, or its worker is gone."""
        return self._requested[0].has_answered()

    def take(self) -> int | None:
        """Take over the oldest slice: its events; None if it was refused, or the worker died."""
        worker = self._requested.popleft()
        answer = worker.answer()
        if answer is None:
            return None
        slot, header_length = answer
        worker.free.append(slot)
        if not header_length:
            return None
        header, arrays = read_slice(memoryview(worker.memory), slot, header_length)
        self._columns.take(_translated(worker.codes, header, arrays))
        return header.count

    def forget(self) -> None:
        """Drop what was put and not taken over."""
        for worker in self._requested:
            if (answer := worker.answer()) is not None:
                worker.free.append(answer[0])
        self._requested.clear()
        for worker in self._workers:
            worker.forget()

    def stop(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()


def _translated(codes: _AllCodes, header: Header, arrays: list[IntArray]) -> SliceColumns:
    """A worker's columns, out of its slot, in the codes of the trace."""
    codes.names.add(header.names)
    codes.texts.add(header.texts)
    codes.lanes.add(header.lanes)
    lane, name, kind, ts, dur = arrays[:5]
    pairs = list(zip(arrays[5::2], arrays[6::2], strict=True))
    numbers = zip(header.numbers, pairs, strict=False)
    texts = zip(header.texts_of, pairs[len(header.numbers) :], strict=True)
    return SliceColumns(
        count=header.count,
        special=header.special,
        lane=codes.lanes.translated(lane),
        name=codes.names.translated(name),
        kind=kind.copy(),
        ts=ts.copy(),
        dur=dur.copy(),
        numbers={key: (rows.copy(), values.copy()) for key, (rows, values) in numbers},
        texts={key: (rows.copy(), codes.texts.translated(of)) for key, (rows, of) in texts},
    )


def _anonymous_file() -> int:
    """A file without a name, in memory where the system has such; gone with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tracelens-ext", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
