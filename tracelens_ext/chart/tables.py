"""The tables of a chart: kernels with their categories, and categories by run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.chart.runs import NOT_GPU
from tracelens_ext.chart.specification import NS_PER_S
from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.chart.runs import Run

ELAPSED: Final = "Elapsed Time (sec)"
TOTAL: Final = "total_elapsed_sec"


def kernel_table(runs: Sequence[Run]) -> pd.DataFrame:
    """How kernel names are mapped to categories, and the time of each; this is `result.csv`.

    Returns:
        Columns `Model_Engine` (the run's label), `Category`, `Instances`, `Name`,
        `Elapsed Time (sec)` (time in which the kernel was the first to cover the GPU). By
        category, then in the order of the runs, longest time first. `CPU(non-GPU)` is one more
        row of each run.
    """
    frame = pd.DataFrame(
        {
            "Model_Engine": [run.label for run in runs for _ in range(len(run.kernel) + 1)],
            "Category": [name for run in runs for name in (*run.category, NOT_GPU)],
            "Instances": [n for run in runs for n in (*run.instances.tolist(), 1)],
            "Name": [name for run in runs for name in (*run.kernel, NOT_GPU)],
            ELAPSED: [
                ns / NS_PER_S
                for run in runs
                for ns in (*run.gpu_ns_of.tolist(), run.not_gpu_ns)
            ],
        }
    )  # fmt: skip
    # Stable: within a category runs keep their order, and kernels their order by time.
    return frame.sort_values("Category", kind="stable", ignore_index=True)


def category_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Elapsed seconds by category and run.

    Returns:
        A row a category in the index, the largest of all runs together first, `CPU(non-GPU)`
        last; a column a run, by position; NaN where a run has no kernel of a category.
    """
    names: dict[str, int] = {}
    for run in runs:
        for name in run.category:
            names.setdefault(name, len(names))
    seconds = np.full((len(names), len(runs)), np.nan)
    for place, run in enumerate(runs):
        rows = np.array([names[name] for name in run.category], dtype=np.int64)
        sums = np.zeros(len(names), dtype=np.int64)
        np.add.at(sums, rows, run.gpu_ns_of)
        present = np.unique(rows)
        seconds[present, place] = sums[present] / NS_PER_S
    frame = pd.DataFrame(seconds, index=list(names), columns=range(len(runs)))
    order = np.argsort(-np.nansum(seconds, axis=1), kind="stable")
    rest = [[run.not_gpu_ns / NS_PER_S for run in runs]]
    return pd.concat(
        [frame.iloc[order], pd.DataFrame(rest, index=[NOT_GPU], columns=range(len(runs)))]
    )


def input_table(runs: Sequence[Run]) -> pd.DataFrame:
    """What each bar is of: file, engine and model, elapsed and GPU time."""
    return pd.DataFrame(
        {
            "Model_Engine": [run.label for run in runs],
            "file": [encodable(str(run.given.path)) for run in runs],
            "engine": [encodable(run.given.engine) for run in runs],
            "model": [encodable(run.given.model) for run in runs],
            "elapsed (sec)": [run.elapsed_ns / NS_PER_S for run in runs],
            "elapsed from": [run.elapsed_from for run in runs],
            "GPU (sec)": [run.gpu_ns / NS_PER_S for run in runs],
            "GPU (%)": [_percent(run) for run in runs],
            "GPU events": [int(run.instances.sum()) for run in runs],
            "GPUs": [", ".join(map(str, run.devices)) for run in runs],
        }
    )


def _percent(run: Run) -> float:
    return 100.0 * run.gpu_ns / run.elapsed_ns if run.elapsed_ns else 0.0
