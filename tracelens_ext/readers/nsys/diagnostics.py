"""Selects the diagnostics of Nsight Systems that explain why a recording has no GPU work.

A recording has diagnostics about everything that Nsight Systems collects, such as "CPU sampling was
disabled" or "the process was launched by the profiler". Only those about the collection of CUDA
events can explain missing GPU work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WARNING = "2"
ERROR = "3"

_MOST_QUOTED = 5
#: Words of diagnostics about the collection of CUDA events.
_ABOUT_CUDA = re.compile(
    r"CUDA|CUPTI|\bGPUs?\b|\bdriver\b|privilege|permission|\badmin|\binject",
    re.IGNORECASE,
)
#: Words of diagnostics about other data, which is collected independently of CUDA events.
_ABOUT_OTHER_EVENTS = re.compile(
    r"\bCPU\b|sampling|perf_event|context switch|back-?trace|call ?stack|unwind|ftrace|\betw\b"
    r"|OS runtime|\bOSRT\b|NVTX|OpenGL|Vulkan|Direct3D|vsync|GPU metrics|nvvideo|network",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"\bno CUDA|\bnot\b|fail|error|unable|cannot|denied|disabled|insufficient|unsupported|missing",
    re.IGNORECASE,
)


def explanations(diagnostics: Iterable[tuple[str, str]]) -> list[str]:
    """Return the distinct diagnostics that explain why no GPU work was recorded.

    These are the warnings and errors about CUDA. If there are none, they are the mere pieces of
    information about CUDA that mention a failure.

    Args:
        diagnostics: severity and text of each diagnostic, as the export has them.
    """
    warnings_and_errors: list[str] = []
    reported_failures: list[str] = []
    for severity, text in diagnostics:
        text = text.strip()
        is_about_cuda = _ABOUT_CUDA.search(text) is not None
        is_about_other_data = _ABOUT_OTHER_EVENTS.search(text) is not None
        if is_about_other_data or not is_about_cuda:
            continue
        if severity in (WARNING, ERROR):
            warnings_and_errors.append(text)
        elif _FAILED.search(text):
            reported_failures.append(text)
    selected = warnings_and_errors or reported_failures
    distinct = list(dict.fromkeys(selected))
    return distinct[:_MOST_QUOTED]
