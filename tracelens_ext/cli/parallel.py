"""Works on several traces in worker processes, with the same outcome as in this process alone.

Each worker is a `ProcessPoolExecutor` of one process: when the process dies, it is known which
trace it worked on, and the other traces go on. Workers are spawned, not forked: this process has
threads (numerical libraries, progress bars), and a fork copies their locks in whatever state they
are. A spawned process needs half a second to import the libraries; `WORTHWHILE_BYTES` allows for
that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Generic, NamedTuple

from tracelens_ext.cli.progress import Advance, several_progress
from tracelens_ext.cli.screen import print_line
from tracelens_ext.cli.worker_process import (
    Answer,
    ReadingProgress,
    Result,
    Task,
    answer,
    start_worker,
)
from tracelens_ext.errors import OutputError, TraceError
from tracelens_ext.processes import cores, processes_starting, traces_at_once
from tracelens_ext.readers.ahead import text_bytes
from tracelens_ext.settings import ReadingOptions

#: Traces with fewer bytes of text than this, all together, are not worth starting processes for.
WORTHWHILE_BYTES = 200 * 10**6
#: How often the progress bars are updated.
_UPDATE_INTERVAL_S = 0.1
_context = get_context("spawn")


@contextlib.contextmanager
def each_trace(
    traces: Sequence[Path], tasks: Sequence[Task[Result]], reading: ReadingOptions
) -> Iterator[Iterator[Callable[[], Result]]]:
    """Work on traces in several processes if that is quicker and there is memory for it.

    The processes are gone when the block is left, even by an exception.

    Args:
        traces: the files.
        tasks: what to do with each trace. Tasks and their results have to be picklable. A task is
            called with `reading`, in which `jobs` is the share of one process.
        reading: how to read the traces.

    Yields:
        An iterator with a function for each trace, in their order. The iterator waits until the
        trace is done; the function prints to standard error what the task printed, and returns its
        result or raises its error.
    """
    division = _divide_work(traces, reading.jobs)
    if division.workers == 1:
        yield (partial(task, reading, None) for task in tasks)
        return
    reading_in_worker = replace(reading, jobs=division.jobs_of_worker)
    pool = _WorkerPool(tasks, reading_in_worker)
    try:
        pool.start(division.workers)
        yield _results(traces, tasks, reading_in_worker, pool)
    finally:
        pool.shut_down()


class _Division(NamedTuple):
    """How many workers share the traces, and how many processes each of them may use."""

    workers: int  #: 1 if this process does all the work
    jobs_of_worker: int


def _divide_work(traces: Sequence[Path], wanted_jobs: int | None) -> _Division:
    """Divide the processes that may be used; `wanted_jobs` is the option `--jobs`."""
    sizes = []
    for trace in traces:
        with contextlib.suppress(OSError):
            size = trace.stat().st_size
            sizes.append(text_bytes(size, compressed=trace.suffix == ".gz"))
    jobs = wanted_jobs or cores()
    if sum(sizes) < WORTHWHILE_BYTES or os.name != "posix":
        return _Division(workers=1, jobs_of_worker=jobs)
    workers = min(jobs, len(traces))
    if wanted_jobs is None:
        workers = min(workers, traces_at_once(max(sizes)))
    return _Division(workers, jobs_of_worker=max(1, jobs // workers))


def _results(
    traces: Sequence[Path],
    tasks: Sequence[Task[Result]],
    reading: ReadingOptions,
    pool: _WorkerPool[Result],
) -> Iterator[Callable[[], Result]]:
    """Yield the function that `each_trace` promises for each trace, when the trace is done."""
    with several_progress([trace.name for trace in traces]) as advance:
        for number, (trace, task) in enumerate(zip(traces, tasks, strict=True)):
            future = pool.wait_for(number, advance)
            yield partial(_result, trace, task, reading, future)


class _Running(NamedTuple, Generic[Result]):
    """A trace that a worker is working on."""

    trace: int  #: an index into the traces
    worker: ProcessPoolExecutor


class _WorkerPool(Generic[Result]):
    """Workers that share traces, which are numbered from 0 in the order of their tasks."""

    def __init__(self, tasks: Sequence[Task[Result]], reading: ReadingOptions) -> None:
        self._tasks = tasks
        self._reading = reading
        self._waiting = deque(range(len(tasks)))
        self._running: dict[Future[Answer[Result] | None], _Running[Result]] = {}
        #: The traces that are done, with None where no worker could be started for one.
        self._done: dict[int, Future[Answer[Result] | None] | None] = {}
        self._workers: list[ProcessPoolExecutor] = []
        self._progress_numbers = _context.RawArray("q", 2 * len(tasks))
        self._progress = ReadingProgress(self._progress_numbers)
        # Workers hold the receiving end, and notice when this process, with the sending end, ends.
        self._receiving_end, self._sending_end = _context.Pipe(duplex=False)

    def start(self, count: int) -> None:
        """Start some workers, each with a trace."""
        for _ in range(count):
            self._start_next_trace()

    def wait_for(
        self, trace: int, advance: Advance | None
    ) -> Future[Answer[Result] | None] | None:
        """Wait until a trace is done, and keep all workers busy meanwhile.

        Returns:
            The future with the answer of the worker; None if no worker could be started.
        """
        interval = None if advance is None else _UPDATE_INTERVAL_S
        while trace not in self._done and self._running:
            wait(self._running, interval, FIRST_COMPLETED)
            if advance is not None:
                self._show_progress(advance)
            self._take_finished_traces()
        return self._done.pop(trace, None)

    def shut_down(self) -> None:
        """End all workers; tasks that they are working on are stopped."""
        self._sending_end.close()
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)
        self._receiving_end.close()

    def _start_next_trace(self, worker: ProcessPoolExecutor | None = None) -> None:
        """Hand the next trace, if there is one, to an idle worker, or to a new one."""
        if not self._waiting:
            return
        trace = self._waiting.popleft()
        task = self._tasks[trace]
        try:
            with _worker_starting():
                if worker is None:
                    worker = self._new_worker()
                future = worker.submit(answer, task, trace, self._reading)
        except OSError:
            # The system allows no more processes: this process will do the task.
            self._done[trace] = None
        else:
            self._running[future] = _Running(trace, worker)

    def _new_worker(self) -> ProcessPoolExecutor:
        worker = ProcessPoolExecutor(
            max_workers=1,
            mp_context=_context,
            initializer=start_worker,
            initargs=(self._receiving_end, self._progress_numbers),
        )
        self._workers.append(worker)
        return worker

    def _show_progress(self, advance: Advance) -> None:
        for future, running in self._running.items():
            trace = running.trace
            bytes_read = None if future.done() else self._progress.bytes_read(trace)
            advance(trace, bytes_read, self._progress.size(trace))

    def _take_finished_traces(self) -> None:
        """Note which traces are done, and give their workers the next ones."""
        for future, running in list(self._running.items()):
            if not future.done():
                continue
            self._done[running.trace] = future
            del self._running[future]
            has_died = isinstance(future.exception(), BrokenProcessPool)
            self._start_next_trace(None if has_died else running.worker)


def _result(
    trace: Path,
    task: Task[Result],
    reading: ReadingOptions,
    future: Future[Answer[Result] | None] | None,
) -> Result:
    """Print what a worker printed, and return its result or raise the error of the trace.

    Without an answer from a worker, the task is done here.
    """
    try:
        worker_answer = future.result() if future is not None else None
    except BrokenProcessPool:
        raise TraceError(
            path=trace,
            problem="its worker process died (killed, or out of memory)",
            remedy="try again with more free memory or fewer --jobs",
        ) from None
    if worker_answer is None:
        return task(reading, None)
    for line in worker_answer.printed.splitlines():
        print_line(line, error=True)
    if worker_answer.error is not None:
        raise OutputError(worker_answer.error)
    # A result may be None itself, so its type does not tell that it is there.
    return worker_answer.result  # type: ignore[return-value]


@contextlib.contextmanager
def _worker_starting() -> Iterator[None]:
    """Start a process in this block that does not import the main program.

    The main program may be a script without `if __name__ == "__main__"`, which would do all its
    work again.
    """
    main = sys.modules["__main__"]
    try:
        with processes_starting(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"):
            sys.modules["__main__"] = ModuleType("__main__")
            yield
    finally:
        sys.modules["__main__"] = main
