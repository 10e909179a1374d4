"""The engine/model chart: where the elapsed time of runs went, GPU categories and all the rest.

FILE,ENGINE,MODEL,SECONDS ─▶ `specification` ─▶ `runs`, their sums and tables ─▶ `page`, and CSV.
"""

from __future__ import annotations
