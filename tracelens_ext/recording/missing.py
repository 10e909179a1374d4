"""What was not recorded by choice, what it would add, and how to record it with this tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens_ext.recording.program import PYTORCH, program_of
from tracelens_ext.trace import LAUNCH_KINDS, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.trace import Trace


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
