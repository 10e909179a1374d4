"""Per-class statistics of a GPU program: kernel time by class, NCCL, memory operations, ranges.

    >>> from tracelens_ext import StatisticClassifier
    >>> classifier = StatisticClassifier({"xmma_gemm": "gemm", "fusion": "fusion"})
    >>> classifier.statistic(5, "kern_sum.csv", None, "mem_time_sum.csv").show("My run")

`statistics.py` reads the tables of `nsys stats` and computes, `inputs.py` makes the same totals of
a trace, `layout.py` shows, `configuration.py` reads the file of a run.
"""

from __future__ import annotations

from tracelens_ext.hooks import Command, hookimpl


@hookimpl
def tracelens_commands() -> list[Command]:
    """The commands of this package."""
    return [
        Command(
            "nsys",
            "Statistics of reports of Nsight Systems by class.",
            "tracelens_ext.cli.nsys:app",
            "Look",
            examples=(
                "nsys stats run.nsys-rep",
                "nsys stats run.sqlite --xlsx classes.xlsx",
                "nsys stats --kernels kern_sum.csv --mem mem_time_sum.csv --json",
            ),
        )
    ]
