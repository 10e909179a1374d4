"""Work on several traces in processes of their own, with the same outcome as in this one.

Each worker is a `ProcessPoolExecutor` of one process: when it dies, the trace that it worked on is
known, and the other traces go on. Workers are spawned, not forked: this process has threads
(numerical libraries, progress bars), and a fork copies their locks in whatever state they are.
A spawned process imports the libraries again, half a second; `WORTHWHILE_BYTES` allows for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from tracelens_ext.cli.load import several_progress
from tracelens_ext.cli.screen import print_line
from tracelens_ext.errors import OutputError, TraceError
from tracelens_ext.processes import cores, processes_starting, traces_at_once
from tracelens_ext.readers.ahead import text_bytes
from tracelens_ext.settings import Progress, ReadingOptions

T = TypeVar("T")
#: What to do with one trace: how it is read, and who is told how far that is.
Task = Callable[[ReadingOptions, Progress | None], T]
#: Text of a worker on standard error; its result, or the message of the trace's error; or None
#: when this process should do the work itself.
Answer = tuple[str, T | None, str | None] | None

#: Together the traces must have so many bytes of text to be worth the start of processes.
WORTHWHILE_BYTES = 200 * 10**6
_LOOK_EVERY_S = 0.1
_context = get_context("spawn")


@contextlib.contextmanager
def each_trace(
    traces: Sequence[Path], tasks: Sequence[Task[T]], reading: ReadingOptions
) -> Iterator[Iterator[Callable[[], T]]]:
    """Work on traces in several processes, if there are cores for them and it pays.

    The processes are gone when the block is left, however that comes about. A task, which can be
    pickled as its result can, gets `reading` with as many threads as each may use. Yields an
    iterator over the traces in their order, which waits for each: a function that prints what the
    task printed to standard error, and then returns its result or raises its error.
    """
    count, jobs = _worker_count(traces, reading.jobs)
    if count == 1:
        yield (partial(task, reading, None) for task in tasks)
        return
    workers = _Workers(traces, tasks, replace(reading, jobs=jobs))
    try:
        workers.start(count)
        yield workers.results()
    finally:
        workers.stop()


def _worker_count(traces: Sequence[Path], asked: int | None) -> tuple[int, int]:
    """How many processes work on traces, and how many processes each of them may use."""
    sizes = []
    for trace in traces:
        with contextlib.suppress(OSError):
            sizes.append(text_bytes(trace.stat().st_size, compressed=trace.suffix == ".gz"))
    jobs = asked or cores()
    if sum(sizes) < WORTHWHILE_BYTES or os.name != "posix":
        return 1, jobs
    count = min(jobs, len(traces))
    if asked is None:
        count = min(count, traces_at_once(max(sizes)))
    return count, max(1, jobs // count)


class _Workers(Generic[T]):
    """Worker processes, and what became of each trace."""

    def __init__(
        self, traces: Sequence[Path], tasks: Sequence[Task[T]], reading: ReadingOptions
    ) -> None:
        self._traces, self._tasks, self._reading = traces, tasks, reading
        self._waiting = deque(range(len(tasks)))
        self._running: dict[Future[Answer[T]], tuple[int, ProcessPoolExecutor]] = {}
        self._over: dict[int, Future[Answer[T]] | None] = {}
        self._pools: list[ProcessPoolExecutor] = []
        self._bytes_read = _context.RawArray("q", 2 * len(tasks))  # so far, and the file's size
        self._their_end, self._this_end = _context.Pipe(duplex=False)
        self._bars = contextlib.ExitStack()
        self._advance: Callable[[int, int | None, int | None], None] | None = None

    def start(self, count: int) -> None:
        """Start so many processes, and show how far each is."""
        for _ in range(count):
            self._give(self._pool())
        names = [trace.name for trace in self._traces]
        self._advance = self._bars.enter_context(several_progress(names))

    def stop(self) -> None:
        """End all processes; what they have half written they remove."""
        self._bars.close()
        self._this_end.close()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        self._their_end.close()

    def _pool(self) -> ProcessPoolExecutor:
        start = (self._their_end, self._bytes_read)
        with _worker_starting():
            self._pools.append(ProcessPoolExecutor(1, _context, _begin, start))
        return self._pools[-1]

    def _give(self, pool: ProcessPoolExecutor) -> None:
        """Hand the next trace to a worker that has none."""
        if not self._waiting:
            return
        number = self._waiting.popleft()
        try:
            with _worker_starting():
                future = pool.submit(_answer, self._tasks[number], number, self._reading)
        except OSError:  # no process can be started
            self._over[number] = None
        else:
            self._running[future] = number, pool

    def results(self) -> Iterator[Callable[[], T]]:
        """As `each_trace` yields them."""
        for number in range(len(self._tasks)):
            while number not in self._over and self._running:
                patience = _LOOK_EVERY_S if self._advance is not None else None
                over, _ = wait(self._running, patience, FIRST_COMPLETED)
                for future in over:
                    self._over[self._running[future][0]] = future
                    self._show_progress(future)
                    pool = self._running.pop(future)[1]
                    died = isinstance(future.exception(), BrokenProcessPool)
                    self._give(self._pool() if died else pool)
                for future in self._running:
                    self._show_progress(future)
            yield partial(self._result, number, self._over.pop(number, None))

    def _show_progress(self, future: Future[Answer[T]]) -> None:
        if self._advance is not None:
            number = self._running[future][0]
            done, size = self._bytes_read[2 * number : 2 * number + 2]
            self._advance(number, None if future.done() else done, size or None)

    def _result(self, number: int, future: Future[Answer[T]] | None) -> T:
        """Print what a worker printed, and return its result or raise the trace's error."""
        try:
            answer = future.result() if future is not None else None
        except BrokenProcessPool:
            raise TraceError(
                self._traces[number],
                "the process that worked on it died (killed, or out of memory)",
                "try it again with more free memory or a smaller --jobs",
            ) from None
        if answer is None:
            return self._tasks[number](self._reading, None)
        printed, result, error = answer
        for line in printed.splitlines():
            print_line(line, error=True)
        if error is not None:
            raise OutputError(error)
        return result  # type: ignore[return-value]  # no error: it is there


@contextlib.contextmanager
def _worker_starting() -> Iterator[None]:
    """Start a process in this block that does not import the main program.

    That may be a script, which would do all its work again.
    """
    main = sys.modules["__main__"]
    try:
        with processes_starting(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"):
            sys.modules["__main__"] = ModuleType("__main__")
            yield
    finally:
        sys.modules["__main__"] = main


# In a worker.

_bytes_read: Any = None


def _begin(parent: Connection, bytes_read: object) -> None:
    """Prepare this process: it ends, and removes what is half written, when its parent is gone."""
    global _bytes_read
    _bytes_read = bytes_read
    signal.signal(signal.SIGTERM, _stop)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()


def _stop_with(parent: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.recv()  # nothing is ever sent
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit


def _answer(task: Task[T], number: int, reading: ReadingOptions) -> Answer[T]:
    """Do a task; None when the process that asked should meet the error itself."""
    printed = io.StringIO()

    def note_progress(done: int, size: int | None) -> None:
        _bytes_read[2 * number : 2 * number + 2] = done, size or 0

    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            result = task(reading, note_progress)
        return printed.getvalue(), result, None
    except (TraceError, OutputError) as error:
        return printed.getvalue(), None, str(error)
    except SystemExit:  # an executor would go on with the next task
        os._exit(1)
    except Exception:  # noqa: BLE001  # whatever it is
        return None
