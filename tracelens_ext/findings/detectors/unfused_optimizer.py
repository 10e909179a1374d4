"""The windows of steps with kernels for each parameter, less what a fused step needs."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.optimizer_steps import (
    optimizer_name,
    optimizer_steps,
    option_of_optimizer,
)
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
)
from tracelens_ext.trace import NONE

TEXT: Final = FindingText(
    title="{who} updates parameters one by one: {saving}",
    advices=(
        AdviceVariant(
            requires=(Fact.COMPILED,),
            advice=(
                "Update all parameters in a few kernels, with the option {option}=True of the "
                "optimizer, or compile its step as well."
            ),
            snippet="torch.optim.{name}(model.parameters(), {option}=True)",
        ),
        AdviceVariant(
            advice=(
                "Update all parameters in a few kernels, with the option {option}=True of the "
                "optimizer."
            ),
            snippet="torch.optim.{name}(model.parameters(), {option}=True)",
        ),
    ),
    confidence="high",
    reason="each kernel of the step works on one parameter; a fused step moves about 35 % as much",
    evidence={
        "steps": EvidenceText("steps", "steps", "cpu_ops"),
        "events": EvidenceText("kernels in them", "GPU events", "kernels_by_category"),
        "time_ms": EvidenceText("their time", "ms", "kernels"),
        "idle_ms": EvidenceText("idle time in them", "ms", "idle_cpu_activity"),
    },
    least_share=0.5,
    most_share=1.25,
)

#: Kernels that work on many parameters at once: PyTorch's foreach and fused ones, Apex's, compiled.
_MANY_AT_ONCE: Final = re.compile(r".*(multi_tensor|foreach|[Ff]used|triton_)")
#: A step with fewer kernels that each work on one parameter gains nothing worth a change.
_MANY_KERNELS: Final = 20
#: A fused Adam reads four tensors a parameter and writes three; its single steps (two decays, two
#: updates of moments, root, division, sum) move about twenty. Other optimizers lie near that.
_FUSED_SHARE: Final = 0.35
#: What any kernel takes however little it does: nobody needs that once for each parameter.
_FIXED_NS: Final = 2_500


@detector(
    "unfused-optimizer",
    TEXT,
    remedy=Remedy.REMOVES_LAUNCHES,
    kinds=("pytorch-training",),
)
def unfused_optimizer(inspection: Inspection) -> Finding | None:
    """The windows of steps with kernels for each parameter, less what a fused step needs."""
    gpu_events = inspection.gpu_events
    wall = inspection.wall
    steps, step_of_gpu = optimizer_steps(inspection)
    if not len(steps):
        return None
    works_on_many = gpu_events.trace.named(gpu_events.name, _MANY_AT_ONCE.match)
    is_in_step = step_of_gpu != NONE
    is_single = is_in_step & gpu_events.is_kernel
    is_single &= ~works_on_many
    is_single &= ~gpu_events.is_communication
    single_kernels = np.bincount(step_of_gpu[is_single], minlength=len(steps))
    step_of_kernels = step_of_gpu[is_in_step & gpu_events.is_kernel]
    all_kernels = np.bincount(step_of_kernels, minlength=len(steps))
    is_unfused = single_kernels >= _MANY_KERNELS
    is_unfused &= 2 * single_kernels > all_kernels
    is_chosen = is_single & is_unfused[step_of_gpu]

    fused_ns = _FUSED_SHARE * np.maximum(gpu_events.duration - _FIXED_NS, 0)
    share = 1.0 - fused_ns / np.maximum(gpu_events.duration, 1)
    before = wall.classified.gaps.before
    after = wall.classified.gaps.after
    is_between = step_of_gpu[before] == step_of_gpu[after]
    is_between &= is_chosen[before]
    is_between &= is_chosen[after]
    idle = wall.claim_idle_during(steps[is_unfused])
    of_cpu = wall.waits_for_cpu(wall.idle) | wall.is_launch_overhead(wall.idle)
    is_idle_between = is_between[wall.idle.gap] & of_cpu
    idle = idle + wall.claim_idle(is_idle_between)
    claim = idle + wall.claim_events(is_chosen, share)

    name = optimizer_name(inspection, steps[is_unfused])
    numbers = {
        "steps": int(is_unfused.sum()),
        **inspection.size_of(claim),
        "idle_ms": idle.attributed_ms,
    }
    values = {
        "who": name or "The optimizer",
        "name": name or "AdamW",
        "option": option_of_optimizer(name),
    }
    return inspection.finding(
        "unfused-optimizer", claim, numbers, text=TEXT, values=values
    )
