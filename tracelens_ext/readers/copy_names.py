"""Names of copies, where a profiler calls all of them `Memcpy` and has their direction apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.readers.sqlite_columns import distinct_rows
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

_ARGUMENTS: Final = ("copy kind", "src kind", "dst kind")


def with_directions(trace: Trace) -> Trace:
    """The trace with names such as `Memcpy HtoD (Pageable -> Device)`."""
    if _ARGUMENTS[0] not in trace.args:
        return trace
    rows = trace.rows_of(EventKind.MEMCPY)
    rows = rows[trace.named(trace.name[rows], lambda name: name == "Memcpy")]
    columns = [trace.arg(name) for name in _ARGUMENTS]
    distinct, place = distinct_rows(*(column.at(rows) for column in columns))
    texts = next(column.texts or [] for column in columns)  # the same of all
    codes = {name: code for code, name in enumerate(trace.names)}
    made = []
    for row in distinct:
        kind, *ends = (texts[code].strip('"') if code != NONE else "" for code in row)
        name = " ".join(filter(None, ("Memcpy", kind)))
        name += f" ({' -> '.join(map(str.capitalize, ends))})" if all(ends) else ""
        made.append(codes.setdefault(name, len(codes)))
    names = trace.name.copy()
    names[rows] = np.array(made, dtype=np.int32)[place]
    return replace(trace, name=names, names=list(codes))
