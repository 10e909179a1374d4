"""Which kind of program was recorded, and with what tool."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, EventKind, Trace
from tracelens_ext.work.memoize import once_for_each

Kind = Literal[
    "pytorch-training", "pytorch-inference", "serving", "jax", "tensorflow", "native", "unknown"
]
PYTORCH: Final = frozenset({"pytorch-training", "pytorch-inference", "serving"})

_FRAMES = (EventKind.PYTHON_FUNCTION,)
_OPS = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
_KERNELS = (EventKind.KERNEL,)
_ENGINES: Final = r".*\b(?:vllm|sglang|tensorrt_llm|lmdeploy|text_generation_server)[/\\]"
_STEPS: Final = r"execute_(?:context_)?\d+_|(?:\w+_)?(?:prefill|decode)\[|step\[\w+ |execute_model"
_BACKWARD: Final = (
    r"autograd::engine|Optimizer\.|\w+Backward|aten::\w*backward|FSDP|DistributedData"
)
_LIBRARIES: Final = (
    r".*(?:ggml|mul_mat_|quantize_q8_1|[Kk]okkos|__omp_offloading|\bcupy_|_\d+_gpu\b|thrust::)"
)
#: The first that occurs tells: the kind, which events, and their names.
_SIGNS: Final[tuple[tuple[Kind, tuple[EventKind, ...], str], ...]] = (
    ("serving", _FRAMES, _ENGINES + r".*(?:runner|worker|engine|scheduler)"),
    ("serving", _OPS, _STEPS),
    ("tensorflow", _FRAMES, r".*\btensorflow[/\\]"),
    ("tensorflow", _OPS, r"tf_data|TfOp|ExecutorState::Process|.*\btensorflow[/\\]"),
    ("tensorflow", _KERNELS, r".*tensorflow::|.*EigenMetaKernel"),
    ("jax", _OPS, r"PjRt|PjitFunction|TSL:|Xla|jit_\w+|.*\bjax[/\\]"),
    ("jax", _FRAMES, r".*\bjax[/\\]"),
    ("jax", _KERNELS, r"(?:loop|input)_\w*fusion(?:_\d+)?$"),
    ("pytorch-training", _OPS, _BACKWARD),
    ("pytorch-training", _KERNELS, r".*(?:multi_tensor_apply|FusedAdam|_backward_|_bwd_d|wgrad)"),
    ("serving", _KERNELS, r".*(?:\bvllm::|\bsgl_)"),
    ("pytorch-inference", _OPS, r"aten::|c10|Torch-Compiled Region|ProfilerStep#|nn\.Module"),
    ("pytorch-inference", _FRAMES, r".*\btorch[/\\]"),
    ("pytorch-inference", _KERNELS, r".*(?:at::(?:native|cuda)|c10::|at_cuda_detail)"),
    ("native", _KERNELS, _LIBRARIES),
)


@dataclass(frozen=True)
class Program:
    """The program of a trace."""

    kind: Kind  #: what it is
    because: str  #: what shows it, a clause
    tool: str  #: what recorded it: `torch`, `nsys`, `rocprofv3`, `jax`, or empty


@once_for_each
def program_of(trace: Trace) -> Program:
    """Which kind of program a trace is of."""
    told = trace.provenance.format
    tool = next((tool for start, tool in _TOOLS.items() if told.startswith(start)), "")
    for kind, events, pattern in _SIGNS:
        if tool == "torch" and kind in {"jax", "tensorflow"}:
            continue  # PyTorch's profiler recorded it
        if (name := _first(trace, events, pattern)) is not None:
            return Program(kind, f"{_WORDS[events[0]]} such as {name!r}", tool)
    if tool == "jax":
        return Program("jax", f"a {told}", tool)
    if tool == "torch":
        return Program("pytorch-inference", f"recorded by the {told.split(' (')[0]}", tool)
    processes = [*map(str, trace.process_names.values()), *map(str, trace.thread_names.values())]
    python = any("python" in name.lower() for name in processes)
    if tool and not python and _first(trace, LAUNCH_KINDS, r"(?:cuda|hip)\w*LaunchKernel"):
        return Program("native", "kernels compiled into the program, and no framework's", tool)
    return Program("unknown", "nothing in the trace shows it", tool)


_TOOLS: Final = {
    "PyTorch": "torch",
    "Nsight": "nsys",
    "nsys": "nsys",
    "rocprof": "rocprofv3",
    "JAX": "jax",
}
_WORDS: Final = {
    EventKind.PYTHON_FUNCTION: "Python frames",
    EventKind.CPU_OP: "operations or annotations",
    EventKind.KERNEL: "kernels",
}


def _first(trace: Trace, kinds: tuple[EventKind, ...], pattern: str) -> str | None:
    """The commonest name that events of some kinds have and a pattern matches; None for none."""
    names = trace.name[trace.rows_of(*kinds)]
    found = np.bincount(names[trace.named(names, re.compile(pattern).match)], minlength=1)
    return trace.names[int(found.argmax())] if found.any() else None


@dataclass(frozen=True)
class Missing:
    """Something that was not recorded."""

    what: str  #: `stacks`, `shapes`, `memory`, `API calls`, `sync events`
    adds: str  #: what it would add, a clause
    how: str  #: how to record it with the tool that recorded the trace


_CALLS: Final = "API calls"  # all programs have these; the others are of Python
#: What, what it adds, whether a trace has it, and how to record it by tool.
_CHOICES: Final[tuple[tuple[str, str, Callable[[Trace], bool], dict[str, str]], ...]] = (
    (
        _CALLS,
        "why the GPU is idle, and which call launched each kernel",
        lambda trace: trace.count_of(*LAUNCH_KINDS) > 0,
        {
            "torch": "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            "nsys": "nsys profile -t cuda, then nsys export --type sqlite",
            "rocprofv3": "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace",
        },
    ),
    (
        "stacks",
        "the line of Python that each place is about",
        lambda trace: trace.count_of(EventKind.PYTHON_FUNCTION) > 0,
        {
            "torch": "torch.profiler.profile(with_stack=True)",
            "nsys": "nsys profile --python-backtrace=cuda",
            "jax": "jax.profiler.ProfileOptions().python_tracer_level = 1",
        },
    ),
    (
        "shapes",
        "how far each operation is from the best that the GPU can do",
        lambda trace: len(trace.arg("Input Dims").rows) > 0,
        {
            "torch": "torch.profiler.profile(record_shapes=True)",
            "nsys": "emit_nvtx(record_shapes=True) of torch.autograd.profiler, with -t cuda,nvtx",
        },
    ),
    (
        "memory",
        "what is allocated at the peak, and by what",
        lambda trace: len(trace.arg("Bytes").rows) > 0,
        {"torch": "torch.profiler.profile(profile_memory=True)"},
    ),
    (
        "sync events",
        "which event or stream each wait is for",
        lambda trace: "cuda_sync" in trace.categories,
        {"torch": "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"},
    ),
)


def missing_of(trace: Trace) -> tuple[Missing, ...]:
    """What a trace lacks that its tool could have recorded of such a program."""
    program = program_of(trace)
    python = program.kind in PYTORCH or program.kind == "jax"
    return tuple(
        Missing(what, adds, how[program.tool])
        for what, adds, is_there, how in _CHOICES
        if program.tool in how and (python or what == _CALLS) and not is_there(trace)
    )
