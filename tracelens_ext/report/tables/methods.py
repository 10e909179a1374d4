"""The methods of `TreePerfAnalyzer` that return tables; `methods.pyi` has their types."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from tracelens_ext.compatibility.earlier_arguments import warn_of_old_name
from tracelens_ext.compatibility.renamed_names import Kind, new_names
from tracelens_ext.report.tables.registry import find_table, tables_by_method

if TYPE_CHECKING:
    from tracelens_ext.lazy import pd

_OLD_METHODS = new_names(Kind.METHOD)


class TableMethods:
    """A method `get_df_NAME(…)` for each registered table, and `table(NAME, …)` for all."""

    def table(self, name: str, **options: Any) -> pd.DataFrame | None:  # noqa: ANN401
        """Return a registered table, of this package or a plugin; None if it has nothing to show.

        Args:
            name: the name of the table, as in `report --tables`.
            options: the parameters of the function that builds the table.
        """
        return find_table(name).build(self, **options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name in _OLD_METHODS:
            new_name = _OLD_METHODS[name]
            warn_of_old_name(name, new_name)
            return getattr(self, new_name)
        if name.startswith("get_df_"):
            table = tables_by_method().get(name)
            if table is not None:
                return MethodType(table.build, self)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) | set(tables_by_method()))
