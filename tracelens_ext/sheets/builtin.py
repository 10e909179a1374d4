"""The sheets that come with this distribution."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tracelens_ext.hooks import hookimpl

if TYPE_CHECKING:
    from tracelens_ext.sheets.sheet import Sheet

#: The modules of this package that have a list `SHEETS`, in the order of the report.
_SUBJECTS = (
    "recording",
    "findings",
    "timeline",
    "views",
    "categories",
    "operations",
    "roofline",
    "kernels",
    "collectives",
    "graphs",
    "serving",
    "modules",
    "memory",
    "unlinked",
    "gaps",
    "counters",
    "replay",
    "iterations",
    "cpu_ops",
)


@hookimpl
def tracelens_sheets() -> list[Sheet]:
    """The sheets; imported here, as only a report needs them."""
    modules = [import_module(f"tracelens_ext.sheets.{name}") for name in _SUBJECTS]
    return [sheet for module in modules for sheet in module.SHEETS]
