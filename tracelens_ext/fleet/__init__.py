"""Many traces, one a rank, analysed on many processes or machines, and then compared.

>>> from tracelens_ext.fleet import run_fleet
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
    from tracelens_ext.fleet.run import FleetResult, run_fleet

__all__ = ["FleetResult", "run_fleet"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.run"), name)


@hookimpl
def tracelens_commands() -> list[Command]:
    """The commands of this package."""
    return [
        Command(
            "fleet",
            "Analyse the traces of all ranks: which are slow, and why.",
            "tracelens_ext.cli.compare:fleet",
            "Compare",
            examples=(
                "fleet 'run/*.json.gz' -o results",
                "fleet s3://bucket/run -o s3://bucket/results --workers 8",
                "fleet run/ -o results --scheduler tcp://host:8786 --strict",
            ),
        ),
        Command(
            "ranks",
            "Show slow ranks and links, and each collective call.",
            "tracelens_ext.cli.compare:ranks",
            "Compare",
            examples=("ranks results", "ranks results --top 50", "ranks results --json"),
        ),
    ]
