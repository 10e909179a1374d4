"""Reads the captures of CUDA graphs from other traces than the one that is analyzed.

A folder of capture traces may have a file `execution_details.json`, which lists the batch size and
the mode of each trace. With it, traces for batch sizes of other steps need not be read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from tracelens_ext.analysis.cuda_graphs.captured_graphs import Capture
from tracelens_ext.analysis.cuda_graphs.captures import find_captures
from tracelens_ext.analysis.cuda_graphs.matching import PaddedSize, padded_sizes
from tracelens_ext.analysis.cuda_graphs.side_files import read_side_file
from tracelens_ext.errors import (
    TraceCutOffError,
    TraceFormatError,
    TraceNotFoundError,
)
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace.call_tree import CallTree

#: The file that lists the batch size and mode of each capture trace in its folder.
DETAILS: Final = "execution_details.json"
_TRACE_SUFFIXES: Final = (".json", ".json.gz")
#: A larger details file is an error.
_MAX_DETAILS_BYTES: Final = 10**7


class _CaptureEntry(msgspec.Struct):
    """An entry of `execution_details.json`: a trace, and what it was captured for."""

    file: str
    batch_size: int | None = None
    mode: str | None = None

    @property
    def size(self) -> PaddedSize:
        """The batch size and the mode as one key."""
        return PaddedSize(batch_size=self.batch_size, mode=self.mode or "")


#: Trace file → its entries in the details file of its folder.
_EntriesOfFile = dict[Path, list[_CaptureEntry]]


def read_captures(
    source: str | os.PathLike[str],
    tokens: Collection[int] | None,
    cache: TraceCache | None,
    skipped_file: str = "",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> list[Capture]:
    """Return the captures in a trace, or in all traces in a folder and its subfolders.

    Args:
        source: the trace or the folder.
        tokens: the numbers of tokens of the steps. Files that the details list only under batch
            sizes of other steps are not read; with None, all files are read.
        cache: the cache of parsed traces.
        skipped_file: a file that is not read because its captures are known; empty for none.
        reading: the options for reading files.

    Raises:
        TraceError: no file that is read contains a capture, or a file cannot be read.
    """
    path = Path(source)
    is_folder = path.is_dir()
    files = [path]
    if is_folder:
        files = _files_in(path)
    if skipped_file:
        skipped_path = os.path.realpath(skipped_file)
        files = [file for file in files if os.path.realpath(file) != skipped_path]
    entries_of_file = _entries_of_files(files)
    files_to_read = _files_for_tokens(entries_of_file, tokens)
    captures: list[Capture] = []
    format_error: TraceFormatError | None = None
    for file in files_to_read:
        try:
            captures_of_file = _captures_in_file(file, cache, reading)
        except TraceFormatError as error:
            # A folder may contain JSON files that are not traces.
            if not is_folder or isinstance(error, TraceCutOffError):
                raise
            format_error = error
            continue
        entries = entries_of_file[file]
        captures += [
            _with_listed_size(capture, entries) for capture in captures_of_file
        ]
    if files_to_read and not captures:
        remedy = (
            "give the profile of the engine's start, in which it captured its graphs"
        )
        raise format_error or TraceFormatError(
            path, "contains no CUDA graph capture", remedy
        )
    return captures


def _captures_in_file(
    file: Path, cache: TraceCache | None, reading: ReadingOptions
) -> list[Capture]:
    """Return the captures in one trace, which may be none."""
    trace = read_trace(file, cache=cache, reading=reading)
    tree = CallTree(trace, add_python_func=True)
    return find_captures(tree, file.name)


def _with_listed_size(capture: Capture, entries: list[_CaptureEntry]) -> Capture:
    """Return a capture; without a batch size, it takes size and mode of its file's only entry."""
    if capture.batch_size is not None or len(entries) != 1:
        return capture
    (entry,) = entries
    return replace(capture, batch_size=entry.batch_size, mode=entry.mode or "")


def _files_in(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders that may be traces, by path."""

    def raise_trace_error(error: OSError) -> None:
        raise TraceNotFoundError.of(Path(error.filename or folder), error) from error

    files = []
    for subfolder, _, names in os.walk(folder, onerror=raise_trace_error):
        trace_names = [name for name in names if name.endswith(_TRACE_SUFFIXES)]
        files += [Path(subfolder, name) for name in trace_names if name != DETAILS]
    if not files:
        remedy = "give the folder of the capture traces"
        raise TraceNotFoundError(folder, "contains no .json or .json.gz file", remedy)
    return sorted(files)


def _entries_of_files(files: Sequence[Path]) -> _EntriesOfFile:
    """Return the entries of each file in the details file of its folder."""
    entries_of_folder = {}
    for folder in {file.parent for file in files}:
        entries_of_folder[folder] = _read_details(folder / DETAILS)
    return {file: entries_of_folder[file.parent].get(file.name, []) for file in files}


def _read_details(path: Path) -> dict[str, list[_CaptureEntry]]:
    """Return the entries of a details file by file name; an empty dict if the file is missing."""
    remedy = "remove the entries of other traces, or the whole file"
    try:
        content = read_side_file(path, _MAX_DETAILS_BYTES, remedy)
        entries = msgspec.json.decode(content, type=list[_CaptureEntry])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TraceNotFoundError.of(path, error) from error
    except (ValueError, RecursionError) as error:
        problem = f"is not a list of file, batch_size and mode ({error})"
        raise TraceFormatError(path, problem, "correct it, or remove it") from error
    entries_by_name: defaultdict[str, list[_CaptureEntry]] = defaultdict(list)
    for entry in entries:
        name = Path(entry.file).name
        entries_by_name[name].append(entry)
    return entries_by_name


def _files_for_tokens(
    entries_of_file: _EntriesOfFile, tokens: Collection[int] | None
) -> list[Path]:
    """Return the files that may contain captures for steps with these numbers of tokens.

    These are all files if `tokens` is None, or if the details lack a file or a batch size.
    """
    all_files = list(entries_of_file)
    if tokens is None:
        return all_files
    sizes: set[PaddedSize] = set()
    for entries in entries_of_file.values():
        if not entries:
            return all_files
        sizes.update(entry.size for entry in entries)
    if any(size.batch_size is None for size in sizes):
        return all_files
    possible_sizes: set[PaddedSize] = set()
    for tokens_of_step in tokens:
        possible_sizes |= padded_sizes(tokens_of_step, sizes)
    files = []
    for file, entries in entries_of_file.items():
        if any(entry.size in possible_sizes for entry in entries):
            files.append(file)
    return files
