"""The folder of a fleet's results, on any file system: what is in it, and what is done.

.tracelens-ext-manifest.json   what is this program's
.done/STEM.json                one a trace, written when all its parts are
timeline/STEM.parquet …        one part a trace and table; counts only with that marker
ranks.parquet …                the reductions
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tracelens_ext.errors import OutputError
from tracelens_ext.fleet.inputs import file_system, is_url, reason
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import GENERATOR, MANIFEST

DONE = ".done"


@dataclass(frozen=True)
class ResultStore:
    """A folder of results."""

    url: str  #: its absolute path, or a URL that fsspec opens

    @classmethod
    def at(cls, out: str) -> ResultStore:
        """The folder that a user names, which need not exist."""
        if not out:
            raise OutputError("the output folder has no name; give a path such as results")
        store = cls(out.rstrip("/") or "/" if is_url(out) else str(Path(out).absolute()))
        store._place  # noqa: B018  # fails now rather than on every worker
        return store

    @cached_property
    def _place(self) -> tuple[Any, str]:
        files, root = file_system(self.url)
        return files, root.rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return not is_url(self.url)

    def path_of(self, name: str) -> str:
        """The path of a file in the folder, as its file system has it."""
        return f"{self._place[1]}/{name}"

    def shown(self, name: str) -> str:
        """The path or URL of a file in the folder, for messages."""
        return f"{self.url}/{name}"

    # Bytes.

    def put(self, name: str, content: bytes) -> None:
        """Write a whole file or nothing: renamed into place here, put in one piece elsewhere."""
        if self.is_local:
            from tracelens_ext.report.manifest import written_beside

            with written_beside(self.path_of(name)) as beside:
                beside.write_bytes(content)
            return
        files, path = self._place[0], self.path_of(name)
        try:
            files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            files.pipe_file(path, content)
        except Exception as error:
            raise OutputError(
                f"{self.shown(name)}: cannot be written: {reason(error)}; choose another place"
            ) from error

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""
        try:
            return bytes(self._place[0].cat_file(self.path_of(name)))
        except OSError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._place[0].rm_file(self.path_of(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(f"{self.shown(name)}: cannot be removed ({error})") from error

    def names(self, folder: str = "") -> list[str]:
        """The names of what is directly in a folder of it; none if that does not exist."""
        files, path = self._place[0], self.path_of(folder).rstrip("/") or "/"
        files.invalidate_cache(path)
        try:
            entries = files.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries} - {""})

    # What is ours.

    def claim(self, names: Sequence[str], *, force: bool) -> None:
        """Mark the folder as this program's, unless it holds what is not (`force`: even then)."""
        if self.is_local and Path(self.url).exists() and not Path(self.url).is_dir():
            raise OutputError(f"{self.url}: is a file; name a folder for the results")
        from tracelens_ext import __version__

        here = set() if force else set(self.names())
        found = _json(self.get(MANIFEST)) or {}
        files = found.get("files") if found.get("generator") == GENERATOR else None
        ours = [n for n in files if isinstance(n, str)] if isinstance(files, list) else []
        if here and MANIFEST not in here:
            raise OutputError(
                f"{self.url}: holds files that tracelens-ext did not make; name an empty or a new"
                " folder, or --force to write there"
            )
        if others := [name for name in names if name in here and name not in ours]:
            raise OutputError(
                f"{self.shown(others[0])}: exists and was not made by tracelens-ext;"
                " choose another folder, or --force to overwrite it"
            )

        listed = list(dict.fromkeys([*names, *ours]))
        manifest = {"generator": GENERATOR, "version": __version__, "files": listed}
        self.put(MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())

    # Tables.

    def put_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as `NAME.parquet`."""
        import io

        from pyarrow import parquet

        from tracelens_ext.report.formats import arrow_table

        buffer = io.BytesIO()
        parquet.write_table(arrow_table(frame), buffer, compression="zstd")
        self.put(f"{name}.parquet", buffer.getvalue())

    def get_table(self, name: str, columns: Sequence[str] | None = None) -> Any:  # noqa: ANN401
        """Some columns, or all, of a table written by `put_table`, as pyarrow has it."""
        import io

        from pyarrow import ArrowException, parquet

        content = self.get(f"{name}.parquet")
        try:
            if content is None:
                raise FileNotFoundError("no such file")
            return parquet.ParquetFile(io.BytesIO(content)).read(columns=columns and list(columns))
        except (OSError, ArrowException) as error:
            raise OutputError(
                f"{self.shown(name)}.parquet: cannot be read ({error});"
                f" remove {self.shown(DONE)} and run again"
            ) from error

    # Markers.

    def mark(self, stem: str, about: Mapping[str, object]) -> None:
        """Note that all parts of a trace are written."""
        self.put(f"{DONE}/{stem}.json", json.dumps(about, indent=1).encode())

    def marks(self) -> dict[str, dict[str, Any]]:
        """What is done: stem → what was noted; a marker that makes no sense is left out."""
        names = [name for name in self.names(DONE) if name.endswith(".json")]
        paths = {name.removesuffix(".json"): self.path_of(f"{DONE}/{name}") for name in names}
        # File systems far away are asked for all at once.
        found = self._place[0].cat([*paths.values()], on_error="return") if paths else {}
        if not isinstance(found, dict):
            found = dict.fromkeys(paths.values(), found)
        read = {stem: _json(found.get(path)) for stem, path in paths.items()}
        return {stem: about for stem, about in read.items() if about is not None}


def _json(content: object) -> dict[str, Any] | None:
    """The object that some bytes stand for; None for anything else."""
    try:
        document = json.loads(content) if isinstance(content, bytes) else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
