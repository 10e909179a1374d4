"""Many traces, one a rank, analyzed on many processes or machines, and then compared.

>>> from tracelens_ext.distributed import run_fleet
>>> result = run_fleet(["traces/rank*.json.gz"], "results", workers=4)
>>> result.tables["ranks"]

Every trace is read by a Dask worker, which writes its tables as Parquet parts; the reductions over
all ranks are made of the parts. Needs the extra `fleet`.
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
