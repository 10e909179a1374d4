"""Which files an agent may name: those below the folders that the server was started with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceNotFoundError, UsageError
from tracelens_ext.settings import is_below
from tracelens_ext.trace_files import only_trace, traces_in

if TYPE_CHECKING:
    from pathlib import Path

_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:")
_MOST_LISTED, _MOST_SEEN = 200, 10_000


@dataclass(frozen=True)
class Folders:
    """The folders, resolved."""

    roots: tuple[Path, ...]

    def find(self, path: str) -> Path:
        """The trace, or the folder, that a relative path names.

        Raises:
            UsageError: it is no path below one of the folders.
            TraceNotFoundError: nothing is there.
        """
        parts = re.split(r"[/\\]", path)
        if "\0" in path or _ABSOLUTE.match(path) or ".." in parts or "~" in (p[:1] for p in parts):
            raise UsageError(
                f"{path!r}: only paths relative to the folders of the server, without .. and ~"
            )
        for root in self.roots:
            try:
                found = self._inside(self._inside(root / path, path), path)
                if found.exists():
                    return found
            except (OSError, RuntimeError, ValueError):  # too long, or links in a circle
                continue
        raise TraceNotFoundError(
            path, "no such file", "ask open_trace('.') for the traces that are there"
        )

    def _inside(self, path: Path, named: str) -> Path:
        """The file behind links; of a folder with one trace, that."""
        if not is_below(path, self.roots):
            raise UsageError(f"{named!r}: leads out of the folders of the server")
        return only_trace(path.resolve())

    def listed(self, folder: Path) -> list[str]:
        """The traces in a folder and below it, by the paths that name them."""
        root = next(root for root in self.roots if is_below(folder, [root]))
        names = []
        for place in [folder, *sorted(filter(_is_folder, islice(folder.rglob("*"), _MOST_SEEN)))]:
            try:
                found = traces_in(place)
            except OSError:
                continue
            names += [each for each in found if is_below(each.resolve(), self.roots)]
            if len(names) > _MOST_LISTED:
                break
        return list(dict.fromkeys(each.relative_to(root).as_posix() for each in names))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
