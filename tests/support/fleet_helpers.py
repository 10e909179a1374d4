"""Small traces of the ranks of one job, and a web server on this machine that serves them."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import TraceMaker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
STEP_US = 1000

needs_fleet = pytest.mark.skipif(
    not all(
        importlib.util.find_spec(name) for name in ("distributed", "fsspec", "pyarrow")
    ),
    reason="dask, fsspec or pyarrow are not installed (the extra `fleet`)",
)
needs_web = pytest.mark.skipif(
    not importlib.util.find_spec("aiohttp"),
    reason="aiohttp is not installed: no http://",
)


def collective(
    name: str = "allreduce", size: int = 4, **other: object
) -> dict[str, object]:
    """Return the arguments that the profiler records of a collective."""
    return {
        "Collective name": name,
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "Group size": size,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(size))),
    } | other


def rank_trace(
    rank: int | None,
    *,
    world: int = 4,
    gemm_us: int = 100,
    steps: int = 2,
    first: int = 1,
) -> str:
    """Return the trace of a rank whose steps consist of a GEMM and an all-reduce.

    The all-reduce ends 500 µs after the start of the step on every rank, so ranks with short GEMMs
    wait in it.
    """
    maker = TraceMaker()
    for step in range(steps):
        start = step * STEP_US
        maker.annotation(f"ProfilerStep#{first + step}", start, STEP_US - 10)
        maker.op("aten::mm", start + 10, 20)
        maker.launched(
            GEMM, start + 20, gemm_us, correlation=10 * step + 1, at=start + 12
        )
        maker.op("record_param_comms", start + 40, 20, args=collective(size=world))
        all_reduce_start = start + 20 + gemm_us
        maker.launched(
            ALL_REDUCE,
            all_reduce_start,
            start + 500 - all_reduce_start,
            correlation=10 * step + 2,
            at=start + 45,
            stream=9,
        )
    if rank is None:
        return json.dumps(maker.document())
    info = {"rank": rank, "world_size": world}
    return json.dumps(maker.document(distributedInfo=info))


def write_ranks(folder: Path, gemm_us: Mapping[int, int], *, world: int = 4) -> None:
    """Write `rank0.json.gz` and so on.

    Args:
        folder: the folder, which is created.
        gemm_us: rank → duration of its GEMMs.
        world: the number of ranks of the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank, us in gemm_us.items():
        text = rank_trace(rank, world=world, gemm_us=us)
        (folder / f"rank{rank}.json.gz").write_bytes(
            gzip.compress(text.encode(), mtime=0)
        )


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and kills the process that requests certain files."""

    def __init__(
        self,
        *arguments: object,
        deaths: dict[str, int],
        requested: list[str],
        **options: object,
    ) -> None:
        self.deaths = deaths
        self.requested = requested
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        self.requested.append(name)
        if self.deaths.get(name, 0) > 0:
            self.deaths[name] -= 1
            _kill_peer(self.client_address[1])
            return
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def _kill_peer(port: int) -> None:
    """Kill the child process of this one that has a connection from a port."""
    import psutil

    for child in psutil.Process(os.getpid()).children(recursive=True):
        connections = child.net_connections(kind="tcp")
        if port in [connection.laddr.port for connection in connections]:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            return
    raise AssertionError(f"no child process is at port {port}")


@contextmanager
def served(
    folder: Path, deaths: dict[str, int] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder on a web server of this machine.

    Args:
        folder: the folder.
        deaths: file → how often the process that requests it is killed instead of served.

    Yields:
        The URL of the folder, and a list to which the name of each requested file is added.
    """
    requested: list[str] = []
    handler = partial(
        _Handler, directory=str(folder), deaths=deaths or {}, requested=requested
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested
        finally:
            server.shutdown()
            thread.join()
