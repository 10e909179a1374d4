"""What is fuzzed: where an input goes, what has to hold, how it is damaged, what it starts from.

A target's seeds are the broken inputs of the tests and, for what is not a trace, small good files.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
sys.path.insert(0, str(ROOT))

from tests.support import trace_properties as properties  # noqa: E402
from tests.support import xplane_maker  # noqa: E402
from tests.support.make_trace import LAYOUTS, cuda_graph_example  # noqa: E402
from tests.support.nsys_export_maker import training  # noqa: E402
from tests.support.nsys_report_maker import call, report, steps  # noqa: E402
from tests.support.rocprof_maker import training as rocprof_training  # noqa: E402
from tests.support.statistics_helpers import GPU_TRACE, KERNELS, MEMORY, RANGES, SIZES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROKEN = TESTS / "broken_inputs"
_LONGEST_SEED = 20_000


@dataclass(frozen=True)
class Target:
    """One thing that is fuzzed.

    Attributes:
        check: raises when something does not hold for an input.
        seeds: what to begin with.
        as_text: whether inputs are text that is damaged token by token; else byte by byte.
        share: how much of the time it gets.
    """

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    as_text: bool = True
    share: int = 1


def _traces() -> Iterator[bytes]:
    for path in sorted(BROKEN.iterdir()):
        if path.suffix == ".json" and path.stat().st_size < _LONGEST_SEED:
            yield path.read_bytes()
    for layout in LAYOUTS.values():
        yield layout(cuda_graph_example()).encode()


def _gzipped() -> Iterator[bytes]:
    for path in sorted(BROKEN.glob("*.gz")):
        yield path.read_bytes()


def _databases() -> Iterator[bytes]:
    for path in sorted(BROKEN.glob("*.sqlite")):
        yield path.read_bytes()
    yield training().content


def _nsys_reports() -> Iterator[bytes]:
    yield steps()
    blocks = [
        [call(0, 100 * block + 10 * i, 5, i) for i in range(9)] for block in range(3)
    ]
    yield report(*blocks, strings=["cudaLaunchKernel_v7000"])


def _rocpd() -> Iterator[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield rocprof_training().write_rocpd(Path(folder) / "run.db").read_bytes()


def _rocprof_json() -> Iterator[bytes]:
    yield json.dumps(rocprof_training().document_of_rocprof()).encode()


def _rocprof_tables() -> Iterator[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rocprof_training().write_csv(Path(folder))
        for path in sorted(Path(folder).iterdir()):
            yield path.read_bytes()


def _profiles() -> Iterator[bytes]:
    maker = xplane_maker.training()
    yield maker.content
    yield maker.written(metadata_last=True)
    yield maker.for_viewers


def _perfetto() -> Iterator[bytes]:
    from tests.support.perfetto_maker import begin, end, thread_track, trace

    args = {"External id": 3, "correlation": 7, "Input Dims": "[[1]]"}
    yield trace(
        thread_track(1, 2, 3, "main"), begin(1, 1, "a", "cpu_op", args=args), end(2, 1)
    )
    kernels = [
        (begin(10 * i, 1, f"k{i}", "kernel"), end(10 * i + 4, 1)) for i in range(9)
    ]
    yield trace(
        thread_track(1, 0, 7, "stream 7"), *(each for both in kernels for each in both)
    )


def _snapshots() -> Iterator[bytes]:
    import pickle

    from tests.analysis.test_memory_snapshot import USER, block, change, segment

    events = [change("alloc", 1, 10, 1, USER), change("free_completed", 1, 10, 2)]
    content = {"segments": [segment(block(2, 5, USER))], "device_traces": [events]}
    for protocol in (2, 4):
        yield pickle.dumps(content, protocol)


def _rocprof_results() -> Iterator[bytes]:
    import tempfile

    from tests.readers.test_rocprof_results import database

    with tempfile.TemporaryDirectory() as folder:
        yield database(Path(folder)).read_bytes()


def _tables() -> Iterator[bytes]:
    for text in (KERNELS, MEMORY, SIZES, RANGES, GPU_TRACE):
        yield text.encode()


def _configurations() -> Iterator[bytes]:
    files = {
        "kernel_sum": "kernels.csv",
        "nvtx_proj_trace": None,
        "mem_time_sum": "memory.csv",
    }
    numbers = {"num_of_iters": 3, "num_of_gpus": 8, "nvtx_tag_of_iter": "step"}
    spec = {
        "title": "a",
        "format": "csv",
        "analysis_args": numbers,
        "nsys_csv_file_path": files,
    }
    classes = {"gemm": "GEMM", "fusion": "Fusion"}
    yield (
        b"// first\n"
        + json.dumps({"inputs": [spec], "kernel_to_class_map": classes}).encode()
    )
    yield b"/* a map */ " + json.dumps(classes, indent=1).encode()


def _rules() -> Iterator[bytes]:
    for path in sorted((ROOT / "categorizers").glob("*.toml")):
        yield path.read_bytes()[:2000]
    yield b'[[rule]]\ncategory = "A"\npattern = "a|b"\nexamples = ["a"]\n'


def _maps() -> Iterator[bytes]:
    yield json.dumps({"vllm": {"llama": {"gemm|nvjet": "gemm", ".*": "misc"}}}).encode()
    yield json.dumps({"xmma_gemm": "gemm", "fmha_": "fmha"}).encode()


def _cache_files() -> Iterator[bytes]:
    import tempfile

    import numpy as np

    from tracelens_ext.readers.cache.file import write_columns

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.columns"
        columns = {"ts": np.arange(5), "names": ["a", "b"], "flag": np.array([True])}
        write_columns(path, {"path": "a.json", "identity": {}}, columns)
        yield path.read_bytes()


TARGETS: dict[str, Target] = {
    "reader": Target(properties.reading_is_safe_and_steady, _traces, share=4),
    "salvage": Target(properties.salvage_is_safe_and_steady, _traces, share=2),
    "report": Target(properties.a_report_is_safe, _traces, share=3),
    "gzip": Target(properties.salvage_is_safe_and_steady, _gzipped, as_text=False),
    "sqlite": Target(
        properties.a_file_is_safe(".sqlite"), _databases, as_text=False, share=2
    ),
    "nsys_report": Target(
        properties.a_nsys_report_is_safe, _nsys_reports, as_text=False, share=2
    ),
    "xplane": Target(properties.a_profile_is_safe, _profiles, as_text=False, share=2),
    "perfetto": Target(
        properties.a_file_is_safe(".pftrace"), _perfetto, as_text=False, share=2
    ),
    "snapshots": Target(
        properties.a_snapshot_is_safe, _snapshots, as_text=False, share=2
    ),
    "rocprof": Target(
        properties.a_file_is_safe("results.db"), _rocprof_results, as_text=False
    ),
    "csv": Target(properties.a_file_is_safe(".csv"), _tables),
    "rocpd": Target(properties.a_file_is_safe(".db"), _rocpd, as_text=False),
    "rocprof_json": Target(properties.salvage_is_safe_and_steady, _rocprof_json),
    "rocprof_csv": Target(
        properties.a_file_is_safe("_kernel_trace.csv"), _rocprof_tables
    ),
    "tables": Target(properties.statistics_tables_are_safe, _tables),
    "configurations": Target(properties.configurations_are_safe, _configurations),
    "rules": Target(properties.rules_are_safe, _rules),
    "maps": Target(properties.maps_are_safe, _maps),
    "cache": Target(properties.a_cache_file_is_safe, _cache_files, as_text=False),
}
