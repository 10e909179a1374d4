"""`pd` is pandas, imported on first use: commands that make no table start without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["pd"]

if TYPE_CHECKING:
    import pandas as pd
else:

    class _Pandas:
        """Stands for the module pandas. Each attribute is looked up there only once."""

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            import pandas

            value = self.__dict__[name] = getattr(pandas, name)
            return value

    pd = _Pandas()
