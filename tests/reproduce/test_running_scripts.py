"""Scripts under real PyTorch, on the CPU: what they print, check, skip and refuse."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_calls import Entry, numbers, operation, scalar, tensor
from tests.support.round_trip import run_script, torch_python
from tracelens_ext.reproduce.script import write_script
from tracelens_ext.reproduce.specification import RecordedOperation, Specification

pytestmark = [pytest.mark.torch, pytest.mark.process]

NOTHING: Entry = ("", (), (), "")


def _numbered(calls: list[RecordedOperation]) -> Specification:
    operations = [
        RecordedOperation(
            number, call.call, kernels=call.kernels, children=call.children
        )
        for number, call in enumerate(calls, 1)
    ]
    return Specification("trace.json", tuple(operations))


def _script(folder: Path, *calls: RecordedOperation) -> Path:
    path = folder / "bench.py"
    path.write_text(write_script(_numbered(list(calls))).text, encoding="utf-8")
    return path


def _index(*sizes: int) -> Entry:
    return tensor(*sizes, kind="long int")


MM = operation("aten::mm", tensor(4, 8), tensor(8, 2))
NEG = operation("aten::neg", tensor(64))
#: Operations that accept only some values, or exist for other backends only.
PARTICULAR = [
    operation("aten::embedding", tensor(10, 4), _index(3, 5), *[scalar("-1")]),
    operation("aten::gather", tensor(6, 7), scalar("1"), _index(6, 3)),
    operation(
        "aten::scatter_add_", tensor(6, 7), scalar("0"), _index(5, 7), tensor(5, 7)
    ),
    operation("aten::index_select", tensor(3, 9), scalar("-1"), _index(4)),
    operation(
        "aten::nll_loss_forward",
        *(tensor(5, 3), _index(5), NOTHING, scalar("1"), scalar("-100")),
    ),
    operation("aten::binary_cross_entropy", tensor(9), tensor(9), NOTHING, scalar("1")),
    operation(
        "aten::linalg_cholesky_ex", tensor(4, 4), scalar("False"), scalar("True")
    ),
    operation("aten::masked_scatter_", tensor(8), tensor(8, kind="bool"), tensor(3)),
    operation("aten::multinomial", tensor(2, 5), scalar("3"), scalar("False"), NOTHING),
    operation("aten::take", tensor(1), _index()),
    operation(
        "aten::bucketize", tensor(6), tensor(4), scalar("False"), scalar("False")
    ),
    operation(
        "aten::_softmax", tensor(2, 8, kind="c10::Half"), scalar("1"), scalar("True")
    ),
    operation(
        "aten::cudnn_convolution",
        *(tensor(1, 3, 8, 8), tensor(4, 3, 3, 3), numbers("[1, 1]"), numbers("[1, 1]")),
        *(numbers("[1, 1]"), scalar("1"), scalar("False"), scalar("False")),
        scalar("True"),
    ),
    operation(
        "aten::_flash_attention_forward",
        *(tensor(1, 6, 2, 8), tensor(1, 6, 2, 8), tensor(1, 6, 2, 8), NOTHING, NOTHING),
        *(scalar("6"), scalar("6"), scalar("0."), scalar("True"), scalar("False")),
    ),
    operation(
        "aten::_flash_attention_backward",
        *(
            tensor(1, 6, 2, 8),
            tensor(1, 6, 2, 8),
            tensor(1, 6, 2, 8),
            tensor(1, 6, 2, 8),
        ),
        *(tensor(1, 6, 2, 8), tensor(1, 2, 6), NOTHING, NOTHING, scalar("6")),
        *(scalar("6"), scalar("0."), scalar("False"), _index(), _index()),
    ),
    operation(
        "aten::as_strided", tensor(4, 4, strides=(1, 0)), numbers("[4]"), numbers("[1]")
    ),
]


def test_operations_get_values_and_kernels_that_work(tmp_path: Path) -> None:
    script = _script(tmp_path, *PARTICULAR)
    answer = run_script(script, "--device", "cpu", "--check")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "failed" not in answer.stdout
    assert "skipped" not in answer.stdout


def test_results_that_differ_from_float64_are_wrong(tmp_path: Path) -> None:
    script = _script(tmp_path, NEG, MM)
    assert run_script(script, "--device", "cpu", "--check").returncode == 0
    # The reference is computed in float64, so only float32 gets the wrong kernel.
    wrong_kernel = tmp_path / "wrong.py"
    wrong_kernel.write_text(
        "import runpy, sys, torch\n"
        "def wrong(x):\n"
        "    return x * (-1.001 if x.dtype == torch.float32 else -1.0)\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('neg', wrong, 'CPU')\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    answer = run_script(wrong_kernel, str(script), "--device", "cpu", "--check")
    assert answer.returncode == 1
    rows = [line for line in answer.stdout.splitlines() if "WRONG" in line]
    assert len(rows) == 1
    assert "aten::neg" in rows[0]


def test_an_operation_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    wrong_sizes = operation("aten::mm", tensor(4, 8), tensor(3, 2))
    script = _script(tmp_path, NEG, wrong_sizes, MM)
    answer = run_script(script, "--device", "cpu")
    assert answer.returncode == 1
    assert "\n2 aten::mm: failed: " in answer.stdout
    rows = [line.split()[:2] for line in answer.stdout.splitlines()]
    assert ["1", "aten::neg"] in rows
    assert ["3", "aten::mm"] in rows


def test_only_chooses_operations_by_numbers_that_stay(tmp_path: Path) -> None:
    script = _script(tmp_path, NEG, operation("aten::gone", tensor(1)), MM)
    answer = run_script(script, "--device", "cpu", "--only", "3")
    assert answer.returncode == 0
    assert "aten::neg" not in answer.stdout
    assert "\n3  aten::mm" in answer.stdout.replace("\n ", "\n")
    refused = run_script(script, "--device", "cpu", "--only", "2")
    assert refused.returncode == 1
    assert "cannot run it: PyTorch" in refused.stderr
    unknown = run_script(script, "--device", "cpu", "--only", "9")
    assert "this script has no operation 9" in unknown.stderr


def test_an_operation_that_a_device_cannot_run_is_skipped_with_the_reason(
    tmp_path: Path,
) -> None:
    script = _script(
        tmp_path,
        operation("aten::nonzero", tensor(8)),
        operation("aten::_local_scalar_dense", tensor()),
        operation("no_such_package::operation", tensor(8)),
        operation("aten::batch_norm_stats", tensor(4, 3, 8), scalar("1e-05")),
    )
    meta = run_script(script, "--device", "meta")
    assert meta.returncode == 0, meta.stdout + meta.stderr
    assert "1 aten::nonzero: skipped: its result depends on values" in meta.stdout
    assert "2 aten::_local_scalar_dense: skipped: its result" in meta.stdout
    assert "the package no_such_package is not installed" in meta.stdout
    on_cpu = run_script(script, "--device", "cpu")
    assert on_cpu.returncode == 0, on_cpu.stdout + on_cpu.stderr
    assert "4 aten::batch_norm_stats: skipped: PyTorch" in on_cpu.stdout
    assert "has no cpu kernel for it" in on_cpu.stdout


def test_inputs_that_do_not_fit_are_refused_and_can_be_scaled(tmp_path: Path) -> None:
    large = operation("aten::neg", tensor(2**48))
    script = _script(tmp_path, large, NEG)
    answer = run_script(script, "--device", "cpu")
    assert answer.returncode == 0
    assert "1 aten::neg: skipped: its inputs need 1,125,899.9 GB" in answer.stdout
    assert "try --scale 0.5" in answer.stdout
    scaled = run_script(script, "--device", "cpu", "--scale", "1e-10", "--only", "1")
    assert scaled.returncode == 0
    assert "skipped" not in scaled.stdout


def test_a_trace_has_each_operation_in_its_own_range(tmp_path: Path) -> None:
    script = _script(tmp_path, NEG, MM)
    path = tmp_path / "own.json.gz"
    answer = run_script(script, "--device", "cpu", "--trace", str(path))
    assert answer.stdout.endswith(f"wrote {path}\n")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ranges = [
        event["name"] for event in events if event.get("cat") == "user_annotation"
    ]
    assert ranges == ["operation 1: aten::neg", "operation 2: aten::mm"]


HOSTILE_NAMES = [
    'aten::mm"); open("broken_in", "w"); ("',
    "aten::mm\nopen('broken_in', 'w')\n",
    'aten::"""\nopen("broken_in", "w")\n"""',
    "aten::mm\\",
    "\N{FIRE}\u2028\u202eopen('broken_in', 'w')",
]


@pytest.mark.parametrize("text", HOSTILE_NAMES)
def test_texts_of_a_trace_are_never_code(text: str, tmp_path: Path) -> None:
    tensors = tensor(4, 8), tensor(8, 2)
    calls = [
        operation(text, *tensors),
        operation("aten::mm", *tensors, kernels=(text,)),
        operation("aten::add", tensor(4), tensor(4), scalar(text)),
        operation("aten::neg", tensor(4, kind=text)),
        operation("vllm::f", tensor(4), numbers(text)),
    ]
    specification = Specification(text, _numbered(calls).operations)
    path = tmp_path / "bench.py"
    path.write_text(write_script(specification).text, encoding="utf-8")
    answer = subprocess.run(
        [torch_python(), str(path), "--device", "cpu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "2  aten::mm" in answer.stdout
    assert not (tmp_path / "broken_in").exists()


def test_the_half_of_a_training_step_that_fits_runs_without_an_error(
    tmp_path: Path, small_operations: Specification
) -> None:
    path = tmp_path / "bench.py"
    path.write_text(write_script(small_operations).text, encoding="utf-8")
    answer = run_script(path, "--device", "cpu", "--check")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def _elements(dims: Any) -> int:
    """Return the elements of a tensor, or of the tensors of a list."""
    if not isinstance(dims, tuple) or not dims:
        return 0
    if isinstance(dims[0], tuple):
        return sum(map(_elements, dims))
    count = 1
    for size in dims:
        count *= size
    return count


@pytest.fixture
def small_operations(tmp_path: Path) -> Specification:
    """The operations of the demo of at most 300,000 elements."""
    from tests.support.simulated_job import write_demo_trace
    from tracelens_ext import TreePerfAnalyzer

    trace = tmp_path / "trace.json.gz"
    write_demo_trace(trace, steps=1)
    specification = TreePerfAnalyzer(trace).reproduction(top=0).specification
    small = [
        recorded
        for recorded in specification.operations
        if max(map(_elements, recorded.call.dims), default=0) <= 300_000
    ]
    assert len(small) > 10
    return Specification(specification.source, tuple(small))
