"""Profilers of the program, Python's profilers and torch.compile beside the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import torch_programs as programs
from tests.support.record_helpers import TORCH_PYTHON, run_with_hook, written_program
from tracelens_ext.recorder.record_options import RecordOptions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.torch]

TRACE = "rank0.pt.trace.json.gz"
ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]

OWN_PROFILER = (
    programs.MODEL
    + """
from torch.profiler import ProfilerActivity, profile

def use_profiler(number):
    if number == int(sys.argv[1]):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            torch.randn(8, 8) @ torch.randn(8, 8)
        names = {event.key for event in profiler.key_averages()}
        print("aten::mm" in names)

train(20, use_profiler)
"""
)


@pytest.mark.parametrize("iteration", [3, 10, 11, 12, 13, 14])
def test_the_recording_gives_way_to_a_profiler_of_the_program(
    tmp_path: Path, iteration: int
) -> None:
    recorded = run_with_hook(tmp_path, OWN_PROFILER, str(iteration))
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.output == "True\n"
    if iteration < 14:
        assert recorded.files == []
        assert "the program creates its own profiler" in recorded.messages
    else:
        assert recorded.marks() == ITERATIONS


def test_a_profiler_after_the_recording_does_not_matter(tmp_path: Path) -> None:
    recorded = run_with_hook(tmp_path, OWN_PROFILER, "17")
    assert recorded.output == "True\n"
    assert recorded.marks() == ITERATIONS


def test_a_profiler_with_a_schedule_of_its_own_works(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
from torch.profiler import ProfilerActivity, profile, schedule

def say(profiler):
    print(sum(event.count for event in profiler.key_averages() if event.key == "aten::addmm"))

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
    on_trace_ready=say,
) as profiler:
    train(20, lambda number: profiler.step())
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.output == "6\n", recorded.errors
    assert recorded.files == []
    assert "the program creates its own profiler" in recorded.messages


def test_a_profiler_of_autograd_works(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
def use_profiler(number):
    if number == 13:
        with torch.autograd.profiler.profile() as profiler:
            torch.randn(8, 8) @ torch.randn(8, 8)
        print("aten::mm" in {event.key for event in profiler.key_averages()})

train(20, use_profiler)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.output == "True\n", recorded.errors
    assert "the program creates its own profiler" in recorded.messages


def test_stacks_are_off_under_cprofile(tmp_path: Path) -> None:
    script = written_program(tmp_path, programs.TRAINING)
    statistics = str(tmp_path / "statistics")
    command = [TORCH_PYTHON, "-m", "cProfile", "-o", statistics, str(script), "20"]
    recorded = run_with_hook(tmp_path, programs.TRAINING, command=command)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().of_category("python_function") == []
    assert "no Python stacks" in recorded.messages
    assert (tmp_path / "statistics").stat().st_size > 1000


def test_stacks_are_off_under_a_python_profiler_of_the_program(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
calls = 0

def count(frame, event, argument):
    global calls
    calls += 1

sys.setprofile(count)
train(20)
before = calls
sum([1])
print(calls > before)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.output == "True\n", recorded.errors
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().of_category("python_function") == []
    assert "no Python stacks" in recorded.messages


COMPILED = {
    "training": """
model = torch.compile(make_model(), backend="eager")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(25):
    train_step(model, optimizer)
""",
    "compiled optimizer": """
model = torch.compile(make_model(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = torch.compile(optimizer.step, backend="eager")
for _ in range(25):
    loss_of(model).backward()
    step()
    optimizer.zero_grad()
""",
    "function": """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def compute():
    return loss_of(model)

for _ in range(25):
    compute().backward()
    optimizer.step()
""",
    "graph break": """
class Breaking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make_model()

    def forward(self, inputs):
        inputs = inputs * 2
        torch._dynamo.graph_break()
        return self.inner(inputs)

model = torch.compile(Breaking(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(25):
    train_step(model, optimizer)
""",
    "inference": """
model = torch.compile(make_model().eval(), backend="eager", fullgraph=True)
with torch.no_grad():
    for number in range(25):
        model(torch.randn(8 + number // 20, 64))
""",
    "compiled function around models": """
model = make_model().eval()

@torch.compile(backend="eager")
def generate(inputs):
    return model(model[0](inputs)[:, :64])

with torch.no_grad():
    for _ in range(25):
        generate(torch.randn(8, 64))
""",
}
COUNTERS = """
import torch._dynamo.utils
counters = torch._dynamo.utils.counters
print(dict(counters["stats"]), sum(counters["graph_break"].values()))
print(sum(counters["recompiles"].values()), dict(counters["unimplemented"]))
"""


@pytest.mark.parametrize("kind", list(COMPILED))
def test_the_recording_changes_no_graphs_of_torch_compile(
    tmp_path: Path, kind: str
) -> None:
    program = programs.MODEL + COMPILED[kind] + COUNTERS
    recorded_folder = tmp_path / "recorded"
    recorded_folder.mkdir()
    recorded = run_with_hook(recorded_folder, program)
    plain_folder = tmp_path / "plain"
    plain_folder.mkdir()
    late = RecordOptions(skip=1_000_000)
    script = written_program(plain_folder, program)
    unhooked = [TORCH_PYTHON, "-S", "-c", _WITHOUT_HOOK, str(script)]
    plain = run_with_hook(plain_folder, program, command=unhooked, options=late)
    assert recorded.exit_code == plain.exit_code == 0, recorded.errors + plain.errors
    assert "unique_graphs" in recorded.output
    assert recorded.output == plain.output
    if recorded.files:
        assert recorded.marks() == ITERATIONS
    else:
        assert kind in ("compiled optimizer", "compiled function around models")
        assert "--after 30s --for 5s" in recorded.messages


#: Runs a program as Python does, without `sitecustomize`.
_WITHOUT_HOOK = """
import runpy, site, sys
sys.path[:] = [entry for entry in sys.path if ".tracelens-ext-" not in entry]
site.main()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
