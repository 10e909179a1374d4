"""The advice for slow launches fits what the trace shows of the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.idle_programs import Program
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding

SHARED = Path(__file__).resolve().parents[3] / "shared"
STEPS = 6
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


class Training(Program):
    """A training loop whose CPU needs 50 µs for each launch, and whose GPU needs 20."""

    def forward(
        self, launches: int = 40, name: str = "gemm", op: str = "aten::mm"
    ) -> None:
        for _ in range(launches):
            self.launch(20, cost=50, name=name, op=op)

    def backward(self, launches: int = 40, name: str = "gemm") -> None:
        begin = self.cpu
        for _ in range(launches):
            self.launch(20, cost=50, name=name, op="aten::mm")
        node = "autograd::engine::evaluate_function: MmBackward0"
        self.maker.op(node, begin, self.cpu - begin, thread=self.thread)

    def optimizer(
        self, launches: int = 10, kernel: str = "multi_tensor_apply_kernel"
    ) -> None:
        begin = self.cpu
        for _ in range(launches):
            self.launch(20, cost=50, name=kernel, op="aten::_foreach_add_")
        name = "Optimizer.step#AdamW.step"
        self.maker.annotation(name, begin, self.cpu - begin, thread=self.thread)

    def step(self, number: int, begin: float) -> None:
        name = f"ProfilerStep#{number}"
        self.maker.annotation(name, begin, self.cpu - begin + 1, thread=self.thread)
        self.cpu += 2

    def sized(self, name: str, sizes: list[list[int]]) -> None:
        args = {"Input Dims": sizes, "Input type": ["float"] * len(sizes)}
        self.maker.op(name, self.cpu, 60, args=args, thread=self.thread)
        self.launch(20, cost=60, op="")

    def item(self, op: str = "aten::item") -> None:
        """Read a value: copy it, and wait for that."""
        correlation = len(self.maker.events) + 1
        begin = self.cpu
        self.maker.call("cudaMemcpyAsync", begin + 2, 5, correlation=correlation)
        start = max(self.gpu, begin + 10)
        name = "Memcpy DtoH (Device -> Pageable)"
        self.maker.gpu("gpu_memcpy", name, start, 2, correlation=correlation)
        self.gpu = start + 2
        self.maker.call("cudaStreamSynchronize", begin + 8, self.gpu - begin)
        self.cpu = self.gpu + 20
        if op:
            self.maker.op(op, begin, self.cpu - begin)


def host_bound(program: Program, **members: Any) -> Finding:
    document = program.maker.document(**members)
    findings = TreePerfAnalyzer(document).findings().findings
    (found,) = (finding for finding in findings if finding.id == "host-bound")
    return found


def trained(*parts: Callable[[Training], object]) -> Training:
    """A training loop of some parts."""
    program = Training()
    for number in range(STEPS):
        begin = program.cpu
        for part in parts:
            part(program)
        program.step(number, begin)
    return program


def test_an_optimizer_with_much_of_the_time_comes_first_with_its_share() -> None:
    program = trained(
        lambda each: each.forward(20),
        lambda each: each.backward(20),
        lambda each: each.optimizer(60),
    )
    finding = host_bound(program)
    assert "60 % of this time is in the step of the optimizer" in finding.advice
    assert finding.snippet == "torch.optim.AdamW(model.parameters(), fused=True)"


def test_advice_does_not_fuse_a_fused_optimizer() -> None:
    kernel = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
    program = trained(
        lambda each: each.forward(20),
        lambda each: each.optimizer(60, kernel),
    )
    finding = host_bound(program)
    assert "optimizer" not in finding.advice
    assert "fused=True" not in finding.snippet


def test_advice_compiles_element_wise_launches_and_names_the_part_of_the_step() -> None:
    program = trained(
        lambda each: each.forward(20, ADD, "aten::add"),
        lambda each: each.backward(60, ADD),
    )
    finding = host_bound(program)
    assert finding.where["parts_of_step"][0].name == "the backward pass"
    assert finding.advice.startswith(
        "Compile the model, above all the backward pass (75 % of this time): 100 % of the "
        "kernels are element-wise"
    )


def test_advice_does_not_compile_a_compiled_program() -> None:
    program = trained(
        lambda each: each.forward(20, "triton_poi_fused_add_0", "CompiledFxGraph"),
        lambda each: each.backward(60, ADD),
    )
    finding = host_bound(program)
    assert "Already in use: torch.compile" in finding.advice
    assert "ompile the model" not in finding.advice


def test_advice_combines_reductions_of_single_gradients() -> None:
    reduction = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    program = trained(
        lambda each: each.forward(60),
        lambda each: each.backward(60, reduction),
    )
    finding = host_bound(program)
    assert "each iteration has 60 all-reduces" in finding.advice

    def buckets(each: Training) -> None:
        each.maker.annotation("DistributedDataParallel.forward", each.cpu - 9, 1)

    bucketed = trained(
        lambda each: each.forward(60),
        buckets,
        lambda each: each.backward(60, reduction),
    )
    assert "all-reduces" not in host_bound(bucketed).advice


def test_advice_has_no_graphs_if_sizes_change() -> None:
    program = Training()
    for number in range(STEPS):
        begin = program.cpu
        for _ in range(40):
            program.sized("aten::mm", [[number + 100, 512], [512, 512]])
        program.step(number, begin)
    finding = host_bound(program)
    assert "100 % of the launches change from iteration to iteration" in finding.advice
    assert finding.snippet == "model = torch.compile(model, dynamic=True)"


def test_advice_has_no_graphs_if_each_iteration_reads_values() -> None:
    program = Training()
    for number in range(STEPS):
        begin = program.cpu
        for _ in range(4):
            program.forward(10)
            program.item()
        program.step(number, begin)
    finding = host_bound(program)
    assert (
        "what waits for the GPU 4 times in each iteration (aten::item)"
        in finding.advice
    )


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (1, "the program computes single inputs"),
        (4, "the program computes batches of 4"),
    ],
)
def test_advice_enlarges_small_batches(batch: int, words: str) -> None:
    program = Training()
    for _ in range(60):
        program.sized("aten::conv2d", [[batch, 3, 224, 224], [64, 3, 7, 7]])
    assert words in host_bound(program).advice


def test_advice_does_not_enlarge_large_batches() -> None:
    program = Training()
    for _ in range(60):
        program.sized("aten::conv2d", [[256, 3, 224, 224], [64, 3, 7, 7]])
    assert "the program computes" not in host_bound(program).advice


def test_advice_for_hip_names_its_graphs() -> None:
    program = Training()
    for _ in range(60):
        program.sized("aten::conv2d", [[1, 3, 224, 224], [64, 3, 7, 7]])
    device = {"id": 0, "name": "AMD Instinct MI300X"}
    advice = host_bound(program, deviceProperties=[device]).advice
    assert "HIP graphs" in advice
    assert "CUDA" not in advice


def test_frames_in_many_lines_of_one_file_name_the_file() -> None:
    program = Program()
    for number in range(400):
        begin = program.cpu
        program.launch(20, cost=50, op="")
        program.maker.frame(f"model.py({number}): forward", begin, program.cpu - begin)
    finding = host_bound(program)
    assert finding.where["python_files"][0].name == "model.py"
    assert "mostly in model.py" in finding.title


def test_a_program_without_operations_names_the_kernel_that_the_gpu_waits_for() -> None:
    program = Program()
    for _ in range(300):
        program.launch(20, cost=50, name="solve_kernel", op="")
    finding = host_bound(program)
    assert finding.where["next_work"][0].name == "before solve_kernel"
    assert "(no operation)" not in finding.title


@pytest.mark.parametrize(("launches", "is_advised"), [(3, True), (40, False)])
def test_advice_for_a_native_program_that_waits_after_few_launches(
    launches: int, *, is_advised: bool
) -> None:
    program = Training()
    for _ in range(60):
        for _ in range(launches):
            program.launch(20, cost=50, name="mul_mat_q<ggml_type>", op="")
        program.item(op="")
    advice = host_bound(program).advice
    assert ("before waiting for results" in advice) == is_advised
    if is_advised:
        assert "after every 3 launches on average" in advice


@pytest.mark.real_data
def test_jax_names_the_compiled_function_that_the_program_calls() -> None:
    findings = TreePerfAnalyzer(SHARED / "jax" / "conv_mi300.xplane.pb").findings()
    finding = findings.findings[0]
    assert finding.id == "host-bound"
    assert "in PjitFunction(forward_3d_conv): " in finding.title
    assert finding.snippet == "x = jax.device_put(x, sharding)"
    longest = [
        each.what for each in finding.evidence if each.what.startswith("long gap")
    ]
    assert longest
    assert all(what.endswith("in PjitFunction(forward_3d_conv)") for what in longest)
