"""`unfused-optimizer`: an optimizer that launches kernels for each parameter.

What is saved is the window of the step, less what a fused step needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.trace import NONE, NS_PER_MS, EventKind
from tracelens_ext.work.grouping import last_before

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array

#: PyTorch's annotation around a step of an optimizer.
_STEP: Final = re.compile(r"Optimizer\.step#(\w+)")
#: Kernels that work on many parameters at once: PyTorch's foreach and fused ones, Apex's, compiled.
_MANY_AT_ONCE: Final = re.compile(r".*(multi_tensor|foreach|[Ff]used|triton_)")
#: A step with fewer kernels that each work on one parameter gains nothing worth a change.
_MANY_KERNELS: Final = 20
#: A fused Adam reads four tensors a parameter and writes three; its single steps (two decays, two
#: updates of moments, root, division, sum) move about twenty. Other optimizers lie near that.
_FUSED_SHARE: Final = 0.35
#: What any kernel takes however little it does: nobody needs that once for each parameter.
_FIXED_NS: Final = 2_500


def _detect(inspection: Inspection) -> Finding | None:
    work, wall, trace = inspection.work, inspection.wall, inspection.work.trace
    steps, step = _steps(inspection)
    if not len(steps):
        return None
    together = trace.named(work.name, _MANY_AT_ONCE.match)
    single = (step != NONE) & work.is_kernel & ~together & ~work.is_communication
    count = np.bincount(step[single], minlength=len(steps))
    of_all = np.bincount(step[(step != NONE) & work.is_kernel], minlength=len(steps))
    unfused = (count >= _MANY_KERNELS) & (2 * count > of_all)
    chosen = single & (step != NONE) & unfused[step]
    needed = _FUSED_SHARE * np.maximum(work.duration - _FIXED_NS, 0)
    share = 1.0 - needed / np.maximum(work.duration, 1)
    gaps = wall.classified.gaps
    within = chosen[gaps.before] & chosen[gaps.after] & (step[gaps.before] == step[gaps.after])
    idle = wall.claim_idle_during(steps[unfused])
    idle = idle + wall.claim_idle(within[wall.idle.gap])
    claim = idle + wall.claim_events(chosen, share)
    name = _names(inspection, steps[unfused])
    return inspection.finding(
        DETECTOR.id,
        claim,
        title=f"{name or 'The optimizer'} updates parameters one by one, which costs {{saving}}",
        snippet=f"torch.optim.{name or 'AdamW'}(model.parameters(), fused=True)",
        reason=(
            "the kernels of the step each work on one parameter; a fused step moves"
            f" about {_FUSED_SHARE:.0%} of their bytes, and has next to no holes"
        ),
        evidence=[
            Evidence("steps", int(unfused.sum()), "steps", "cpu_ops"),
            Evidence("kernels in them", len(claim.events), "GPU events", "kernels_by_category"),
            Evidence("their time", wall.mean_ms(work.duration[claim.events]), "ms", "kernels"),
            Evidence("idle time in them", idle.saving_ns / NS_PER_MS, "ms", "gap_hosts"),
        ],
    )


def _steps(inspection: Inspection) -> tuple[Int64Array, Int64Array]:
    """The steps; and which launched each GPU event, an index into them, `NONE` without, (g,)."""
    trace, tree = inspection.work.trace, inspection.work.tree
    rows = inspection.host_rows(_STEP, EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
    result = np.full(len(tree.linked), NONE, dtype=np.int64)
    if not len(rows):
        return rows, result
    launch = tree.launch_of_gpu[tree.linked]
    thread, begun = trace.thread[launch], trace.ts[launch]
    at = last_before(trace.thread[rows], trace.ts[rows], thread, begun + 1)
    inside = (at != NONE) & (begun < trace.end_of(rows[at]))
    result[tree.linked] = np.where(inside, at, NONE)
    return rows, result


def _names(inspection: Inspection, steps: Int64Array) -> str:
    """The class of the optimizer; empty where there are several, or none."""
    trace = inspection.work.trace
    found = {_STEP.match(trace.names[i]) for i in np.unique(trace.name[steps]).tolist()}
    names = {match[1] for match in found if match}
    return names.pop() if len(names) == 1 else ""


def in_optimizer_step(inspection: Inspection) -> BoolArray:
    """Whether each GPU event was launched by a step of an optimizer, (g,)."""
    result: BoolArray = _steps(inspection)[1] != NONE
    return result


DETECTOR = Detector("unfused-optimizer", _detect, instead="launches go")
