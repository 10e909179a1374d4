"""The registry of tables: those of this distribution, room by room, and those of plugins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches

from tracelens_ext import hooks
from tracelens_ext.errors import UsageError
from tracelens_ext.report.tables.earlier_declarations import in_current_form
from tracelens_ext.report.tables.options import ALL_TABLES, ReportOptions
from tracelens_ext.report.tables.table import Table

#: What tables were called before.
_OLD_NAMES = {"statistics": "iteration_statistics"}


def offered_tables(registry: hooks.PluginRegistry | None = None) -> list[hooks.Offered[Table]]:
    """The tables of this distribution, then those of plugins, each name once."""
    registry = registry or hooks.default_registry()
    offered = registry.offers("tracelens_sheets", _check)
    found: dict[str, hooks.Offered[Table]] = {}
    for each in sorted(offered, key=lambda each: not each.plugin.own):
        name = each.item.name
        with registry.guard(each.plugin.name):
            if name.lower() in found:
                raise hooks.PluginAnswerError(f"sheet {name!r}: the report has one already")
            current = each
            if not each.plugin.own:
                current = replace(each, item=in_current_form(each.item))
            found[name.lower()] = current
    return [*found.values()]


def find_table(name: str) -> Table:
    """The table of a name."""
    tables = {each.item.name: each.item for each in offered_tables()}
    check_names({name}, tables)
    return tables[name]


def tables_by_method() -> dict[str, Table]:
    """The tables that a method alone gives, by its name."""
    tables = [each.item for each in offered_tables()]
    return {t.call.partition("(")[0]: t for t in tables if t.call.startswith("get_df_")}


def check_names(names: Collection[str], tables: Mapping[str, Table]) -> None:
    """Check that there are tables of these names."""
    for name in sorted({*names} - {ALL_TABLES, *tables}):
        near = [_OLD_NAMES[name]] if name in _OLD_NAMES else get_close_matches(name, tables, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(tables)}"
        raise UsageError(f"there is no table {name!r}; {hint}")


def _check(item: object) -> None:
    if not isinstance(item, Table):
        kind = type(item).__name__
        raise hooks.PluginAnswerError(f"tracelens_sheets: expected Table objects, got {kind}")
    known = ("", *ReportOptions.__dataclass_fields__)
    if wrong := [name for name in (item.asked_by, *item.options) if name not in known]:
        raise hooks.PluginAnswerError(f"sheet {item.name!r}: there is no option {wrong[0]!r}")
    for chart in item.charts:
        if chart.sheet != item.name:
            raise hooks.PluginAnswerError(f"sheet {item.name!r}: its chart is of {chart.sheet!r}")
