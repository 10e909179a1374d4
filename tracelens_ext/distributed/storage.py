"""The folder of a fleet's results, on this machine or at a URL.

.tracelens-ext-manifest.json   which files are this program's
.done/STEM.json                one for each trace, written when all its parts are
timeline/STEM.parquet …        one part for each trace and table; counts only with that marker
ranks.parquet …                the reductions over all traces
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tracelens_ext.compatibility.earlier_names import (
    earlier_names_wanted,
    earlier_table,
    new_column_names,
    new_values_of,
    old_table_name,
)
from tracelens_ext.compatibility.renamed_names import Kind, new_names
from tracelens_ext.distributed.inputs import RemotePath, file_system, is_url, reason
from tracelens_ext.errors import OutputError
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import GENERATOR, MANIFEST
from tracelens_ext.settings import VERSION

#: The folder of markers.
DONE = ".done"
_MARKER_SUFFIX = ".json"

#: Folder of parts → what version 0.1 calls it.
_OLD_PART_NAMES = {new: old for old, new in new_names(Kind.PART).items()}

#: Stem of a trace → what its marker notes of it.
Markers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ResultStore:
    """A folder of results."""

    url: str  #: its absolute path, or a URL that fsspec opens

    @classmethod
    def at(cls, out: str) -> ResultStore:
        """Return the folder that a user names, which need not exist.

        Raises:
            OutputError: the name is empty.
            UsageError: no installed package opens such URLs.
        """
        if not out:
            raise OutputError(
                "the output folder has no name; give a path such as results"
            )
        url = str(Path(out).absolute())
        if is_url(out):
            url = out.rstrip("/") or "/"
        store = cls(url)
        store._root  # noqa: B018  # fails now rather than on every worker
        return store

    @cached_property
    def _root(self) -> RemotePath:
        """The file system, and the path of the folder in it."""
        files, path = file_system(self.url)
        return RemotePath(files, path.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """True if it is a folder of this machine."""
        return not is_url(self.url)

    def path_of(self, name: str) -> str:
        """Return the path of a file in the folder, as its file system has it."""
        return f"{self._root.path}/{name}"

    def shown(self, name: str) -> str:
        """Return the path or URL of a file in the folder, for messages."""
        return f"{self.url}/{name}"

    # Files.

    def put(self, name: str, content: bytes) -> None:
        """Write a whole file or nothing: renamed into place here, put in one request elsewhere.

        Raises:
            OutputError: it cannot be written.
        """
        path = self.path_of(name)
        if self.is_local:
            from tracelens_ext.report.manifest import written_beside

            with written_beside(path) as beside:
                beside.write_bytes(content)
            return
        files = self._root.files
        try:
            files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            files.pipe_file(path, content)
        except Exception as error:
            problem = f"{self.shown(name)}: cannot be written: {reason(error)}"
            raise OutputError(f"{problem}; choose another location") from error

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""
        try:
            return bytes(self._root.files.cat_file(self.path_of(name)))
        except OSError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            OutputError: it cannot be removed.
        """
        try:
            with suppress(FileNotFoundError):
                self._root.files.rm_file(self.path_of(name))
        except OSError as error:
            raise OutputError(
                f"{self.shown(name)}: cannot be removed ({error})"
            ) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is directly in one of its folders; none if that is missing."""
        files = self._root.files
        path = self.path_of(folder).rstrip("/") or "/"
        files.invalidate_cache(path)
        try:
            entries = files.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries}
        names.discard("")
        return sorted(names)

    # Ownership.

    def claim(self, names: Sequence[str], *, force: bool) -> None:
        """Mark the folder as this program's.

        Args:
            names: the files that will be written.
            force: mark it even if it contains what this program did not make.

        Raises:
            OutputError: it contains what this program did not make.
        """
        folder = Path(self.url)
        if self.is_local and folder.exists() and not folder.is_dir():
            raise OutputError(f"{self.url}: is a file; give a folder for the results")
        own_files = self._listed_files()
        if not force:
            self._require_own(names, own_files)
        manifest = {
            "generator": GENERATOR,
            "version": VERSION,
            "files": list(dict.fromkeys(list(names) + own_files)),
        }
        text = json.dumps(manifest, indent=1) + "\n"
        self.put(MANIFEST, text.encode())

    def _listed_files(self) -> list[str]:
        """Return the files that the folder's manifest says are this program's."""
        manifest = _json_object(self.get(MANIFEST)) or {}
        files = manifest.get("files")
        if manifest.get("generator") != GENERATOR or not isinstance(files, list):
            return []
        return [name for name in files if isinstance(name, str)]

    def _require_own(self, names: Sequence[str], own_files: Sequence[str]) -> None:
        """Refuse a folder with files of others, and files of others that would be replaced."""
        existing = set(self.names())
        if existing and MANIFEST not in existing:
            remedy = "give an empty or new folder, or --force to write there"
            raise OutputError(
                f"{self.url}: contains files that tracelens-ext did not write; {remedy}"
            )
        for name in names:
            if name in existing and name not in own_files:
                problem = (
                    f"{self.shown(name)}: exists and was not written by tracelens-ext"
                )
                raise OutputError(
                    f"{problem}; choose another folder, or --force to overwrite it"
                )

    # Tables.

    def put_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as `NAME.parquet`.

        Args:
            name: `TABLE`, or `TABLE/STEM` for the part of a trace.
            frame: the table.

        Raises:
            OutputError: it cannot be written.
        """
        from pyarrow import parquet

        from tracelens_ext.report.formats import arrow_table

        named = earlier_table(frame, name.partition("/")[0])
        buffer = io.BytesIO()
        parquet.write_table(arrow_table(named), buffer, compression="zstd")
        self.put(f"{stored_name(name)}.parquet", buffer.getvalue())

    def remove_table(self, name: str) -> None:
        """Remove a table, under any name that it was written with.

        Raises:
            OutputError: it cannot be removed.
        """
        for stored in _stored_names(name):
            self.remove(f"{stored}.parquet")

    def get_table(self, name: str, columns: Sequence[str] | None = None) -> Any:  # noqa: ANN401
        """Return a table written by `put_table`, as pyarrow has it.

        Its names are those of now, whatever names it was written with.

        Args:
            name: of the table.
            columns: those that are read; all by default.

        Raises:
            OutputError: it cannot be read.
        """
        from pyarrow import ArrowException, parquet

        content = None
        for stored in _stored_names(name):
            content = content or self.get(f"{stored}.parquet")
        try:
            if content is None:
                raise FileNotFoundError("no such file")
            file = parquet.ParquetFile(io.BytesIO(content))
            return _read_in_new_names(
                file=file,
                table=name.partition("/")[0],
                columns=columns,
            )
        except (OSError, ArrowException) as error:
            problem = f"{self.shown(name)}.parquet: cannot be read ({error})"
            raise OutputError(
                f"{problem}; remove {self.shown(DONE)} and run again"
            ) from error

    # Markers.

    def marker_name(self, stem: str) -> str:
        """Return the name of the marker that says that the parts of a trace are complete."""
        return f"{DONE}/{stem}{_MARKER_SUFFIX}"

    def put_marker(self, stem: str, about: Mapping[str, Any]) -> None:
        """Note that all parts of a trace are written, and what they are of."""
        self.put(self.marker_name(stem), json.dumps(about, indent=1).encode())

    def remove_marker(self, stem: str) -> None:
        """Note that the parts of a trace no longer count."""
        self.remove(self.marker_name(stem))

    def marker(self, stem: str) -> dict[str, Any] | None:
        """Return what is noted of one trace; None if its parts are not complete."""
        return _json_object(self.get(self.marker_name(stem)))

    def markers(self) -> dict[str, dict[str, Any]]:
        """Return what is noted of each trace that is done; damaged markers are left out."""
        path_of_stem = {}
        for name in self.names(DONE):
            if name.endswith(_MARKER_SUFFIX):
                path_of_stem[name.removesuffix(_MARKER_SUFFIX)] = self.path_of(
                    f"{DONE}/{name}"
                )
        if not path_of_stem:
            return {}
        paths = list(path_of_stem.values())
        # Remote file systems are asked for all files at once.
        contents = self._root.files.cat(paths, on_error="return")
        if not isinstance(contents, dict):  # the content itself, if there is one file
            contents = dict.fromkeys(paths, contents)
        markers = {}
        for stem, path in path_of_stem.items():
            about = _json_object(contents.get(path))
            if about is not None:
                markers[stem] = about
        return markers


