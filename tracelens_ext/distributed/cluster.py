"""Runs the jobs of a fleet on Dask workers: a thread, local processes, or a remote cluster.

A job can kill its worker, for example when the worker runs out of memory. Dask counts the death
of a worker against every job that the worker held. Therefore a local worker holds one job at a
time, so its death counts against the job that it was doing and no other. A worker of a remote
cluster holds up to two jobs per thread, so that it does not sit idle until the next job arrives.
How many deaths a job survives there is a setting of its scheduler (`allowed-failures`, 3 by
default).
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
#: Address of Dask's web servers, which cannot be turned off: a free port of this machine.
_LOCAL_PORT = "127.0.0.1:0"
#: How long a scheduler may be without workers before the fleet gives up.
_WORKERS_TIMEOUT_S = 180.0
#: How often the number of workers is checked while no job finishes.
_POLL_S = 5.0
#: Jobs submitted per thread of a remote cluster: one that runs, and one that waits next to it.
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
        UsageError: one of the packages is not installed.
    """
    for name in _FLEET_PACKAGES:
        if util.find_spec(name) is None:
            remedy = "not installed here; run: pip install 'tracelens-ext[fleet]'"
            raise UsageError(f"fleet needs {name}, {remedy}")


def default_workers(sources: Sequence[FleetInput] = ()) -> int:
    """Return the default number of worker processes on this machine.

    There is one process per core, but no more than can hold the largest trace in memory at the
    same time.
    """
    sizes = [
        text_bytes(source.size or 0, compressed=source.url.endswith(".gz"))
        for source in sources
    ]
    return min(cores(), traces_at_once(max(sizes, default=0)))


@contextmanager
def workers_of(scheduler: str | None, workers: int) -> Iterator[Client]:
    """Yield a Dask client whose workers do the jobs of a fleet.

    Args:
        scheduler: the address of a remote scheduler; None to start workers on this machine.
        workers: the number of local processes to start; 0 to use one thread of this process.
            Ignored if there is a remote scheduler.

    Raises:
        ClusterError: the scheduler cannot be reached, or its workers have another version of
            this program.
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
    """Return a client that is connected to a remote scheduler."""
    from distributed import Client

    try:
        return Client(scheduler, timeout=_CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        problem = f"{scheduler}: no Dask scheduler responds ({reason(error)})"
        raise ClusterError(
            f"{problem}; check the address, such as tcp://host:8786"
        ) from None


def _local_cluster(workers: int, folder: str) -> LocalCluster:
    """Start single-threaded workers that only this machine can connect to."""
    import dask
    from distributed import LocalCluster

    settings = {
        # Dask reports the first death of a worker instead of running its job again: `run_jobs`
        # counts the attempts of each job itself.
        "distributed.scheduler.allowed-failures": 0,
        "temporary-directory": folder,
    }
    has_processes = workers > 0
    with dask.config.set(settings):
        return LocalCluster(
            n_workers=max(workers, 1),
            threads_per_worker=1,
            processes=has_processes,
            # Dask's own limit would kill workers at an estimate; the operating system decides.
            memory_limit=0,
            host="127.0.0.1" if has_processes else None,
            local_directory=folder,
            # Without an address, Dask listens on all interfaces and on a port that may be in use.
            dashboard_address=_LOCAL_PORT,
            worker_dashboard_address=_LOCAL_PORT,
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )


class _Attempt(NamedTuple):
    """One attempt at a job."""

    job: TraceJob
    number: int  #: 1 for the first attempt


class FinishedJob(NamedTuple):
    """A job that succeeded, or that failed and is not tried again."""

    job: TraceJob
    outcome: JobOutcome
    attempts: int  #: how often it was tried


def run_jobs(
    client: Client, jobs: Sequence[TraceJob], attempts: int, *, is_remote: bool
) -> Iterator[FinishedJob]:
    """Run jobs on the workers of a client, and yield each job as soon as it is over.

    Args:
        client: a client of the scheduler whose workers run the jobs.
        jobs: the jobs, in the order in which they are submitted.
        attempts: how often a job that fails is tried.
        is_remote: submit up to two jobs per thread, for a scheduler on other machines; False to
            submit one job per thread, so that the jobs also begin in their order.

    Raises:
        ClusterError: the scheduler is gone, or it has had no workers for three minutes.
    """
    waiting = deque(_Attempt(job, 1) for job in jobs)
    running: dict[Future, _Attempt] = {}
    finished: queue.SimpleQueue[Future] = queue.SimpleQueue()
    jobs_per_thread = _JOBS_PER_REMOTE_THREAD if is_remote else 1
    last_seen_workers = time.monotonic()
    try:
        while waiting or running:
            threads = _thread_count(client)
            if threads:
                last_seen_workers = time.monotonic()
            elif time.monotonic() - last_seen_workers > _WORKERS_TIMEOUT_S:
                raise ClusterError(_NO_WORKERS)
            # At least one job is submitted even without workers: some clusters start their
            # workers only when there is work.
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
    """Submit an attempt at a job to the scheduler."""
    key = f"tracelens-ext-{attempt.job.source.stem}-{attempt.number}-{os.getpid()}"
    return client.submit(
        run_job, attempt.job, attempt.number, key=key, pure=False, retries=0
    )


def _outcome(future: Future, job: TraceJob) -> JobOutcome:
    """Return the outcome of a job whose future is done, also if its worker died."""
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
    """Return the number of threads of all workers together."""
    try:
        return sum(client.nthreads().values())
    except OSError:
        raise ClusterError(_SCHEDULER_GONE) from None


def _check_versions(client: Client, scheduler: str) -> None:
    """Check that every worker has this version of the program.

    Raises:
        ClusterError: a worker lacks the program or has another version, or the scheduler is gone.
    """
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
    """Return the version of this program; it runs on a worker."""
    require_fleet_extra()
    return VERSION


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Silence the loggers of Dask and its libraries while the fleet runs.

    They would log every event of a worker; this program reports the failures itself.
    """
    # Dask sets the levels of some child loggers, such as `distributed.client`, so silencing
    # their parents is not enough.
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
