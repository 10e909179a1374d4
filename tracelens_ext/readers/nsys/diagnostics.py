"""The diagnostics of Nsight Systems that explain why a recording has no GPU work.

A recording has diagnostics about everything that was collected: "CPU sampling was disabled", "the
process was launched by the profiler". Where launches were recorded and no GPU work, only those
about the collection of CUDA events explain it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WARNING = "2"
ERROR = "3"

_MOST_QUOTED = 5
#: What is said of the collection of CUDA events.
_ABOUT_CUDA = re.compile(
    r"CUDA|CUPTI|\bGPUs?\b|\bdriver\b|privilege|permission|\badmin|\binject",
    re.IGNORECASE,
)
#: What is collected apart from CUDA events, and may be missing for reasons of its own.
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
    """Return the diagnostics that explain why no GPU work was recorded, each once.

    Warnings and errors about CUDA come first; where there are none, what is said for information
    and speaks of a failure.

    Args:
        diagnostics: the severity and the text of each, as the export has them.
    """
    severe: list[str] = []
    informing: list[str] = []
    for severity, text in diagnostics:
        text = text.strip()
        is_about_cuda = _ABOUT_CUDA.search(text) is not None
        is_about_others = _ABOUT_OTHER_EVENTS.search(text) is not None
        if is_about_others or not is_about_cuda:
            continue
        if severity in (WARNING, ERROR):
            severe.append(text)
        elif _FAILED.search(text):
            informing.append(text)
    explaining = severe or informing
    distinct = list(dict.fromkeys(explaining))
    return distinct[:_MOST_QUOTED]
