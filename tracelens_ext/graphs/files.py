"""The captures in a file or folder, as engines leave them beside their traces."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tracelens_ext.errors import TraceCutOffError, TraceFormatError, TraceNotFoundError
from tracelens_ext.graphs.matching import padded_sizes
from tracelens_ext.graphs.recorded import Capture, find_captures
from tracelens_ext.readers import read_trace
from tracelens_ext.settings import AS_USUAL, ReadingOptions
from tracelens_ext.tree import CallTree

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens_ext.cache.store import TraceCache

#: Says of each file of its folder what it was captured for.
DETAILS: Final = "execution_details.json"
_SUFFIXES: Final = (".json", ".json.gz")
_MOST_BYTES: Final = 10**7


class _Detail(msgspec.Struct):
    """What `execution_details.json` says of a file."""

    file: str
    batch_size: int | None = None
    mode: str | None = None


def read_captures(
    source: str | os.PathLike[str],
    tokens: Collection[int] | None,
    cache: TraceCache | None,
    known: str = "",
    reading: ReadingOptions = AS_USUAL,
) -> list[Capture]:
    """The captures in a trace, or in all traces in a folder and below it.

    Args:
        source: the file or folder. JSON files of a folder that are no traces are passed over.
        tokens: the tokens of steps that are looked for: captures that the details list under
            another batch size are not read. None for all.
        cache: where traces are looked for.
        known: a trace whose captures are known already; it is not read again.
        reading: how traces are read.

    Raises:
        TraceError: there is no other capture, or a file cannot be read.
    """
    path = Path(source)
    is_folder = path.is_dir()
    files = _files_in(path) if is_folder else [path]
    others = [file for file in files if not (known and _is_same(file, known))]
    details = {folder: _read_details(folder / DETAILS) for folder in {f.parent for f in others}}
    said = {file: details[file.parent].get(file.name, []) for file in others}
    found: list[Capture] = []
    passed_over: TraceFormatError | None = None
    wanted = _wanted(said, tokens)
    for file in wanted:
        try:
            tree = CallTree(read_trace(file, cache=cache, reading=reading), add_python_func=True)
        except TraceFormatError as error:
            if not is_folder or isinstance(error, TraceCutOffError):
                raise
            passed_over = error
            continue
        for capture in find_captures(tree, file.name):
            if capture.batch_size is None and len(said[file]) == 1:
                size, mode = said[file][0].batch_size, said[file][0].mode
                capture = replace(capture, batch_size=size, mode=mode or "")
            found.append(capture)
    if wanted and not found:
        raise passed_over or TraceFormatError(
            path,
            "holds no capture of a CUDA graph",
            "name the profile of the engine's start, in which it captured its graphs",
        )
    return found


def _is_same(file: Path, known: str) -> bool:
    try:
        return file.samefile(known)
    except (OSError, ValueError):
        return False


def _files_in(folder: Path) -> list[Path]:
    """The files in a folder, and in those below it, that may be traces."""

    def refuse(error: OSError) -> None:
        reason = error.strerror or error
        raise TraceNotFoundError(
            Path(error.filename or folder),
            f"cannot be opened ({reason})",
            "check the path and its permissions",
        ) from error

    files = [
        Path(place, name)
        for place, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if name.endswith(_SUFFIXES) and name != DETAILS
    ]
    if not files:
        raise TraceNotFoundError(
            folder, "holds no .json or .json.gz file", "name the folder of the capture traces"
        )
    return sorted(files)


def _read_details(path: Path) -> dict[str, list[_Detail]]:
    """What the details say, by name of file; nothing without that file."""
    try:
        with path.open("rb") as file:
            details = msgspec.json.decode(file.read(_MOST_BYTES), type=list[_Detail])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(
            path,
            f"is no list of file, batch_size and mode ({error})",
            "correct it, or take it away",
        ) from error
    by_file: dict[str, list[_Detail]] = {}
    for detail in details:
        by_file.setdefault(Path(detail.file).name, []).append(detail)
    return by_file


def _wanted(said: dict[Path, list[_Detail]], tokens: Collection[int] | None) -> list[Path]:
    """The files that may hold what is looked for, of those with what the details say of each."""
    captured = {
        file: [(each.batch_size, each.mode or "") for each in details]
        for file, details in said.items()
    }
    sizes = [size for details in captured.values() for size in details]
    if tokens is None or not all(captured.values()) or any(size is None for size, _ in sizes):
        return list(said)
    wanted = set().union(*(padded_sizes(each, sizes) for each in tokens))
    return [file for file, its in captured.items() if wanted.intersection(its)]
