"""`pd`: pandas, imported when it is first used, so that what makes no table starts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["pd"]

if TYPE_CHECKING:
    import pandas as pd
else:

    class _Pandas:
        """Stands for the module; each attribute is looked up there once."""

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            import pandas

            value = self.__dict__[name] = getattr(pandas, name)
            return value

    pd = _Pandas()
