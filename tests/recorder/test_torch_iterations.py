"""Iterations of real PyTorch programs are recorded whole: which ones, and what is in them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import torch_programs as programs
from tests.support.record_helpers import (
    TORCH_PYTHON,
    Hooked,
    run_with_hook,
    written_program,
)
from tracelens_ext.recorder.record_options import RecordOptions, StepsBy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.record_helpers import Trace

pytestmark = [pytest.mark.process, pytest.mark.torch]

ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]


def check_borders(trace: Trace) -> None:
    """Check that no operation lies across a border of an iteration."""
    operations = trace.of_category("cpu_op")
    assert operations
    for mark in trace.iterations:
        crossing = [event.name for event in operations if event.crosses_border_of(mark)]
        assert crossing == []
    for earlier, later in zip(trace.iterations, trace.iterations[1:], strict=False):
        assert earlier.end <= later.start


def check_shapes_and_stacks(trace: Trace) -> None:
    """Check that operations within iterations have shapes, and Python frames are there."""
    for mark in trace.iterations:
        within = [event for event in trace.events if event.lies_within(mark)]
        matrices = [event for event in within if event.name == "aten::addmm"]
        assert matrices
        assert all(event.arguments["Input Dims"] for event in matrices)
        assert any(event.category == "python_function" for event in within)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooked]:
    yield run_with_hook(tmp_path_factory.mktemp("training"), programs.TRAINING, "20")


def test_three_iterations_of_training_are_recorded(training: Hooked) -> None:
    assert training.exit_code == 0
    assert training.marks() == ITERATIONS
    assert training.messages == ""
    check_borders(training.trace())
    check_shapes_and_stacks(training.trace())


def test_an_iteration_of_training_ends_after_the_step_of_the_optimizer(
    training: Hooked,
) -> None:
    trace = training.trace()
    assert trace.per_iteration("aten::addmm") == [2, 2, 2]
    assert trace.per_iteration("Optimizer.step#AdamW.step") == [1, 1, 1]
    steps = [event for event in trace.events if event.name.startswith("Optimizer.step")]
    assert not any(
        step.crosses_border_of(mark) for step in steps for mark in trace.iterations
    )


def test_only_the_whole_trace_is_left(training: Hooked) -> None:
    assert training.files == ["rank0.pt.trace.json.gz"]


def test_kineto_says_nothing(training: Hooked) -> None:
    assert training.errors == ""


def test_inference_is_recorded(tmp_path: Path) -> None:
    recorded = run_with_hook(tmp_path, programs.INFERENCE, "20")
    assert recorded.marks() == ITERATIONS
    trace = recorded.trace()
    check_borders(trace)
    check_shapes_and_stacks(trace)
    assert trace.per_iteration("aten::addmm") == [2, 2, 2]
    assert trace.per_iteration("aten::randn") == [1, 1, 1]  # made before the call
    assert recorded.errors == ""


def test_gradient_accumulation_is_one_iteration(tmp_path: Path) -> None:
    recorded = run_with_hook(tmp_path, programs.ACCUMULATION)
    assert recorded.marks() == ITERATIONS
    check_borders(recorded.trace())
    assert recorded.trace().per_iteration("aten::addmm") == [8, 8, 8]


def test_the_wrapped_optimizer_of_accelerate_counts_once(tmp_path: Path) -> None:
    recorded = run_with_hook(tmp_path, programs.ACCELERATE)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.marks() == ITERATIONS
    check_borders(recorded.trace())
    assert recorded.trace().per_iteration("aten::addmm") == [8, 8, 8]


def test_two_ranks_are_recorded(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    launcher = [TORCH_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*launcher, "--standalone", str(script)]
    recorded = run_with_hook(tmp_path, programs.DISTRIBUTED, command=command)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]
    for rank in (0, 1):
        trace = recorded.trace(rank)
        assert trace.marks == ITERATIONS
        check_borders(trace)
        check_shapes_and_stacks(trace)
        information = trace.members["distributedInfo"]
        assert (information["rank"], information["world_size"]) == (rank, 2)


def test_ranks_can_be_chosen(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    launcher = [TORCH_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*launcher, "--standalone", str(script)]
    recorded = run_with_hook(
        tmp_path,
        programs.DISTRIBUTED,
        command=command,
        options=RecordOptions(ranks=(1,)),
    )
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files == ["rank1.pt.trace.json.gz"]


def test_data_loading_belongs_to_the_iteration_and_workers_record_nothing(
    tmp_path: Path,
) -> None:
    recorded = run_with_hook(tmp_path, programs.DATA_LOADING)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files == ["rank0.pt.trace.json.gz"]
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("enumerate(DataLoader)") == [1, 1, 1]
    assert recorded.messages == ""


@pytest.mark.parametrize(
    ("options", "marks"),
    [
        ({"skip": 0, "warmup": 0, "steps": 1}, ["ProfilerStep#0"]),
        ({"skip": 0, "warmup": 1, "steps": 2}, ["ProfilerStep#1", "ProfilerStep#2"]),
        ({"skip": 3, "warmup": 0, "steps": 1}, ["ProfilerStep#3"]),
        ({"skip": 2, "warmup": 3, "steps": 2}, ["ProfilerStep#5", "ProfilerStep#6"]),
    ],
)
@pytest.mark.parametrize("program", [programs.TRAINING, programs.INFERENCE])
def test_iterations_can_be_chosen(
    tmp_path: Path, program: str, options: dict[str, Any], marks: list[str]
) -> None:
    recorded = run_with_hook(tmp_path, program, "10", options=RecordOptions(**options))
    assert recorded.marks() == marks
    check_borders(recorded.trace())
    assert recorded.trace().per_iteration("aten::addmm") == [2] * len(marks)


def test_calls_of_the_model_can_be_counted_in_training(tmp_path: Path) -> None:
    options = RecordOptions(steps_by=StepsBy.forward)
    recorded = run_with_hook(tmp_path, programs.ACCUMULATION, options=options)
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("aten::addmm") == [2, 2, 2]


def test_calls_do_not_count_when_optimizers_are_counted(tmp_path: Path) -> None:
    options = RecordOptions(steps_by=StepsBy.optimizer)
    recorded = run_with_hook(tmp_path, programs.INFERENCE, "20", options=options)
    assert recorded.files == []
    assert "--after 30s --for 5s" in recorded.messages


def test_validation_before_training_does_not_count(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + "model = make_model()\nfor _ in range(5): loss_of(model)\ntrain(20)\n"
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("Optimizer.step") == [1, 1, 1]


def test_training_after_much_inference_is_recorded_instead(tmp_path: Path) -> None:
    program = programs.MODEL + "infer(30)\ntrain(20)\n"
    recorded = run_with_hook(tmp_path, program)
    assert recorded.files == ["rank0.pt.trace.json.gz"]
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("Optimizer.step") == [1, 1, 1]


def test_a_period_of_time_is_recorded_in_all_threads(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
from torch.autograd.profiler import record_function

end = time.monotonic() + 60

def work(name):
    matrix = torch.randn(64, 64)
    while time.monotonic() < end and not os.path.exists(sys.argv[1]):
        with record_function(name):
            matrix @ matrix
        time.sleep(0.001)

thread = threading.Thread(target=work, args=("second thread",))
thread.start()
work("first thread")
thread.join()
"""
    )
    trace_path = str(tmp_path / "out" / "rank0.pt.trace.json.gz")
    options = RecordOptions(steps_by=StepsBy.time, after_s=1.0, for_s=0.5)
    recorded = run_with_hook(tmp_path, program, trace_path, options=options)
    assert recorded.exit_code == 0, recorded.errors
    if "cannot record all threads" in recorded.messages:
        return  # as PyTorch 2.4
    events = recorded.trace().of_category("user_annotation")
    assert {"first thread", "second thread"} <= {event.name for event in events}
    duration_s = max(event.end for event in events) - min(e.start for e in events)
    assert 0.1e6 < duration_s < 2e6


