"""Overwrite only files that this program wrote, which it recognizes by their marks.

Each kind of output has a mark: the creator of a workbook, the generator of an HTML page, the first
member of JSON, the first line of Markdown. A folder of CSV or Parquet files has a manifest that
names these files. It is a hidden file, which programs that read all files of a folder skip.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic_files import AnyPath, written_beside
from tracelens_ext.settings import VERSION

#: The name of the manifest of a folder.
MANIFEST = ".tracelens-ext-manifest.json"
#: The name of this program in its outputs.
GENERATOR = "tracelens-ext"
#: The version of the tables, and its name in manifests and workbooks. The version grows when a
#: column that this program reads back (`compare.finished_reports`) changes its meaning.
TABLES_VERSION = 1
TABLES_VERSION_KEY = "tables_version"
#: The first members of the program's JSON files.
ABOUT_US = {
    "generator": GENERATOR,
    "version": VERSION,
    TABLES_VERSION_KEY: TABLES_VERSION,
}
#: How the program's text files begin.
_MARK = re.compile(
    rb'\{\s*"generator": "tracelens-ext",'
    rb'|<!doctype html>.*<meta name="generator" content="tracelens-ext">'
    rb"|<!-- written by tracelens-ext -->",
    re.DOTALL,
)
#: The most bytes that are read of a text file, a part of a workbook, and a manifest.
_LOOK_BYTES = 4096
_CREATOR_PART_BYTES = 65_536
_MANIFEST_BYTES = 1_000_000
#: The part of a workbook that names its creator.
_CREATOR_PART = "docProps/core.xml"
_CREATOR = b"<dc:creator>tracelens-ext</dc:creator>"
_ZIP = b"PK\x03\x04"
#: The exceptions of zipfile for an archive that is damaged, encrypted, or unsupported.
_UNREADABLE_ZIP = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def check_output(
    path: AnyPath, inputs: Iterable[AnyPath] = (), *, force: bool = False
) -> None:
    """Refuse to overwrite a file that this program did not write, or an input.

    Args:
        path: the output file.
        inputs: the files that the program reads, which it never overwrites.
        force: True to overwrite a file that this program did not write.

    Raises:
        OutputError: the file must not be overwritten.
    """
    refuse_input(path, inputs)
    if force or not _has_content(Path(path)):
        return
    if not has_own_mark(path):
        raise _error_of_foreign_file(path, "name")


def _error_of_foreign_file(path: AnyPath, alternative: str) -> OutputError:
    remedy = f"choose another {alternative}, or --force to overwrite it"
    return OutputError(f"{path}: exists and was not written by tracelens-ext; {remedy}")


def check_folder(
    folder: AnyPath,
    names: Iterable[str],
    inputs: Sequence[AnyPath] = (),
    *,
    force: bool = False,
) -> None:
    """Refuse to overwrite files of a folder that its manifest does not name, or inputs.

    Args:
        folder: the output folder.
        names: the names of the files to write.
        inputs: the files that the program reads, which it never overwrites.
        force: True to overwrite files that the manifest does not name.

    Raises:
        OutputError: a file must not be overwritten.
    """
    own_names = set(manifest_files(folder))
    for name in names:
        path = Path(folder) / name
        refuse_input(path, inputs)
        if not force and name not in own_names and _has_content(path):
            raise _error_of_foreign_file(path, "folder")


def write_manifest(
    folder: Path, names: Sequence[str], *, unfinished: bool = False
) -> None:
    """Write the manifest of a folder; an unfinished folder may have files of two reports."""
    manifest = ABOUT_US | {"files": list(names)}
    if unfinished:
        manifest["unfinished"] = True
    text = json.dumps(manifest, indent=1)
    with written_beside(folder / MANIFEST) as temporary_path:
        temporary_path.write_text(f"{text}\n", encoding="utf-8")


def manifest_files(folder: AnyPath) -> list[str]:
    """Return the names of the files that the manifest of a folder names; empty without one.

    A manifest may come from anywhere, so names that lead out of the folder are ignored.
    """
    files = read_manifest(folder).get("files")
    if not isinstance(files, list):
        return []
    return [name for name in files if isinstance(name, str) and _is_file_name(name)]


def _is_file_name(name: str) -> bool:
    """Return True for the name of a file, as opposed to a path."""
    if name in ("", ".", ".."):
        return False
    return set(name).isdisjoint("/\\\0")


def unfinished_note(folder: AnyPath) -> list[str]:
    """Return a note about a folder that a killed run left unfinished; empty for other folders."""
    if not read_manifest(folder).get("unfinished"):
        return []
    note = (
        "a run was killed while it was moving its files here, so they may belong to "
        "two reports"
    )
    return [f"{folder}: {note}"]


def read_manifest(folder: AnyPath) -> dict[str, object]:
    """Return the manifest of a folder; empty if it has no manifest of this program."""
    with suppress(ValueError, RecursionError):
        manifest = json.loads(_beginning(Path(folder) / MANIFEST, _MANIFEST_BYTES))
        if isinstance(manifest, dict) and manifest.get("generator") == GENERATOR:
            return manifest
    return {}


def _beginning(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; empty for anything that is not a readable file."""
    with suppress(OSError, ValueError):
        if path.is_file():  # reading a pipe could block forever
            with path.open("rb") as stream:
                return stream.read(size)
    return b""


def has_own_mark(path: AnyPath) -> bool:
    """Return True if a file has the mark of this program's reports."""
    head = _beginning(Path(path), _LOOK_BYTES)
    if not head.startswith(_ZIP):
        return _MARK.match(head) is not None
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_CREATOR_PART) as stream:
            return _CREATOR in stream.read(_CREATOR_PART_BYTES)
    except _UNREADABLE_ZIP:
        return False


def _has_content(path: Path) -> bool:
    """Return True if a path is a file with content; the writer reports problems with the path."""
    with suppress(OSError, ValueError):
        return path.is_file() and path.stat().st_size > 0
    return False


def refuse_input(path: AnyPath, inputs: Iterable[AnyPath]) -> None:
    """Raise an OutputError if an output is one of the inputs."""
    for source in inputs:
        with suppress(OSError, ValueError):  # one of the two does not exist
            if Path(path).samefile(source):
                raise OutputError(
                    f"{path}: is the trace itself; choose another name for the output"
                )
