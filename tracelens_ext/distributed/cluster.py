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
from typing import TYPE_CHECKING, Any

from tracelens_ext.distributed.job import JobOutcome, TraceJob, run_job
from tracelens_ext.distributed.storage import FleetInput, reason
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.processes import cores, processes_starting, traces_at_once
from tracelens_ext.readers.ahead import text_bytes
from tracelens_ext.settings import VERSION

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

_CONNECT_WITHIN_S = 30
_OWN_PORT = "127.0.0.1:0"  # for Dask's web servers, which cannot be left out
_WORKERS_WITHIN_S = 180.0
_LOOK_EVERY_S = 5.0
_GONE = "the Dask scheduler is gone; what is done is kept: run the same command again"
_NO_WORKERS = "the Dask scheduler has no workers; start some: dask worker ADDRESS"
_MORE_THAN_THREADS = 2  # jobs a thread of a cluster far away: it has to ask for the next one


class ClusterError(TracelensError):
    """The scheduler cannot be reached, or has no workers."""


def require_fleet_extra() -> None:
    """Check that what a fleet needs is installed."""
    for name in ("distributed", "fsspec", "pyarrow"):
        if util.find_spec(name) is None:
            how = "not installed here; run: pip install 'tracelens-ext[fleet]'"
            raise UsageError(f"a fleet needs {name}, {how}")


def default_workers(sources: Sequence[FleetInput] = ()) -> int:
    """As many processes as this one may use cores, and as memory has room for such traces."""
    sizes = (text_bytes(s.size or 0, compressed=s.url.endswith(".gz")) for s in sources)
    return min(cores(), traces_at_once(max(sizes, default=0)))


@contextmanager
def workers_of(scheduler: str | None, workers: int) -> Iterator[Client]:
    """A Dask client: of a scheduler, of processes of this machine, or (0) of a thread of ours."""
    from distributed import Client

    with _quiet(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if scheduler is None:
            with processes_starting():
                cluster = _local_cluster(workers, folder)
                client = Client(cluster, set_as_default=False)
            with cluster, client:
                yield client
            return
        try:
            client = Client(scheduler, timeout=_CONNECT_WITHIN_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            answers = f"{scheduler}: no Dask scheduler answers ({reason(error)})"
            raise ClusterError(f"{answers}; check the address, such as tcp://host:8786") from None
        with client:
            _check_versions(client, scheduler)
            yield client


def _local_cluster(workers: int, folder: str) -> LocalCluster:
    """Workers of this machine, one job each; only this machine can connect to them."""
    import dask
    from distributed import LocalCluster

    # A death is told at once; who was at fault, and how often, is counted here.
    settings = {"distributed.scheduler.allowed-failures": 0, "temporary-directory": folder}
    own: dict[str, Any] = {"n_workers": max(workers, 1), "threads_per_worker": 1}
    own |= {"processes": workers > 0, "memory_limit": 0}  # the system knows when memory is short
    own |= {"host": "127.0.0.1" if workers > 0 else None, "local_directory": folder}
    # None would be every address of the machine, and a port that may be taken.
    own |= {"dashboard_address": _OWN_PORT, "worker_dashboard_address": _OWN_PORT}
    own |= {"scheduler_kwargs": {"dashboard": False}, "silence_logs": logging.CRITICAL}
    with dask.config.set(settings):
        return LocalCluster(**own)


def run_jobs(
    client: Client, jobs: Sequence[TraceJob], attempts: int, *, in_order: bool
) -> Iterator[tuple[TraceJob, JobOutcome, int]]:
    """Yield each job when over, how it went, and its attempts; `in_order`: one job a thread."""
    waiting = deque((job, 1) for job in jobs)
    running: dict[Future, tuple[TraceJob, int]] = {}
    over: queue.SimpleQueue[Future] = queue.SimpleQueue()
    a_thread = 1 if in_order else _MORE_THAN_THREADS
    seen = time.monotonic()
    try:
        while waiting or running:
            if threads := _threads(client):
                seen = time.monotonic()
            elif time.monotonic() - seen > _WORKERS_WITHIN_S:
                raise ClusterError(_NO_WORKERS)
            # One at least: some clusters grow when asked.
            while waiting and len(running) < max(1, threads * a_thread):
                job, attempt = waiting.popleft()
                key = f"tracelens-ext-{job.source.stem}-{attempt}-{os.getpid()}"
                future = client.submit(run_job, job, attempt, key=key, pure=False, retries=0)
                running[future] = job, attempt
                future.add_done_callback(over.put)
            try:
                future = over.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
            job, attempt = running.pop(future)
            outcome = _outcome(future, job)
            future.release()
            if outcome.about is None and not outcome.final and attempt < attempts:
                waiting.append((job, attempt + 1))
            else:
                yield job, outcome, attempt
    finally:
        for future in running:
            future.cancel()


def _outcome(future: Future, job: TraceJob) -> JobOutcome:
    """How a job went; a worker's death is one way."""
    from distributed.scheduler import KilledWorker

    if future.status in ("cancelled", "lost"):
        raise ClusterError(_GONE)
    if (error := future.exception()) is None:
        return future.result()  # type: ignore[no-any-return]
    died = "process died (out of memory, or killed)"
    failed = f"failed ({type(error).__name__}: {reason(error)})"
    what = died if isinstance(error, KilledWorker) else failed
    return JobOutcome(stage="worker", message=f"{job.source.name}: the worker {what}")


def _threads(client: Client) -> int:
    """The threads of the workers."""
    try:
        return sum(client.nthreads().values())
    except OSError:
        raise ClusterError(_GONE) from None


def _check_versions(client: Client, scheduler: str) -> None:
    """Refuse workers that lack this program, or have another version of it."""
    try:
        found = client.run(_version, on_error="return")
    except OSError:
        raise ClusterError(_GONE) from None
    for worker, answer in found.items():
        if answer != VERSION:
            has = f"has version {answer}" if isinstance(answer, str) else "lacks it"
            differ = f"{scheduler}: this is tracelens-ext {VERSION}, but worker {worker} {has}"
            raise ClusterError(f"{differ}; install the same version there, with the extra fleet")


def _version() -> str:
    require_fleet_extra()
    return VERSION


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs whatever happens to a worker, and so do its libraries; failures are told here."""
    # Dask gives loggers below these, such as that of clients, levels of their own.
    noisy = ("distributed", "tornado", "asyncio")
    names = {*noisy, *(n for n in logging.root.manager.loggerDict if n.startswith(noisy))}
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
