"""Which kind of program was recorded, and with what tool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, EventKind, Trace
from tracelens_ext.trace.caching import cached_per_object

Kind = Literal[
    "pytorch-training", "pytorch-inference", "serving", "jax", "tensorflow", "native", "unknown"
]
PYTORCH: Final = frozenset({"pytorch-training", "pytorch-inference", "serving"})

#: What shows it, in words, and the kinds of those events.
_FRAMES = "Python frames", EventKind.PYTHON_FUNCTION
_OPS = "operations or annotations", EventKind.CPU_OP, EventKind.USER_ANNOTATION
_KERNELS = "kernels", EventKind.KERNEL
_ENGINES: Final = r".*\b(?:vllm|sglang|tensorrt_llm|lmdeploy|text_generation_server)[/\\]"
_STEPS: Final = r"execute_(?:context_)?\d+_|(?:\w+_)?(?:prefill|decode)\[|step\[\w+ |execute_model"
_BACKWARD: Final = (
    r"autograd::engine|Optimizer\.|\w+Backward|aten::\w*backward|FSDP|DistributedData"
)
_LIBRARIES: Final = (
    r".*(?:ggml|mul_mat_|quantize_q8_1|[Kk]okkos|__omp_offloading|\bcupy_|_\d+_gpu\b|thrust::)"
)
#: The first that occurs tells: the kind, which events, and their names.
_SIGNS: Final[tuple[tuple[Kind, tuple[str, *tuple[EventKind, ...]], str], ...]] = (
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
class RecordedProgram:
    """The program of a trace."""

    kind: Kind  #: what it is
    because: str  #: what shows it, a clause
    tool: str  #: what recorded it: `torch`, `nsys`, `rocprofv3`, `jax`, or empty


@cached_per_object
def program_of(trace: Trace) -> RecordedProgram:
    """Which kind of program a trace is of."""
    told = trace.provenance.format
    tool = next((tool for start, tool in _TOOLS.items() if told.startswith(start)), "")
    for kind, (words, *events), pattern in _SIGNS:
        if tool == "torch" and kind in {"jax", "tensorflow"}:
            continue  # PyTorch's profiler recorded it
        if (name := _first(trace, events, pattern)) is not None:
            return RecordedProgram(kind, f"{words} such as {name!r}", tool)
    if tool == "jax":
        return RecordedProgram("jax", f"a {told}", tool)
    if tool == "torch":
        return RecordedProgram("pytorch-inference", f"recorded by the {told.split(' (')[0]}", tool)
    processes = [*map(str, trace.process_names.values()), *map(str, trace.thread_names.values())]
    python = any("python" in name.lower() for name in processes)
    if tool and not python and _first(trace, LAUNCH_KINDS, r"(?:cuda|hip)\w*LaunchKernel"):
        return RecordedProgram(
            "native", "kernels compiled into the program, and no framework's", tool
        )
    return RecordedProgram("unknown", "nothing in the trace shows it", tool)


_TOOLS = {
    "PyTorch": "torch",
    "Nsight": "nsys",
    "nsys": "nsys",
    "rocprof": "rocprofv3",
    "JAX": "jax",
}


def _first(trace: Trace, kinds: Sequence[EventKind], pattern: str) -> str | None:
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
#: What each would add, a clause.
_ADDS: Final = {
    _CALLS: "why the GPU is idle, and which call launched each kernel",
    "stacks": "the line of Python that each place is about",
    "shapes": "how far each operation is from the best that the GPU can do",
    "memory": "what is allocated at the peak, and by what",
    "sync events": "which event or stream each wait is for",
}
#: How each tool records it.
_HOW: Final = {
    "torch": {
        _CALLS: "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
        "stacks": "torch.profiler.profile(with_stack=True)",
        "shapes": "torch.profiler.profile(record_shapes=True)",
        "memory": "torch.profiler.profile(profile_memory=True)",
        "sync events": "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)",
    },
    "nsys": {
        _CALLS: "nsys profile -t cuda,nvtx",
        "stacks": "nsys profile --python-backtrace=cuda",
        "shapes": "emit_nvtx(record_shapes=True) of torch.autograd.profiler, with -t cuda,nvtx",
    },
    "rocprofv3": {_CALLS: "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace"},
    "jax": {"stacks": "jax.profiler.ProfileOptions().python_tracer_level = 1"},
}


def missing_of(trace: Trace) -> tuple[Missing, ...]:
    """What a trace lacks that its tool could have recorded of such a program."""
    program = program_of(trace)
    python = program.kind in PYTORCH or program.kind == "jax"
    how = _HOW.get(program.tool, {})
    there = {
        _CALLS: trace.count_of(*LAUNCH_KINDS),
        "stacks": trace.count_of(EventKind.PYTHON_FUNCTION),
        "shapes": len(trace.arg("Input Dims").rows),
        "memory": len(trace.arg("Bytes").rows),
        "sync events": "cuda_sync" in trace.categories,
    }
    return tuple(
        Missing(what, adds, how[what])
        for what, adds in _ADDS.items()
        if what in how and (python or what == _CALLS) and not there[what]
    )