def stored_name(name: str) -> str:
    """Return the name of the file of a table, without suffix, as it is written.

    Args:
        name: `TABLE`, or `TABLE/STEM` for the part of a trace.
    """
    if not earlier_names_wanted():
        return name
    return _stored_names(name)[-1]


def _stored_names(name: str) -> list[str]:
    """Return the names that the file of a table can have: that of now, then that of version 0.1."""
    table, slash, stem = name.partition("/")
    if slash:
        return [name, f"{_OLD_PART_NAMES.get(table, table)}/{stem}"]
    return [name, old_table_name(name)]


def _read_in_new_names(file: Any, table: str, columns: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Read a Parquet file; its columns get the names of now, and so do names among its values."""
    stored = file.schema_arrow.names
    current = new_column_names(stored, table)
    wanted = None
    if columns is not None:
        wanted = [name for name in stored if current.get(name, name) in columns]
    read = file.read(columns=wanted)
    read = read.rename_columns([current.get(name, name) for name in read.column_names])
    for position, column in enumerate(read.column_names):
        new_values = new_values_of(column, table)
        values = read.column(position)
        if new_values and not set(new_values).isdisjoint(values.unique().to_pylist()):
            renamed = [new_values.get(value, value) for value in values.to_pylist()]
            read = read.set_column(position, column, [renamed])
    return read


def _json_object(content: object) -> dict[str, Any] | None:
    """Return the JSON object that some bytes contain; None for anything else."""
    if not isinstance(content, bytes):
        return None
    with suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict):
            return document
    return None
