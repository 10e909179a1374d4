"""What a report is made under, so that neither the collector nor pandas' settings slow it."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def undisturbed() -> Iterator[None]:
    """Make the tables of a report, and write them, without what only costs time there.

    *No garbage collection.* Tables make hardly any cycles, and one full collection walks every
    object of every imported module: a tenth of the time of a small trace.

    *Texts as Python objects.* Where pyarrow is installed pandas copies every text into its arrays
    and out again when it is written; with it or without it the tables are the same.

    Both are put back afterwards. Usable as a decorator.
    """
    import pandas as pd

    collecting = gc.isenabled()
    gc.disable()
    try:
        with pd.option_context("mode.string_storage", "python"):
            yield
    finally:
        if collecting:
            gc.enable()
