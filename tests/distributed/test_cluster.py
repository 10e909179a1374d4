"""Jobs on workers: how many are submitted at once, and which ones are tried again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fleet_helpers import needs_fleet
from tracelens_ext.distributed.cluster import FinishedJob, run_jobs
from tracelens_ext.distributed.job import JobOutcome

pytestmark = needs_fleet

THREADS_OF_WORKER = {"tcp://worker:1": 1, "tcp://worker:2": 2}


class StubFuture:
    """A future of a job that is already over."""

    status = "finished"

    def __init__(self, client: StubClient, outcome: JobOutcome) -> None:
        self._client = client
        self._outcome = outcome

    def add_done_callback(self, callback: Callable[[StubFuture], object]) -> None:
        callback(self)

    def exception(self) -> None:
        return None

    def result(self) -> JobOutcome:
        return self._outcome

    def release(self) -> None:
        self._client.submitted_now -= 1


class StubClient:
    """A Dask client that counts the jobs that are submitted and not released yet."""

    def __init__(self, outcomes_of_job: dict[str, list[JobOutcome]]) -> None:
        self._outcomes_of_job = outcomes_of_job
        self.submitted_now = 0
        self.most_submitted = 0

    def nthreads(self) -> dict[str, int]:
        return THREADS_OF_WORKER

    def submit(
        self, _function: object, job: Any, attempt: int, **_options: object
    ) -> StubFuture:
        self.submitted_now += 1
        self.most_submitted = max(self.most_submitted, self.submitted_now)
        return StubFuture(self, self._outcomes_of_job[job.source.stem][attempt - 1])


def finished_jobs(
    client: StubClient, stems: list[str], *, attempts: int = 1, is_remote: bool = False
) -> list[FinishedJob]:
    jobs: Any = [SimpleNamespace(source=SimpleNamespace(stem=stem)) for stem in stems]
    stub: Any = client
    return list(run_jobs(stub, jobs, attempts, is_remote=is_remote))


@pytest.mark.parametrize(
    ("is_remote", "most_submitted"),
    [
        pytest.param(False, 3, id="local workers get one job per thread"),
        pytest.param(True, 6, id="remote workers get two jobs per thread"),
    ],
)
def test_jobs_that_are_submitted_at_once(is_remote: bool, most_submitted: int) -> None:
    stems = [f"trace{number}" for number in range(10)]
    client = StubClient({stem: [JobOutcome(about={})] for stem in stems})
    finished = finished_jobs(client, stems, is_remote=is_remote)
    assert [job.job.source.stem for job in finished] == stems
    assert client.most_submitted == most_submitted


def test_a_job_is_tried_again_unless_it_would_fail_again() -> None:
    failure = JobOutcome(message="out of memory")
    client = StubClient(
        {
            "fails_once": [failure, JobOutcome(about={})],
            "always_fails": [failure, failure, failure],
            "is_damaged": [JobOutcome(message="damaged", final=True)],
        }
    )
    stems = ["fails_once", "always_fails", "is_damaged"]
    finished = finished_jobs(client, stems, attempts=3)
    attempts = {job.job.source.stem: job.attempts for job in finished}
    assert attempts == {"fails_once": 2, "always_fails": 3, "is_damaged": 1}
    failed = {job.job.source.stem for job in finished if job.outcome.about is None}
    assert failed == {"always_fails", "is_damaged"}
