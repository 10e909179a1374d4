"""The engine/model chart: the elapsed time of runs by GPU category, and the time without GPU work.

`specification` parses the inputs (FILE,ENGINE,MODEL,SECONDS), `runs` measures them and computes
their tables, and `page` writes the page and the CSV file.
"""

from __future__ import annotations
