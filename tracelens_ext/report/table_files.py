"""A folder of tables, a file each: all written before the first takes its place."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic import output_error, written_beside

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd

_NOT_IN_FILE_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
# Names of devices on Windows, with any suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME_BYTES = 200  # of the 255 that a file system allows, with room for the suffix


def write_tables(
    folder: str | os.PathLike[str],
    sheets: Mapping[str, pd.DataFrame],
    suffix: str,
    write_one: Callable[[Path, pd.DataFrame], None],
) -> list[Path]:
    """Write each table to a file of its own.

    A full disk leaves the files of an earlier report as they were.

    Returns:
        The files, in the order of the tables.

    Raises:
        OutputError: a file cannot be written.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(
            f"{target}: {suffix} files cannot be written there: it is a file; give a folder"
        ) from error
    except OSError as error:
        raise output_error(str(target), error) from error
    except ValueError as error:  # a NUL in the name
        raise OutputError(f"{target!s:.80}: is no name for a folder; choose another") from error
    paths = [target / f"{name}{suffix}" for name in unique_file_names(sheets)]
    with ExitStack() as all_written:
        for path, frame in zip(paths, sheets.values(), strict=True):
            beside = all_written.enter_context(written_beside(path))
            try:
                write_one(beside, frame)
            except OSError as error:
                raise output_error(str(path), error) from error
    return paths


def unique_file_names(wanted: Iterable[str]) -> list[str]:
    """Turn names of tables into names of files, without suffix, that every system accepts.

    Returns:
        A name for each; no two are equal when the case of letters is ignored.
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
