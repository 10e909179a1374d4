"""`dominant-kernel`: one kernel is over half of GPU time, and no model knows it; informs."""

from __future__ import annotations

import shlex
from typing import Final

import numpy as np

from tracelens_ext.findings.all_clear import kernel_profiler
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.kernel_names import short_name
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.trace import NS_PER_MS

_MOST: Final = 0.5
_COMMANDS: Final = {
    "ncu": "ncu --set full --kernel-name {name} --launch-count 3 -o dominant <your command>",
    "rocprof-compute": "rocprof-compute profile -n dominant -k {name} -- <your command>",
}


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    time = np.bincount(work.name, work.duration, minlength=1)
    largest, total = int(time.argmax()), float(time.sum())
    mine = (work.name == largest) & work.is_kernel & ~(work.is_communication | work.is_copy)
    alone = np.count_nonzero(time) < 2  # what is nothing else needs nobody to point to it
    if alone or not mine.any() or time[largest] <= _MOST * total:
        return None
    # Where an operation's model lacks shapes, these are what to record first.
    models, rows = offered_models(), inspection.roofline.rows
    known = inspection.by_operation([bool(model_of(r.operation.model_name, models)) for r in rows])
    if work.duration[mine & (known == 0)].sum() <= _MOST * total:
        return None
    name = short_name(work.trace.names[largest]).partition("<")[0].partition("(")[0].strip()
    share, tool = 100 * time[largest] / total, kernel_profiler(work)
    command = _COMMANDS[tool].format(name=shlex.quote(name))
    return inspection.finding(
        DETECTOR.id,
        inspection.wall.about(mine),
        title=f"{share:.1f} % of GPU time is one kernel, {name}, which no model knows",
        advice=f"Find out what limits it, instruction by instruction: {command}",
        informs=True,
        evidence=[
            Evidence("calls of it", int(mine.sum()), "GPU events", "kernels"),
            Evidence("its time", float(time[largest]) / NS_PER_MS, "ms", "kernels"),
        ],
    )


DETECTOR = Detector("dominant-kernel", _detect)
