"""Pandas without garbage collection and Arrow, which only slow down the making of a report."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def fast_pandas() -> Iterator[None]:
    """Make the tables of a report, and write them, with less to do for Python and pandas.

    *No garbage collection.* Tables make hardly any cycles, and one full collection walks every
    object of every imported module: a tenth of the time of a small trace.

    *Texts as Python objects.* Where pyarrow is installed pandas copies every text into its arrays
    and out again when it is written; with it or without it the tables are the same.

    Both are put back afterwards. Usable as a decorator.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with pd.option_context("mode.string_storage", "python"):
            yield
    finally:
        if collecting:
            gc.enable()
