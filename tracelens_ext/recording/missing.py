"""What was not recorded by choice, what it would add, and how to record it with this tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens_ext.recording.program import PYTORCH, program_of
from tracelens_ext.trace import LAUNCH_KINDS, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_ext.trace import Trace


@dataclass(frozen=True)
class Missing:
    """Something that was not recorded."""

    what: str  #: `stacks`, `shapes`, `memory`, `API calls`, `sync events`
    adds: str  #: what it would add, a clause
    how: str  #: how to record it with the tool that recorded the trace


@dataclass(frozen=True)
class _Choice:
    what: str
    adds: str
    is_there: Callable[[Trace], bool]
    how: Mapping[str, str]  #: by tool
    of_python: bool = True  #: whether only programs in Python have it


_NVTX: Final = "torch.autograd.profiler.emit_nvtx(record_shapes=True), nsys profile -t cuda,nvtx"
_CHOICES: Final = (
    _Choice(
        "API calls",
        "why the GPU is idle, and which call launched each kernel",
        lambda trace: trace.count_of(*LAUNCH_KINDS) > 0,
        {
            "torch": "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            "nsys": "nsys profile -t cuda, then nsys export --type sqlite",
            "rocprofv3": "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace",
        },
        of_python=False,
    ),
    _Choice(
        "stacks",
        "the line of Python that each place is about",
        lambda trace: trace.count_of(EventKind.PYTHON_FUNCTION) > 0,
        {
            "torch": "torch.profiler.profile(with_stack=True)",
            "nsys": "nsys profile --python-backtrace=cuda",
            "jax": "jax.profiler.ProfileOptions().python_tracer_level = 1",
        },
    ),
    _Choice(
        "shapes",
        "how far each operation is from the best that the GPU can do",
        lambda trace: len(trace.arg("Input Dims").rows) > 0,
        {"torch": "torch.profiler.profile(record_shapes=True)", "nsys": _NVTX},
    ),
    _Choice(
        "memory",
        "what is allocated at the peak, and by what",
        lambda trace: len(trace.arg("Bytes").rows) > 0,
        {"torch": "torch.profiler.profile(profile_memory=True)"},
    ),
    _Choice(
        "sync events",
        "which event or stream each wait is for",
        lambda trace: "cuda_sync" in trace.categories,
        {
            "torch": "profile(experimental_config=torch._C._profiler._ExperimentalConfig("
            "enable_cuda_sync_events=True))"
        },
    ),
)


def missing_of(trace: Trace) -> tuple[Missing, ...]:
    """What a trace lacks that its tool could have recorded of such a program."""
    program = program_of(trace)
    python = program.kind in PYTORCH or program.kind == "jax"
    return tuple(
        Missing(choice.what, choice.adds, choice.how[program.tool])
        for choice in _CHOICES
        if program.tool in choice.how
        and (python or not choice.of_python)
        and not choice.is_there(trace)
    )