def test_stacks_can_be_left_out(tmp_path: Path) -> None:
    options = RecordOptions(stacks=False)
    recorded = run_with_hook(tmp_path, programs.TRAINING, "20", options=options)
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().of_category("python_function") == []


def test_memory_can_be_recorded(tmp_path: Path) -> None:
    options = RecordOptions(memory=True)
    recorded = run_with_hook(tmp_path, programs.TRAINING, "20", options=options)
    names = {event["name"] for event in recorded.trace().members["traceEvents"]}
    assert "[memory]" in names


def test_memory_is_left_out_by_default(training: Hooked) -> None:
    names = {event["name"] for event in training.trace().members["traceEvents"]}
    assert "[memory]" not in names


def test_a_snapshot_of_memory_needs_a_gpu(tmp_path: Path) -> None:
    options = RecordOptions(memory_snapshot=True)
    recorded = run_with_hook(tmp_path, programs.TRAINING, "20", options=options)
    assert recorded.marks() == ITERATIONS
    assert "the memory snapshot could not be written" in recorded.messages


GAN = (
    programs.MODEL
    + """
generator = torch.nn.Linear(8, 64)
critic = torch.nn.Linear(64, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
critic_optimizer = torch.optim.RMSprop(critic.parameters())
for _ in range(20):
    for _ in range(int(sys.argv[1])):
        critic_optimizer.zero_grad()
        critic(generator(torch.randn(4, 8)).detach()).mean().backward()
        critic_optimizer.step()
    generator_optimizer.zero_grad()
    critic(generator(torch.randn(4, 8))).mean().backward()
    generator_optimizer.step()
"""
)


