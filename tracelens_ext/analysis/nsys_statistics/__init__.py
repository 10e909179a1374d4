"""Per-class statistics of a GPU program: kernel time by class, NCCL, memory operations, ranges.

    >>> from tracelens_ext import StatisticClassifier
    >>> classifier = StatisticClassifier({"xmma_gemm": "gemm", "fusion": "fusion"})
    >>> classifier.statistic(5, "kern_sum.csv", None, "mem_time_sum.csv").show("My run")

`statistics.py` reads the tables of `nsys stats` and computes, `inputs.py` makes the same totals of
a trace, `layout.py` shows, `configuration.py` reads the file of a run.
"""

from __future__ import annotations
