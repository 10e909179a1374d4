"""Many traces, one a rank, analysed on many processes or machines, and then compared.

>>> from tracelens_ext.distributed import run_fleet
>>> result = run_fleet(["traces/rank*.json.gz"], "results", workers=4)
>>> result.tables["ranks"]

Every trace is read by a Dask worker, which writes its tables as Parquet parts; the reductions over
all ranks are made of the parts. Needs the extra `fleet`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tracelens_ext.hooks import Command, hookimpl

if TYPE_CHECKING:
    from tracelens_ext.distributed.run import FleetResult, run_fleet

__all__ = ["FleetResult", "run_fleet"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.run"), name)


@hookimpl
def tracelens_commands() -> list[Command]:
    """The commands of this package."""
    fleet = "tracelens_ext.cli.compare:fleet"
    ranks = "tracelens_ext.cli.compare:ranks"
    analyse = "Analyse the traces of all ranks: which are slow, and why."
    show = "Show slow ranks and links, and each collective call."
    far = "fleet s3://bucket/run -o s3://bucket/results --workers 8"
    strict = "fleet run/ -o results --scheduler tcp://host:8786 --strict"
    runs = ("fleet 'run/*.json.gz' -o results", far, strict)
    shown = ("ranks results", "ranks results --top 50", "ranks results --json")
    return [
        Command("fleet", analyse, fleet, "Compare", examples=runs),
        Command("ranks", show, ranks, "Compare", examples=shown),
    ]
