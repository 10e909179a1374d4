"""The folder of a fleet's results, on this machine or at a URL.

.tracelens-ext-manifest.json   lists the files in the folder that this program wrote
.done/STEM.json                the marker of a trace, written after all of its parts
timeline/STEM.parquet …        the parts, one for each trace and table; ignored without the marker
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

#: The name of the folder with the markers.
DONE = ".done"
_MARKER_SUFFIX = ".json"

#: Name of a folder with parts → its name in version 0.1.
_OLD_PART_NAMES = {new: old for old, new in new_names(Kind.PART).items()}

#: Stem of a trace → content of its marker.
Markers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ResultStore:
    """A folder with the results of a fleet."""

    url: str  #: the absolute path of the folder, or a URL that fsspec opens

    @classmethod
    def at(cls, out: str) -> ResultStore:
        """Return the store in the folder that a user names. The folder need not exist.

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
        # A URL that cannot be opened raises an error now, not later on every worker.
        store._root  # noqa: B018
        return store

    @cached_property
    def _root(self) -> RemotePath:
        """The file system, and the path of the folder in it."""
        files, path = file_system(self.url)
        return RemotePath(files, path.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """True if the folder is in the file system of this machine."""
        return not is_url(self.url)

    def path_of(self, name: str) -> str:
        """Return the path of a file of the folder in its file system."""
        return f"{self._root.path}/{name}"

    def shown(self, name: str) -> str:
        """Return the path or URL of a file of the folder, as messages show it."""
        return f"{self.url}/{name}"

    # Files.

    def put(self, name: str, content: bytes) -> None:
        """Write a file so that it is never seen half-written.

        A local file is written under another name and then renamed. A remote file is sent in a
        single request.

        Raises:
            OutputError: the file cannot be written.
        """
        path = self.path_of(name)
        if self.is_local:
            from tracelens_ext.report.atomic_files import written_beside

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
        """Remove a file if it exists.

        Raises:
            OutputError: the file cannot be removed.
        """
        try:
            with suppress(FileNotFoundError):
                self._root.files.rm_file(self.path_of(name))
        except OSError as error:
            raise OutputError(
                f"{self.shown(name)}: cannot be removed ({error})"
            ) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files and folders in a subfolder; empty if it does not exist."""
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
        """Write a manifest that marks the folder and its files as this program's.

        Args:
            names: the files that will be written.
            force: claim the folder even if it contains files that this program did not write.

        Raises:
            OutputError: the folder contains files that this program did not write.
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
        """Return the files that the manifest of the folder lists as this program's."""
        manifest = _json_object(self.get(MANIFEST)) or {}
        files = manifest.get("files")
        if manifest.get("generator") != GENERATOR or not isinstance(files, list):
            return []
        return [name for name in files if isinstance(name, str)]

    def _require_own(self, names: Sequence[str], own_files: Sequence[str]) -> None:
        """Check that the folder and the files to write are this program's, or do not exist.

        Raises:
            OutputError: the folder or one of the files is not this program's.
        """
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
            OutputError: the file cannot be written.
        """
        from pyarrow import parquet

        from tracelens_ext.report.formats import arrow_table

        table = name.partition("/")[0]
        with_stored_names = earlier_table(frame, table)
        buffer = io.BytesIO()
        parquet.write_table(arrow_table(with_stored_names), buffer, compression="zstd")
        self.put(f"{stored_name(name)}.parquet", buffer.getvalue())

    def remove_table(self, name: str) -> None:
        """Remove the files of a table under its current and its earlier name.

        Raises:
            OutputError: a file cannot be removed.
        """
        for stored in _stored_names(name):
            self.remove(f"{stored}.parquet")

    def get_table(self, name: str, columns: Sequence[str] | None = None) -> Any:  # noqa: ANN401
        """Return a table that `put_table` wrote, as a pyarrow table.

        Its columns have their current names, even if it was written with those of version 0.1.

        Args:
            name: `TABLE`, or `TABLE/STEM` for the part of a trace.
            columns: the columns to read, by their current names; None for all.

        Raises:
            OutputError: the table cannot be read.
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
        """Return the file name of the marker that shows that a trace has all of its parts."""
        return f"{DONE}/{stem}{_MARKER_SUFFIX}"

    def put_marker(self, stem: str, about: Mapping[str, Any]) -> None:
        """Write the marker of a trace, after all of its parts have been written."""
        self.put(self.marker_name(stem), json.dumps(about, indent=1).encode())

    def remove_marker(self, stem: str) -> None:
        """Remove the marker of a trace, so that its parts are ignored from now on."""
        self.remove(self.marker_name(stem))

    def marker(self, stem: str) -> dict[str, Any] | None:
        """Return the content of a trace's marker; None if there is none or it is damaged."""
        return _json_object(self.get(self.marker_name(stem)))

    def markers(self) -> dict[str, dict[str, Any]]:
        """Return stem → content of all markers, without damaged ones."""
        path_of_stem = {}
        for name in self.names(DONE):
            if name.endswith(_MARKER_SUFFIX):
                path_of_stem[name.removesuffix(_MARKER_SUFFIX)] = self.path_of(
                    f"{DONE}/{name}"
                )
        if not path_of_stem:
            return {}
        paths = list(path_of_stem.values())
        # One call lets remote file systems fetch all files at the same time.
        contents = self._root.files.cat(paths, on_error="return")
        if not isinstance(contents, dict):
            # For a single file, fsspec returns its content instead of a dictionary.
            contents = dict.fromkeys(paths, contents)
        markers = {}
        for stem, path in path_of_stem.items():
            about = _json_object(contents.get(path))
            if about is not None:
                markers[stem] = about
        return markers


def stored_name(name: str) -> str:
    """Return the name, without suffix, of the file to which a table is written.

    Args:
        name: `TABLE`, or `TABLE/STEM` for the part of a trace.
    """
    if not earlier_names_wanted():
        return name
    return _stored_names(name)[-1]


def _stored_names(name: str) -> list[str]:
    """Return the names that the file of a table can have: the current one, then that of 0.1."""
    table, slash, stem = name.partition("/")
    if slash:
        return [name, f"{_OLD_PART_NAMES.get(table, table)}/{stem}"]
    return [name, old_table_name(name)]


def _read_in_new_names(file: Any, table: str, columns: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Read a Parquet file; earlier names of columns, and among their values, become current ones.

    Args:
        file: a `pyarrow.parquet.ParquetFile`.
        table: the name of the table.
        columns: the columns to read, by their current names; None for all.
    """
    stored_columns = file.schema_arrow.names
    current_names = new_column_names(stored_columns, table)
    columns_to_read = None
    if columns is not None:
        columns_to_read = [
            name for name in stored_columns if current_names.get(name, name) in columns
        ]
    content = file.read(columns=columns_to_read)
    content = content.rename_columns(
        [current_names.get(name, name) for name in content.column_names]
    )
    for index, column in enumerate(content.column_names):
        new_values = new_values_of(column, table)
        values = content.column(index)
        if new_values and not set(new_values).isdisjoint(values.unique().to_pylist()):
            renamed = [new_values.get(value, value) for value in values.to_pylist()]
            content = content.set_column(index, column, [renamed])
    return content


def _json_object(content: object) -> dict[str, Any] | None:
    """Return the JSON object that some bytes contain; None for anything else."""
    if not isinstance(content, bytes):
        return None
    with suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict):
            return document
    return None
