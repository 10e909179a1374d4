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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

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
    with contextlib.closing(
        _results(
            traces=traces, tasks=tasks, reading=replace(reading, jobs=jobs), count=count
        )
    ) as results:
        yield results


def _worker_count(
    traces: Sequence[Path], wanted_workers: int | None
) -> tuple[int, int]:
    """How many processes work on traces, and how many processes each of them may use."""
    sizes = []
    for trace in traces:
        with contextlib.suppress(OSError):
            sizes.append(
                text_bytes(trace.stat().st_size, compressed=trace.suffix == ".gz")
            )
    jobs = wanted_workers or cores()
    if sum(sizes) < WORTHWHILE_BYTES or os.name != "posix":
        return 1, jobs
    count = min(jobs, len(traces))
    if wanted_workers is None:
        count = min(count, traces_at_once(max(sizes)))
    return count, max(1, jobs // count)


def _results(
    traces: Sequence[Path],
    tasks: Sequence[Task[T]],
    reading: ReadingOptions,
    count: int,
) -> Generator[Callable[[], T], None, None]:
    """As `each_trace` yields them, of so many processes; they end with this generator."""
    waiting = deque(range(len(tasks)))
    over = dict[int, Future[Answer[T]] | None]()
    running: dict[Future[Answer[T]], tuple[int, ProcessPoolExecutor]] = {}
    bytes_read = _context.RawArray("q", 2 * len(tasks))  # so far, and the file's size
    their_end, this_end = _context.Pipe(duplex=False)
    pools: list[ProcessPoolExecutor] = []

    def give(pool: ProcessPoolExecutor | None = None) -> None:
        """Hand the next trace to a worker that has none, or to a new one."""
        if not waiting:
            return
        number = waiting.popleft()
        try:
            with _worker_starting():
                if pool is None:
                    pool = ProcessPoolExecutor(
                        1, _context, _begin, (their_end, bytes_read)
                    )
                    pools.append(pool)
                running[pool.submit(_answer, tasks[number], number, reading)] = (
                    number,
                    pool,
                )
        except OSError:  # no process can be started
            over[number] = None

    try:
        for _ in range(count):
            give()
        with several_progress([trace.name for trace in traces]) as advance:
            for number, (task, trace) in enumerate(zip(tasks, traces, strict=True)):
                while number not in over and running:
                    wait(running, _LOOK_EVERY_S if advance else None, FIRST_COMPLETED)
                    for future, (at, pool) in list(running.items()):
                        done, size = bytes_read[2 * at : 2 * at + 2]
                        ended = future.done()
                        if advance:
                            advance(at, None if ended else done, size or None)
                        if ended:
                            over[at] = future
                            del running[future]
                            died = isinstance(future.exception(), BrokenProcessPool)
                            give(None if died else pool)
                yield partial(_result, trace, task, reading, over.pop(number, None))
    finally:
        this_end.close()
        for each in pools:
            each.shutdown(cancel_futures=True)
        their_end.close()


def _result(
    trace: Path,
    task: Task[T],
    reading: ReadingOptions,
    future: Future[Answer[T]] | None,
) -> T:
    """Print what a worker printed, and return its result or raise the trace's error."""
    try:
        answer = future.result() if future is not None else None
    except BrokenProcessPool:
        raise TraceError(
            path=trace,
            problem="its worker process died (killed, or out of memory)",
            remedy="try again with more free memory or fewer --jobs",
        ) from None
    if answer is None:
        return task(reading, None)
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
    watcher = threading.Thread(target=_stop_with, args=(parent,), daemon=True)
    watcher.start()


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
