"""Per-class statistics of a GPU program: kernel time by class, NCCL, memory operations, ranges.

    >>> from tracelens_ext import StatisticClassifier
    >>> classifier = StatisticClassifier({"xmma_gemm": "gemm", "fusion": "fusion"})
    >>> classifier.statistic(5, "kern_sum.csv", None, "mem_time_sum.csv").show("My run")

* `configuration` reads the file that lists the inputs of a run.
* `totals` reads the tables of `nsys stats`; `inputs` makes the same totals from a trace, with
  `nvtx_ranges`.
* `statistics` computes, and takes the class of each kernel from `kernel_classes`.
* `layout` formats the result as text, and `report_tables` as tables.
* `classifier` is the Python interface.
"""

from __future__ import annotations
