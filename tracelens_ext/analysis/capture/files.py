"""The captures in a file or folder, as engines leave them beside their traces."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tracelens_ext.analysis.capture.matching import padded_sizes
from tracelens_ext.analysis.capture.recorded import Capture, find_captures
from tracelens_ext.errors import TraceFormatError, TraceNotFoundError
from tracelens_ext.readers import read_trace
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
) -> list[Capture]:
    """The captures in a trace, or in all traces directly in a folder.

    Args:
        source: the file or folder.
        tokens: the tokens of steps that are looked for: captures that the details list under
            another batch size are not read. None for all.
        cache: where traces are looked for.
        known: a trace whose captures are known already; it is not read again.

    Raises:
        TraceError: there is no other capture, or a file cannot be read.
    """
    path = Path(source)
    files = _files_in(path) if path.is_dir() else [path]
    others = [file for file in files if not (known and _is_same(file, known))]
    details = _read_details((path if path.is_dir() else path.parent) / DETAILS)
    found: list[Capture] = []
    wanted = _wanted(others, details, tokens)
    for file in wanted:
        tree = CallTree(read_trace(file, cache=cache), add_python_func=True)
        said = details.get(file.name)
        for capture in find_captures(tree, file.name):
            if capture.batch_size is None and said is not None:
                capture = replace(capture, batch_size=said.batch_size, mode=said.mode or "")
            found.append(capture)
    if wanted and not found:
        raise TraceFormatError(
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
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError as error:
        reason = error.strerror or error
        raise TraceNotFoundError(
            folder, f"cannot be opened ({reason})", "check the path and its permissions"
        ) from error
    files = [folder / name for name in names if name.endswith(_SUFFIXES) and name != DETAILS]
    if not files:
        raise TraceNotFoundError(
            folder, "holds no .json or .json.gz file", "name the folder of the capture traces"
        )
    return files


def _read_details(path: Path) -> dict[str, _Detail]:
    """What the details say, by name of file; nothing without that file.

    Raises:
        TraceFormatError: they are of another form.
    """
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
    return {Path(detail.file).name: detail for detail in details}


def _wanted(
    files: list[Path], details: dict[str, _Detail], tokens: Collection[int] | None
) -> list[Path]:
    """The files that may hold what is looked for."""
    said = [details.get(file.name, _Detail("")) for file in files]
    captured = [(each.batch_size, each.mode or "") for each in said]
    if tokens is None or any(size is None for size, _ in captured):
        return files
    wanted = set().union(*(padded_sizes(each, captured) for each in tokens))
    return [file for file, its in zip(files, captured, strict=True) if its in wanted]
