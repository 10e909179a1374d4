"""Analyzes the traces of many ranks on several processes or machines, and compares the ranks.

>>> from tracelens_ext.distributed import run_fleet
>>> result = run_fleet(["traces/rank*.json.gz"], "results", workers=4)
>>> result.tables["ranks"]

A Dask worker reads each trace and writes its tables as Parquet files, the parts. The tables over
all ranks, the reductions, are computed from the parts. This needs the extra `fleet`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens_ext.distributed.run import FleetResult, run_fleet

__all__ = ["FleetResult", "run_fleet"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.run"), name)
