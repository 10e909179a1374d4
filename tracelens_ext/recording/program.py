"""Which kind of program was recorded, and with what tool."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, EventKind
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

Kind = Literal[
    "pytorch-training",
    "pytorch-inference",
    "serving",
    "jax",
    "tensorflow",
    "native",
    "unknown",
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
    """The program of a trace.

    Attributes:
        kind: what it is.
        because: what shows it, a clause.
        tool: what recorded it: `torch`, `nsys`, `rocprofv3`, `jax`, or empty.
    """

    kind: Kind
    because: str
    tool: str


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