@pytest.mark.parametrize("critics", [1, 5])
def test_an_iteration_ends_with_the_optimizer_that_steps_least(
    tmp_path: Path, critics: int
) -> None:
    recorded = run_with_hook(tmp_path, GAN, str(critics))
    trace = recorded.trace()
    assert trace.marks == ITERATIONS
    check_borders(trace)
    assert trace.per_iteration("Optimizer.step#Adam.step") == [1, 1, 1]
    assert trace.per_iteration("Optimizer.step#RMSprop.step") == [critics] * 3


def test_an_optimizer_that_never_steps_is_not_waited_for_long(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
unused = torch.optim.SGD(make_model().parameters(), lr=0.1)
train(40)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert len(recorded.marks()) == 3
    assert recorded.trace().per_iteration("Optimizer.step") == [1, 1, 1]


def test_a_step_with_a_closure_is_one_iteration(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
model = make_model()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
inputs = torch.randn(32, 64)

def closure():
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    return loss

for _ in range(20):
    optimizer.step(closure)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("Optimizer.step#LBFGS.step") == [1, 1, 1]


def test_a_step_that_a_gradient_scaler_leaves_out_is_part_of_the_next_iteration(
    tmp_path: Path,
) -> None:
    program = (
        programs.MODEL
        + """
from torch.optim.swa_utils import AveragedModel

model = make_model()
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(60):
    loss_of(model).backward()
    if number % 3 == 2:
        optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(model)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("aten::addmm") == [6, 6, 6]


def test_an_optimizer_class_of_the_program_counts(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])

class Derived(Own):
    def step(self, closure=None):
        return super().step(closure)

model = make_model()
optimizer = Derived(model.parameters())
for _ in range(20):
    train_step(model, optimizer)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("aten::addmm") == [2, 2, 2]


def test_results_and_output_are_those_of_a_run_without_recording(
    tmp_path: Path,
) -> None:
    program = (
        programs.MODEL
        + """
import hashlib
import io
import random

model = make_model()
optimizer = torch.optim.AdamW(model.parameters())
for number in range(20):
    print(number, train_step(model, optimizer).item())
    print(number, file=sys.stderr)
file = io.BytesIO()
torch.save([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()], file)
print(hashlib.sha256(file.getvalue()).hexdigest())
random.seed(1)
print(random.random(), threading.active_count(), sys.getprofile(), sys.gettrace())
print(torch.nn.Module.__call__.__qualname__, torch.profiler.profile.__init__.__module__)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    script = written_program(tmp_path, program)
    plain = subprocess.run(
        [TORCH_PYTHON, str(script)], capture_output=True, text=True, check=True
    )
    assert recorded.marks() == ITERATIONS
    assert recorded.output == plain.stdout
    assert recorded.errors == plain.stderr
