"""The kind of program that was recorded, the recording tool, and data that it can also record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, EventKind, Trace
from tracelens_ext.trace.caching import cached_per_object

Kind = Literal[
    "pytorch-training",
    "pytorch-inference",
    "serving",
    "jax",
    "tensorflow",
    "native",
    "unknown",
]
#: The kinds of programs that run PyTorch.
PYTORCH: Final = frozenset({"pytorch-training", "pytorch-inference", "serving"})


class _EventGroup(NamedTuple):
    """Events whose names can identify a kind of program."""

    words: str  #: the events in a sentence: "Python frames"
    kinds: tuple[EventKind, ...]


class _Sign(NamedTuple):
    """Events with certain names, which only one kind of program has."""

    program: Kind
    events: _EventGroup
    pattern: str  #: matches the beginning of the name of such an event


_FRAMES: Final = _EventGroup("Python frames", (EventKind.PYTHON_FUNCTION,))
_OPERATIONS: Final = _EventGroup(
    words="operations or annotations",
    kinds=(EventKind.CPU_OP, EventKind.USER_ANNOTATION),
)
_KERNELS: Final = _EventGroup("kernels", (EventKind.KERNEL,))

_ENGINES: Final = (
    r".*\b(?:vllm|sglang|tensorrt_llm|lmdeploy|text_generation_server)[/\\]"
)
_ENGINE_FRAMES: Final = _ENGINES + r".*(?:runner|worker|engine|scheduler)"
_ENGINE_STEPS: Final = (
    r"execute_(?:context_)?\d+_|(?:\w+_)?(?:prefill|decode)\[|step\[\w+ |execute_model"
)
_BACKWARD_OPERATIONS: Final = (
    r"autograd::engine|Optimizer\.|\w+Backward|aten::\w*backward|FSDP|DistributedData"
)
#: Any program may copy or scale tensors by multi-tensor kernels. Only multi-tensor kernels with one
#: of these functors belong to optimizers or compute norms of gradients.
_TRAINING_KERNELS: Final = (
    r".*(?:multi_tensor_apply\w*<.*(?:Adam|Sgd|SGD|L[Aa][Mm][Bb]|Adagrad|RMSprop|Adadelta|Lion"
    r"|Lerp|Pointwise|L[Pp]?Norm|Axpby)"
    r"|Fused(?:Adam|SGD|LAMB)|_backward_|_bwd_d|wgrad)"
)
_TENSORFLOW_OPERATIONS: Final = (
    r"tf_data|TfOp|ExecutorState::Process|.*\btensorflow[/\\]"
)
_JAX_OPERATIONS: Final = r"PjRt|PjitFunction|TSL:|Xla|jit_\w+|.*\bjax[/\\]"
_PYTORCH_OPERATIONS: Final = (
    r"aten::|c10|Torch-Compiled Region|ProfilerStep#|nn\.Module"
)
_PYTORCH_KERNELS: Final = r".*(?:at::(?:native|cuda)|c10::|at_cuda_detail)"
#: Kernels of programs without a framework for machine learning: llama.cpp, Kokkos, OpenMP and
#: OpenACC offloading, SYCL, Julia, Numba, CuPy, and Thrust.
_LIBRARY_KERNELS: Final = (
    r".*(?:ggml|mul_mat_|quantize_q8_1|[Kk]okkos|__omp_offloading|\bnvkernel_|\b__pgi_|\bsycl::"
    r"|_ZTS|\bjulia_|_Z\w*cudapy|cudapy::|\bcupy_|_\d+_gpu\b|thrust::)"
)
#: The first sign that a trace contains determines the kind of program.
_SIGNS: Final = (
    _Sign(program="serving", events=_FRAMES, pattern=_ENGINE_FRAMES),
    _Sign(program="serving", events=_OPERATIONS, pattern=_ENGINE_STEPS),
    _Sign(program="tensorflow", events=_FRAMES, pattern=r".*\btensorflow[/\\]"),
    _Sign(program="tensorflow", events=_OPERATIONS, pattern=_TENSORFLOW_OPERATIONS),
    _Sign(
        program="tensorflow",
        events=_KERNELS,
        pattern=r".*tensorflow::|.*EigenMetaKernel",
    ),
    _Sign(program="jax", events=_OPERATIONS, pattern=_JAX_OPERATIONS),
    _Sign(program="jax", events=_FRAMES, pattern=r".*\bjax[/\\]"),
    _Sign(
        program="jax", events=_KERNELS, pattern=r"(?:loop|input)_\w*fusion(?:_\d+)?$"
    ),
    _Sign(program="pytorch-training", events=_OPERATIONS, pattern=_BACKWARD_OPERATIONS),
    _Sign(program="pytorch-training", events=_KERNELS, pattern=_TRAINING_KERNELS),
    _Sign(program="serving", events=_KERNELS, pattern=r".*(?:\bvllm::|\bsgl_)"),
    _Sign(program="pytorch-inference", events=_OPERATIONS, pattern=_PYTORCH_OPERATIONS),
    _Sign(program="pytorch-inference", events=_FRAMES, pattern=r".*\btorch[/\\]"),
    _Sign(program="pytorch-inference", events=_KERNELS, pattern=_PYTORCH_KERNELS),
    _Sign(program="native", events=_KERNELS, pattern=_LIBRARY_KERNELS),
)
#: Calls of the CUDA or HIP runtime that launch a kernel; they need code compiled with the program.
_LAUNCHES_COMPILED_KERNEL: Final = r"(?:cuda|hip)\w*LaunchKernel"

#: Beginning of the name of a format → the tool that writes this format.
_TOOLS: Final = {
    "PyTorch": "torch",
    "Nsight": "nsys",
    "nsys": "nsys",
    "rocprof": "rocprofv3",
    "JAX": "jax",
}


@dataclass(frozen=True)
class RecordedProgram:
    """The program of a trace.

    Attributes:
        kind: the kind of program.
        because: the evidence for `kind`: a noun phrase, such as "kernels such as 'ggml_mul'".
        tool: the tool that recorded the trace: `torch`, `nsys`, `rocprofv3`, `jax`, or empty.
    """

    kind: Kind
    because: str
    tool: str


@cached_per_object
def program_of(trace: Trace) -> RecordedProgram:
    """Return the kind of program that a trace was recorded from, and the evidence for it."""
    format_name = trace.provenance.format
    tool = _tool_of(format_name)
    for sign in _SIGNS:
        if tool == "torch" and sign.program in {"jax", "tensorflow"}:
            continue  # PyTorch's profiler only records PyTorch programs
        name = _commonest_name(
            trace=trace, kinds=sign.events.kinds, pattern=sign.pattern
        )
        if name is not None:
            because = f"{sign.events.words} such as {name!r}"
            return RecordedProgram(kind=sign.program, because=because, tool=tool)
    if tool == "jax":
        return RecordedProgram(kind="jax", because=f"a {format_name}", tool=tool)
    if tool == "torch":
        profiler = format_name.split(" (")[0]
        return RecordedProgram(
            kind="pytorch-inference", because=f"recorded by the {profiler}", tool=tool
        )
    launches_kernels = _commonest_name(trace, LAUNCH_KINDS, _LAUNCHES_COMPILED_KERNEL)
    if tool and launches_kernels and not _has_python(trace):
        because = "kernels compiled into the program, and no framework"
        return RecordedProgram(kind="native", because=because, tool=tool)
    return RecordedProgram(
        kind="unknown", because="nothing in the trace identifies it", tool=tool
    )


def _tool_of(format_name: str) -> str:
    """Return the tool that writes a format; empty if the tool is not known."""
    for beginning, tool in _TOOLS.items():
        if format_name.startswith(beginning):
            return tool
    return ""


def _has_python(trace: Trace) -> bool:
    """Return True if the name of a process or thread contains "python"."""
    names = list(trace.process_names.values())
    names.extend(trace.thread_names.values())
    return any("python" in str(name).lower() for name in names)


def _commonest_name(
    trace: Trace, kinds: Sequence[EventKind], pattern: str
) -> str | None:
    """Return the most common name that matches the pattern among events of these kinds.

    Returns None if no name matches.
    """
    names = trace.name[trace.rows_of(*kinds)]
    matching = names[trace.named(names, re.compile(pattern).match)]
    if not len(matching):
        return None
    return trace.names[int(np.bincount(matching).argmax())]


@dataclass(frozen=True)
class Missing:
    """Data that was not recorded, although the tool could have recorded it.

    Attributes:
        what: the data: `stacks`, `shapes`, `memory`, `API calls` or `sync events`.
        adds: what the data would show, as a clause: "which line of Python each place refers to".
        how: the option or code with which the tool records the data.
    """

    what: str
    adds: str
    how: str


#: Any program makes API calls; all other data exists only in programs that use a Python framework.
_CALLS: Final = "API calls"
#: Data → what it would show, as a clause.
_ADDS: Final = {
    _CALLS: "why the GPU is idle, and which call launched each kernel",
    "stacks": "which line of Python each place refers to",
    "shapes": "how far each operation is from the best the GPU can do",
    "memory": "what is allocated at the peak, and what allocated it",
    "sync events": "which event or stream each wait is for",
}
#: Tool → data that it can record → the option or code that records the data.
_HOW: Final = {
    "torch": {
        _CALLS: "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
        "stacks": "torch.profiler.profile(with_stack=True)",
        "shapes": "torch.profiler.profile(record_shapes=True)",
        "memory": "torch.profiler.profile(profile_memory=True)",
        "sync events": "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)",
    },
    "nsys": {
        _CALLS: "nsys profile -t cuda, then nsys export --type sqlite",
        "stacks": "nsys profile --python-backtrace=cuda",
        "shapes": (
            "torch.autograd.profiler.emit_nvtx(record_shapes=True), and nsys profile "
            "-t cuda,nvtx"
        ),
    },
    "rocprofv3": {_CALLS: "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace"},
    "jax": {"stacks": "jax.profiler.ProfileOptions().python_tracer_level = 1"},
}


def missing_of(trace: Trace) -> tuple[Missing, ...]:
    """Return the data that a trace lacks, but that its tool can record of such a program."""
    program = program_of(trace)
    is_of_python = program.kind in PYTORCH or program.kind == "jax"
    is_recorded = {
        _CALLS: trace.count_of(*LAUNCH_KINDS) > 0,
        "stacks": trace.count_of(EventKind.PYTHON_FUNCTION) > 0,
        "shapes": len(trace.arg("Input Dims").rows) > 0,
        "memory": len(trace.arg("Bytes").rows) > 0,
        "sync events": "cuda_sync" in trace.categories,
    }
    missing = []
    for what, how in _HOW.get(program.tool, {}).items():
        exists = is_of_python or what == _CALLS
        if exists and not is_recorded[what]:
            missing.append(Missing(what=what, adds=_ADDS[what], how=how))
    return tuple(missing)
