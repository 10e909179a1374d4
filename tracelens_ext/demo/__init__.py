"""A trace made from nothing, so that everything can be tried with no GPU and no file.

A simulated training job: a host thread and an autograd thread issue operations, streams run
what they launch, and a profiler records it. The result has the structure of a real PyTorch
trace, with NVIDIA's or AMD's kernel names, and is the same, byte for byte, on every run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import os

VendorKey = Literal["nvidia", "amd"]

DEFAULT_NAME = "demo_trace.json.gz"


def build_demo_trace(
    vendor: VendorKey = "nvidia", seed: int = 0, steps: int = 3
) -> dict[str, object]:
    """The demo trace as a document ready for JSON.

    Args:
        vendor: whose machine and kernel names.
        seed: of the small variations in every duration.
        steps: how many training steps are profiled.

    Returns:
        The trace; times (``ts``, ``dur``) are floats in microseconds with exact nanoseconds.

    Raises:
        UsageError: there is no such vendor, or no step.
    """
    from tracelens_ext.demo.engine import Simulator
    from tracelens_ext.demo.events import trace_document
    from tracelens_ext.demo.training import TrainingScript
    from tracelens_ext.demo.vendors import VENDORS

    if vendor not in VENDORS:
        raise UsageError(f"no vendor {vendor!r} in the demo; choose one of: {', '.join(VENDORS)}")
    if steps < 1:
        raise UsageError(f"{steps} steps cannot be profiled; choose at least 1")
    machine = VENDORS[vendor]
    recording = TrainingScript(Simulator(machine, seed)).run(steps)
    return trace_document(recording, machine, seed=seed, steps=steps)


def write_demo_trace(
    path: str | os.PathLike[str],
    vendor: VendorKey = "nvidia",
    seed: int = 0,
    steps: int = 3,
) -> Path:
    """Write the demo trace in Kineto's own text layout; a file of that name is replaced.

    Args:
        path: ends in ``.json`` or, compressed, ``.json.gz``.
        vendor: as in `build_demo_trace`, like the rest.
        seed: of the variations.
        steps: how many training steps.

    Returns:
        The path.

    Raises:
        UsageError: a wrong argument.
        OutputError: the file cannot be written.
    """
    from tracelens_ext.demo.write import write_trace

    target = Path(path)
    write_trace(build_demo_trace(vendor, seed, steps), target)
    return target


def is_demo_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a demo trace: what may be overwritten without asking."""
    from tracelens_ext.demo.write import starts_like_demo

    return starts_like_demo(Path(path))
