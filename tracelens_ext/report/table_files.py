"""The names of files of tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOT_IN_FILE_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
# Names of devices on Windows, with any suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 200  # of the 255 that a file system allows, with room for the suffix


def unique_file_names(wanted: Iterable[str]) -> list[str]:
    """Turn names of tables into names of files, without suffix, that every system accepts.

    Gives a name for each; no two are equal when the case of letters is ignored.
    """
    seen: set[str] = set()
    names = []
    for name in wanted:
        allowed = _NOT_IN_FILE_NAME.sub("_", name).strip().strip(".") or "table"
        if _RESERVED.fullmatch(allowed):
            allowed = f"_{allowed}"
        allowed = allowed.encode()[:_NAME_BYTES].decode(errors="ignore")
        candidate, number = allowed, 2
        while candidate.casefold() in seen:
            candidate, number = f"{allowed}_{number}", number + 1
        seen.add(candidate.casefold())
        names.append(candidate)
    return names
