"""Where did the GPU time go, and what should be done about it?

>>> from tracelens_ext import TreePerfAnalyzer, generate_perf_report_pytorch
>>> analyzer = TreePerfAnalyzer("trace.json.gz", use_kernel_name_categories=True)
>>> analyzer.get_df_kernel_summary()

Names are loaded when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tracelens_ext.compatibility import moved_modules
from tracelens_ext.settings import VERSION

if TYPE_CHECKING:
    from tracelens_ext.analysis.nsys_statistics.classifier import StatisticClassifier
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.categorize import KernelCategorizer, categorize_kernels
    from tracelens_ext.errors import TracelensError
    from tracelens_ext.hooks import hookimpl
    from tracelens_ext.perf_report import generate_perf_report_pytorch
    from tracelens_ext.readers import read_trace
    from tracelens_ext.recorder.in_python import record, trace_handler
    from tracelens_ext.recorder.magic import load_ipython_extension
    from tracelens_ext.trace import Trace
    from tracelens_ext.trace.call_tree import CallTree

__version__ = VERSION

moved_modules.install()

_HOME = {
    "CallTree": "trace.call_tree",
    "KernelCategorizer": "categorize",
    "StatisticClassifier": "analysis.nsys_statistics.classifier",
    "Trace": "trace",
    "TracelensError": "errors",
    "TreePerfAnalyzer": "analyzer",
    "categorize_kernels": "categorize",
    "generate_perf_report_pytorch": "perf_report",
    "hookimpl": "hooks",
    "load_ipython_extension": "recorder.magic",
    "read_trace": "readers",
    "record": "recorder.in_python",
    "trace_handler": "recorder.in_python",
}

__all__ = [
    "CallTree",
    "KernelCategorizer",
    "StatisticClassifier",
    "Trace",
    "TracelensError",
    "TreePerfAnalyzer",
    "__version__",
    "categorize_kernels",
    "generate_perf_report_pytorch",
    "hookimpl",
    "load_ipython_extension",
    "read_trace",
    "record",
    "trace_handler",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
