"""The registry of tables: those of this package, and those of plugins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches

from tracelens_ext import hooks
from tracelens_ext.compatibility.earlier_names import new_table_name
from tracelens_ext.errors import UsageError
from tracelens_ext.report.tables.earlier_declarations import in_current_form
from tracelens_ext.report.tables.options import ALL_TABLES, ReportOptions
from tracelens_ext.report.tables.table import Table

#: Earlier names of tables, for the hint in an error message.
_OLD_NAMES = {"statistics": "iteration_statistics"}


def offered_tables(
    registry: hooks.PluginRegistry | None = None,
) -> list[hooks.Offered[Table]]:
    """Return the tables of this package, then those of plugins; a name that is taken is refused."""
    registry = registry or hooks.default_registry()
    offers = registry.offers("tracelens_sheets", _check)
    own_offers = [offered for offered in offers if offered.plugin.own]
    plugin_offers = [offered for offered in offers if not offered.plugin.own]
    offered_by_name: dict[str, hooks.Offered[Table]] = {}
    for offered in own_offers + plugin_offers:
        name = offered.item.name
        with registry.guard(offered.plugin.name):
            key = name.lower()
            if key in offered_by_name:
                raise hooks.PluginAnswerError(
                    f"sheet {name!r}: the report already has one"
                )
            offered_by_name[key] = _in_current_form(offered)
    return list(offered_by_name.values())


def _in_current_form(offered: hooks.Offered[Table]) -> hooks.Offered[Table]:
    if offered.plugin.own:
        return offered
    return replace(offered, item=in_current_form(offered.item))


def find_table(name: str) -> Table:
    """Return the table with a name.

    Raises:
        UsageError: there is no table with this name.
    """
    tables = {offered.item.name: offered.item for offered in offered_tables()}
    current_name = new_table_name(name)
    check_names({current_name}, tables)
    return tables[current_name]


def tables_by_method() -> dict[str, Table]:
    """Return the tables that have a `get_df_…` method, by the name of the method."""
    tables = {}
    for offered in offered_tables():
        method, _, _ = offered.item.call.partition("(")
        if method.startswith("get_df_"):
            tables[method] = offered.item
    return tables


def check_names(names: Collection[str], tables: Mapping[str, Table]) -> None:
    """Check that all names are names of tables.

    Raises:
        UsageError: a name is unknown; the message suggests the most similar one.
    """
    unknown = set(names) - ({ALL_TABLES} | set(tables))
    for name in sorted(unknown):
        raise UsageError(f"there is no table {name!r}; {_hint(name, tables)}")


def _hint(name: str, tables: Mapping[str, Table]) -> str:
    """Return a hint at the table that the user may have meant."""
    if name in _OLD_NAMES:
        return f"did you mean {_OLD_NAMES[name]!r}?"
    nearest = get_close_matches(name, tables, 1)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return f"the tables are {', '.join(tables)}"


def _check(item: object) -> None:
    """Raise an error if a plugin offers something other than a valid table."""
    if not isinstance(item, Table):
        kind = type(item).__name__
        raise hooks.PluginAnswerError(
            f"tracelens_sheets: expected Table objects, got {kind}"
        )
    options = list(item.options)
    if item.enabled_by:
        options.insert(0, item.enabled_by)
    for option in options:
        if option not in ReportOptions.__dataclass_fields__:
            raise hooks.PluginAnswerError(
                f"sheet {item.name!r}: there is no option {option!r}"
            )
    for chart in item.charts:
        if chart.sheet != item.name:
            raise hooks.PluginAnswerError(
                f"sheet {item.name!r}: its chart is of {chart.sheet!r}"
            )
