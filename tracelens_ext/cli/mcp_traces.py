"""The traces that the MCP server may read: those below its folders, each read only once."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.errors import UsageError
from tracelens_ext.settings import ReadingOptions, is_below
from tracelens_ext.trace_files import is_likely_trace, only_trace

#: The beginning of a path that does not depend on the working folder.
_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:")
#: How many analyzed traces stay in memory.
_TRACES_KEPT = 4
#: How many files below a folder are looked at when its traces are listed.
_MOST_FILES = 10_000


class ServedTraces:
    """The traces below some folders. A path is relative to one of these folders.

    Args:
        folders: resolved paths.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read = functools.lru_cache(_TRACES_KEPT)(self._analyze)

    def find(self, path: str) -> Path:
        """Return the trace, or the folder, that a path names.

        Raises:
            UsageError: it does not exist, or it lies outside the folders, perhaps behind a link.
        """
        parts = re.split(r"[/\\]", path)
        if "\0" in path or _ABSOLUTE.match(path) or ".." in parts:
            remedy = (
                "only paths relative to the server's folders are allowed, without .. "
                "and ~"
            )
            raise UsageError(f"{path!r}: {remedy}")
        for folder in self._folders:
            try:
                found = self._find_in(folder, path)
            except (OSError, RuntimeError, ValueError):
                # The name is too long, or links lead in a circle.
                continue
            if found.exists():
                return found
        raise UsageError(f"{path}: no such file; open_trace('.') lists the traces")

    def _find_in(self, folder: Path, path: str) -> Path:
        """Return what a path below a folder names: of a folder with one trace, that trace."""
        named = folder / path
        self._check_inside(named, path)
        trace = only_trace(named.resolve())
        self._check_inside(trace, path)
        return trace.resolve()

    def _check_inside(self, file: Path, path: str) -> None:
        if not is_below(file, self._folders):
            raise UsageError(f"{path!r}: is outside the server's folders")

    def listed(self, folder: Path) -> list[str]:
        """Return the paths of the traces in a folder and below it."""
        root = next(root for root in self._folders if is_below(folder, [root]))
        seen = islice(folder.rglob("*"), _MOST_FILES)
        traces = [
            path
            for path in seen
            if is_likely_trace(path) and is_below(path, self._folders)
        ]
        return sorted(trace.relative_to(root).as_posix() for trace in traces)

    def analyzer(self, path: str) -> TreePerfAnalyzer:
        """Return an analyzed trace, which is read again only when its file has changed."""
        file = self.find(path)
        state = file.stat()
        return self._read(file, state.st_mtime_ns, state.st_size)

    def _analyze(self, path: Path, *_state: int) -> TreePerfAnalyzer:
        reading = ReadingOptions(folders=self._folders)
        return TreePerfAnalyzer(
            path, use_kernel_name_categories=True, cache=False, reading=reading
        )
