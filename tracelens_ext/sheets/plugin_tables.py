"""Tables that plugins add to the report by the hook `tracelens_report_sheets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracelens_ext.hooks import PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.lazy import pd


def plugin_tables(
    analyzer: object, taken: Iterable[str] = (), registry: PluginRegistry | None = None
) -> dict[str, pd.DataFrame]:
    """The tables that plugins add.

    Args:
        analyzer: the `TreePerfAnalyzer` to hand over.
        taken: names of sheets the report already has (case does not matter to Excel).
        registry: the plugins to ask instead of the installed ones.
    """
    registry = registry or default_registry()
    sheets: dict[str, pd.DataFrame] = {}
    names = {name.lower() for name in taken}
    for hook in registry.hooks("tracelens_report_sheets"):
        with registry.guard(hook.plugin.name):
            answer = hook.call(analyzer=analyzer)
            if not isinstance(answer, Mapping):
                raise PluginAnswerError(
                    "tracelens_report_sheets: expected sheet name → DataFrame, "
                    f"got {type(answer).__name__}"
                )
            for name, table in answer.items():
                with registry.guard(hook.plugin.name):
                    if not isinstance(name, str) or not isinstance(table, pd.DataFrame):
                        raise PluginAnswerError(
                            "tracelens_report_sheets: expected sheet name → DataFrame, "
                            f"got {name!r} → {type(table).__name__}"
                        )
                    if name.lower() in names:
                        raise PluginAnswerError(f"sheet {name!r}: the report has one already")
                    names.add(name.lower())
                    sheets[name] = table
    return sheets
