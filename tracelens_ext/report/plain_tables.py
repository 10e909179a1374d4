"""A table as what any format can hold: texts, whole numbers, finite numbers, truth values, None."""

from __future__ import annotations

import math

from tracelens_ext.lazy import pd
from tracelens_ext.tables.units import header_text
from tracelens_ext.text import encodable as encodable

Plain = bool | int | float | str | None

_LEAST, _MOST = -(2**63), 2**64 - 1  # whole numbers beyond are texts


def plain_headers(frame: pd.DataFrame) -> list[str]:
    """The names of the columns as texts, no two alike: a second `a` is called `a_2`."""
    seen: set[str] = set()
    headers = []
    for name in frame.columns:
        header = candidate = encodable(header_text(name))
        number = 2
        while candidate in seen:
            candidate, number = f"{header}_{number}", number + 1
        seen.add(candidate)
        headers.append(candidate)
    return headers


def plain_column(series: pd.Series) -> list[Plain]:
    """The values of a column; what is missing, not a number or infinite is None.

    A value of any other type is the text that `str` makes of it.
    """
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if kind in "biu" and not series.hasnans:
        return list(series.tolist())
    if kind == "f":
        values = [float(value) for value in series.to_numpy(dtype="float64", na_value=math.nan)]
        return [value if math.isfinite(value) else None for value in values]
    missing = series.isna().tolist()
    return [
        None if empty else _plain(value)
        for value, empty in zip(series.tolist(), missing, strict=True)
    ]


def plain_value(value: object) -> Plain:
    """One value, such as that of a fact; as `plain_column`."""
    return plain_column(pd.Series([value], dtype=object))[0]


def _plain(value: object) -> Plain:
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool | int) and _LEAST <= value <= _MOST:
        return value
    return encodable(str(value))
