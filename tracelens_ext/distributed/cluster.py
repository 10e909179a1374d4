"""Jobs on Dask workers: of this process, of this machine, or of a cluster.

A worker that dies may die of its job. So no more jobs are handed out than there are threads; each
death counts against the one job that the worker was doing, which is given up after its attempts.
"""

from __future__ import annotations

import logging
import os
import queue
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import util
from typing import TYPE_CHECKING, Any, NamedTuple

from tracelens_ext.distributed.inputs import FleetInput, reason
from tracelens_ext.distributed.job import JobOutcome, Stage, TraceJob, run_job
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.processes import cores, processes_starting, traces_at_once
from tracelens_ext.readers.ahead import text_bytes
from tracelens_ext.settings import VERSION

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

_CONNECT_TIMEOUT_S = 30
#: For Dask's web servers, which cannot be left out.
_LOCAL_PORT = "127.0.0.1:0"
_WORKERS_TIMEOUT_S = 180.0
_POLL_S = 5.0
#: Jobs for each thread of a remote cluster, which has to ask for the next one.
_JOBS_PER_REMOTE_THREAD = 2
_FLEET_PACKAGES = ("distributed", "fsspec", "pyarrow")
_NOISY_LOGGERS = ("distributed", "tornado", "asyncio")
_SCHEDULER_GONE = (
    "the Dask scheduler is gone; finished results are kept: run the same command again"
)
_NO_WORKERS = "the Dask scheduler has no workers; start some: dask worker ADDRESS"


class ClusterError(TracelensError):
    """The scheduler cannot be reached, or has no workers."""


def require_fleet_extra() -> None:
    """Check that the packages that a fleet needs are installed.

    Raises:
        UsageError: one is not.
    """
    for name in _FLEET_PACKAGES:
        if util.find_spec(name) is None:
            remedy = "not installed here; run: pip install 'tracelens-ext[fleet]'"
            raise UsageError(f"fleet needs {name}, {remedy}")


def default_workers(sources: Sequence[FleetInput] = ()) -> int:
    """Return as many processes as there are cores, and as memory has room for such traces."""
    sizes = [
        text_bytes(source.size or 0, compressed=source.url.endswith(".gz"))
        for source in sources
    ]
    return min(cores(), traces_at_once(max(sizes, default=0)))


