"""A trace made from nothing, so that everything can be tried with no GPU and no file.

A simulated training job: a host thread and an autograd thread issue operations, streams run
what they launch, and a profiler records it. What the job does, the kernels and how fast the
machines are stand in the JSON files beside this one. The result has the structure of a real
PyTorch trace, with NVIDIA's or AMD's kernel names, and is the same, byte for byte, on every run.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

VendorKey = Literal["nvidia", "amd"]

_NONE: Mapping[str, float] = MappingProxyType({})

# How many times slower a GPU is, and by which share it may be faster from kernel to kernel. The
# straggler takes the longest on everything, so that it comes last to every collective.
_STRAGGLER = (1.06, 0.0)
_OTHERS = (1.0, 0.04)


def build_demo_trace(
    vendor: VendorKey = "nvidia",
    seed: int = 0,
    steps: int | None = None,
    *,
    rank: int = 0,
    ranks: int = 1,
    problems: Mapping[str, float] = _NONE,
    fixed: bool = False,
) -> dict[str, Any]:
    """The demo trace as a document ready for JSON.

    Args:
        vendor: whose machine and kernel names.
        seed: of the small variations in every duration.
        steps: how many training steps are profiled; 3 unless a problem needs more to be seen.
        rank: which rank of the job.
        ranks: how many ranks are simulated. Of several one has a slower GPU, and the others wait
            for it in their collectives; one alone is rank 0 of a larger job.
        problems: what else goes wrong (``problems.json`` has the names) and how many milliseconds
            of the whole trace it costs.
        fixed: whether the job hardly waits for its data loader, as after a fix.

    Returns:
        The trace; times (``ts``, ``dur``) are floats in microseconds with exact nanoseconds.

    Raises:
        UsageError: there is no such vendor, rank or problem, or no step.
    """
    from tests.support.simulated_job.document import trace_document
    from tests.support.simulated_job.engine import Engine
    from tests.support.simulated_job.machine import VENDORS, Machine
    from tests.support.simulated_job.problems import check_problems, steps_for
    from tests.support.simulated_job.schedule import Job

    if vendor not in VENDORS:
        raise UsageError(
            f"no vendor {vendor!r} in the demo; choose one of: {', '.join(VENDORS)}"
        )
    check_problems(problems)
    steps = steps_for(problems, steps)
    if not 0 <= rank < ranks:
        raise UsageError(f"there is no rank {rank} among {ranks}; they count from 0")
    machine = Machine(vendor)
    settings: dict[str, object] = {"vendor": vendor, "seed": seed, "steps": steps}
    if problems:
        settings["problems"] = dict(problems)
    if fixed:
        settings["fixed"] = True
    engine = Engine(machine, seed)
    if ranks > 1:
        settings |= {"rank": rank, "ranks": ranks}
        straggler = (seed + 1) % ranks
        engine = Engine(machine, seed, straggler, _STRAGGLER)
        if rank != straggler:
            Job(engine, ranks, problems).run(steps)
            engine = Engine(machine, seed, rank, _OTHERS, engine.collective_ends)
    job = Job(engine, ranks, problems, fixed=fixed)
    job.run(steps)
    return trace_document(job, settings)


def write_demo_trace(
    path: str | os.PathLike[str],
    vendor: VendorKey = "nvidia",
    seed: int = 0,
    steps: int | None = None,
    *,
    rank: int = 0,
    ranks: int = 1,
    problems: Mapping[str, float] = _NONE,
    fixed: bool = False,
) -> Path:
    """Write the demo trace in Kineto's own text layout; a file of that name is replaced.

    The path ends in ``.json`` or, compressed, ``.json.gz``; the rest is as in `build_demo_trace`.

    Returns:
        The path.

    Raises:
        UsageError: a wrong argument.
        OutputError: the file cannot be written.
    """
    from tests.support.simulated_job.write import write_trace

    target = Path(path)
    made = build_demo_trace(
        vendor, seed, steps, rank=rank, ranks=ranks, problems=problems, fixed=fixed
    )
    write_trace(made, target)
    return target
