"""Runs to chart: traces made by hand, small exports, and an `nsys` that makes them of reports."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from tests.support.make_trace import TraceMaker
from tests.support.nsys_report_maker import steps
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.engine_chart.runs import EngineRun, measure_run
from tracelens_ext.compare.engine_chart.specification import ChartInput, parse_inputs

ROOT = Path(__file__).resolve().parents[2]

GEMM = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)"

#: Copies the export that lies beside it to where it is told; fails for what it would not know.
_FAKE_NSYS = """#!{python}
import pathlib, shutil, sys
words = [part for word in sys.argv[1:] for part in (
    word.split("=", 1) if word.startswith("--") else [word])]
report = [word for word in words if word.endswith(".nsys-rep")]
if words[:1] in (["--version"], ["-v"]):
    print("NVIDIA Nsight Systems version 2022.4.2.1")
elif words[:1] != ["export"] or "sqlite" not in words or len(report) != 1:
    sys.exit("nsys: no such command: " + " ".join(words))
elif pathlib.Path(report[0]).read_bytes()[:6] != b"NVIDIA":
    sys.exit("nsys: the report is damaged")
else:
    place = next(words.index(name) for name in ("-o", "--output") if name in words)
    shutil.copy(pathlib.Path(__file__).with_name("run2.sqlite"), words[place + 1])
"""


def benchmark() -> Any:
    """The module that makes exports for the benchmark; of any size."""
    spec = importlib.util.spec_from_file_location(
        "bench_nsys", ROOT / "benchmarks" / "nsys.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_export(path: Path, kernels: int = 400) -> Path:
    """An SQLite export with copies, sets and ranges."""
    made: Path = benchmark().export(path.parent, kernels)
    return made.replace(path)


def fake_nsys(folder: Path) -> Path:
    """A program `nsys` in a folder; what it exports lies beside it, as `run2.sqlite`."""
    program = folder / "nsys"
    program.write_text(_FAKE_NSYS.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    return program


def report(path: Path) -> Path:
    """A report of Nsight Systems."""
    path.write_bytes(steps())
    return path


def run_of(maker: TraceMaker, position: int = 0, **options: Any) -> EngineRun:
    """The measures of a trace made by hand, with vLLM's map for Llama."""
    return measure_run(analyzed(maker).gpu_events, an_input(**options), position)


def analyzed(maker: TraceMaker, categorizer: Any = "vllm:llama") -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document(), categorizer=categorizer)


def an_input(seconds: str = "0", name: str = "run.json") -> ChartInput:
    return parse_inputs([f"{name},vllm,llama,{seconds}"])[0]


def overlapping() -> TraceMaker:
    """100 µs: a GEMM, a norm on another stream that ends 10 µs after it, a copy under both."""
    maker = TraceMaker()
    maker.op("aten::mm", 0, 100)
    maker.gpu("kernel", GEMM, 10, 40, stream=7)
    maker.gpu("kernel", NORM, 20, 40, stream=8)
    maker.gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 15, 5, stream=9)
    maker.gpu("gpu_memset", "Memset (Device)", 80, 3, stream=9)
    maker.gpu("kernel", GEMM, 90, 5, stream=8)
    return maker


def two_runs() -> list[EngineRun]:
    """The run above, and one of a longer GEMM and an elementwise kernel; 100 µs and 1 ms."""
    other = TraceMaker()
    other.gpu("kernel", GEMM, 0, 20)
    other.gpu("kernel", "void at::native::elementwise_kernel<128>(int)", 30, 70)
    return [run_of(overlapping()), run_of(other, 1, seconds="0.001")]