@contextmanager
def workers_of(scheduler: str | None, workers: int) -> Iterator[Client]:
    """Yield a Dask client.

    Args:
        scheduler: its address; None for workers of this machine.
        workers: how many processes of this machine; 0 for a thread of this process.

    Raises:
        ClusterError: the scheduler cannot be reached, or its workers have another version.
    """
    from distributed import Client

    with (
        _quiet_logs(),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        if scheduler is None:
            with processes_starting():
                cluster = _local_cluster(workers, folder)
                client = Client(cluster, set_as_default=False)
            with cluster, client:
                yield client
        else:
            with _connected(scheduler) as client:
                _check_versions(client, scheduler)
                yield client


def _connected(scheduler: str) -> Client:
    """Return a client of a scheduler."""
    from distributed import Client

    try:
        return Client(scheduler, timeout=_CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        problem = f"{scheduler}: no Dask scheduler responds ({reason(error)})"
        raise ClusterError(
            f"{problem}; check the address, such as tcp://host:8786"
        ) from None


def _local_cluster(workers: int, folder: str) -> LocalCluster:
    """Return workers of this machine, one job each; only this machine can connect to them."""
    import dask
    from distributed import LocalCluster

    settings = {
        # A death is reported at once; which job was at fault, and how often, is counted here.
        "distributed.scheduler.allowed-failures": 0,
        "temporary-directory": folder,
    }
    has_processes = workers > 0
    with dask.config.set(settings):
        return LocalCluster(
            n_workers=max(workers, 1),
            threads_per_worker=1,
            processes=has_processes,
            memory_limit=0,  # the system knows when memory is short
            host="127.0.0.1" if has_processes else None,
            local_directory=folder,
            # None would be every address of the machine, and a port that may be taken.
            dashboard_address=_LOCAL_PORT,
            worker_dashboard_address=_LOCAL_PORT,
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )


class _Attempt(NamedTuple):
    """A job, and how often it has been tried."""

    job: TraceJob
    number: int  #: from 1


class FinishedJob(NamedTuple):
    """A job that is over."""

    job: TraceJob
    outcome: JobOutcome
    attempts: int  #: how often it was tried


def run_jobs(
    client: Client, jobs: Sequence[TraceJob], attempts: int, *, in_order: bool
) -> Iterator[FinishedJob]:
    """Yield each job when it is over.

    Args:
        client: whose workers do the jobs.
        jobs: in the order in which they are handed out.
        attempts: how often a job that fails is tried.
        in_order: each thread has one job at a time, so that they begin in their order.

    Raises:
        ClusterError: the scheduler is gone, or has had no workers for minutes.
    """
    waiting = deque(_Attempt(job, 1) for job in jobs)
    running: dict[Future, _Attempt] = {}
    finished: queue.SimpleQueue[Future] = queue.SimpleQueue()
    jobs_per_thread = 1 if in_order else _JOBS_PER_REMOTE_THREAD
    last_seen_workers = time.monotonic()
    try:
        while waiting or running:
            threads = _thread_count(client)
            if threads:
                last_seen_workers = time.monotonic()
            elif time.monotonic() - last_seen_workers > _WORKERS_TIMEOUT_S:
                raise ClusterError(_NO_WORKERS)
            # One at least: some clusters grow when work arrives.
            most_running = max(1, threads * jobs_per_thread)
            while waiting and len(running) < most_running:
                attempt = waiting.popleft()
                future = _submit(client, attempt)
                running[future] = attempt
                future.add_done_callback(finished.put)
            try:
                future = finished.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            attempt = running.pop(future)
            outcome = _outcome(future, attempt.job)
            future.release()
            has_failed = outcome.about is None and not outcome.final
            if has_failed and attempt.number < attempts:
                waiting.append(_Attempt(attempt.job, attempt.number + 1))
            else:
                yield FinishedJob(
                    job=attempt.job,
                    outcome=outcome,
                    attempts=attempt.number,
                )
    finally:
        for future in running:
            future.cancel()


def _submit(client: Client, attempt: _Attempt) -> Future:
    """Hand out a job."""
    key = f"tracelens-ext-{attempt.job.source.stem}-{attempt.number}-{os.getpid()}"
    return client.submit(
        run_job, attempt.job, attempt.number, key=key, pure=False, retries=0
    )


def _outcome(future: Future, job: TraceJob) -> JobOutcome:
    """Return how a job went; the death of its worker is one way."""
    from distributed.scheduler import KilledWorker

    if future.status in ("cancelled", "lost"):
        raise ClusterError(_SCHEDULER_GONE)
    error = future.exception()
    if error is None:
        outcome: JobOutcome = future.result()
        return outcome
    if isinstance(error, KilledWorker):
        problem = "process died (out of memory, or killed)"
    else:
        problem = f"failed ({type(error).__name__}: {reason(error)})"
    message = f"{job.source.name}: the worker {problem}"
    return JobOutcome(stage=str(Stage.WORKER), message=message)


def _thread_count(client: Client) -> int:
    """Return how many threads the workers have."""
    try:
        return sum(client.nthreads().values())
    except OSError:
        raise ClusterError(_SCHEDULER_GONE) from None


def _check_versions(client: Client, scheduler: str) -> None:
    """Refuse workers that lack this program, or have another version of it."""
    try:
        versions: dict[str, Any] = client.run(_version, on_error="return")
    except OSError:
        raise ClusterError(_SCHEDULER_GONE) from None
    for worker, version in versions.items():
        if version == VERSION:
            continue
        problem = f"has version {version}" if isinstance(version, str) else "lacks it"
        raise ClusterError(
            f"{scheduler}: this is tracelens-ext {VERSION}, but worker {worker} {problem};"
            " install the same version there, with the extra fleet"
        )


def _version() -> str:
    """Return the version of this program, for a worker."""
    require_fleet_extra()
    return VERSION


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Silence Dask and its libraries, which log whatever happens to a worker.

    Failures are reported by this program.
    """
    # Dask gives loggers below these, such as that of clients, levels of their own.
    names = set(_NOISY_LOGGERS)
    names.update(
        name
        for name in logging.root.manager.loggerDict
        if name.startswith(_NOISY_LOGGERS)
    )
    loggers = [logging.getLogger(name) for name in names]
    level_of_logger = {logger: logger.level for logger in loggers}
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in level_of_logger.items():
            logger.setLevel(level)
