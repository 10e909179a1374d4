"""What this program made, and may therefore write over; everything else is the user's.

Each kind of output carries a mark of its own: a workbook its creator, a page its generator, JSON
its first member, Markdown its first line. A folder of CSV or Parquet files has a manifest, a
hidden file (so that programs that read all files of the folder skip it) that names the others.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import OutputError
from tracelens_ext.report.atomic import written_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MANIFEST = ".tracelens-ext-manifest.json"
GENERATOR = "tracelens-ext"
#: The version of the tables, which a manifest and a workbook say under this name. It grows when a
#: column that is read back (`compare.finished`) gets another meaning.
TABLES_VERSION, TABLES_VERSION_KEY = 1, "tables_version"
#: How a text file of ours begins.
_MARK = re.compile(
    rb'\{\s*"generator": "tracelens-ext",'
    rb'|<!doctype html>.*<meta name="generator" content="tracelens-ext">'
    rb"|<!-- written by tracelens-ext -->",
    re.DOTALL,
)
_LOOK_BYTES = 4096
_CREATOR_PART, _CREATOR = "docProps/core.xml", b"<dc:creator>tracelens-ext</dc:creator>"
_CREATOR_PART_BYTES = 65536
_MANIFEST_BYTES = 1_000_000
_ZIP = b"PK\x03\x04"


def check_output(
    path: str | os.PathLike[str],
    inputs: Iterable[str | os.PathLike[str]] = (),
    *,
    force: bool = False,
) -> None:
    """Refuse to write over a file that this program did not make.

    `inputs` are never written over, whatever `force` says.
    """
    refuse_input(path, inputs)
    if not force and not may_replace(path):
        raise _strangers(path, "name")


def _strangers(path: str | os.PathLike[str], other: str) -> OutputError:
    problem = "exists and was not made by tracelens-ext"
    remedy = f"choose another {other}, or --force to overwrite it"
    return OutputError(f"{os.fspath(path)}: {problem}; {remedy}")


def check_folder(
    folder: str | os.PathLike[str],
    names: Iterable[str],
    inputs: Sequence[str | os.PathLike[str]] = (),
    *,
    force: bool = False,
) -> None:
    """Refuse to write over files of a folder that its manifest does not name."""
    target = Path(folder)
    ours = set(manifest_files(target))
    for name in names:
        path = target / name
        refuse_input(path, inputs)
        if not force and name not in ours and _holds_something(path):
            raise _strangers(path, "folder")


def write_manifest(folder: Path, names: Sequence[str], *, unfinished: bool = False) -> None:
    """Write the manifest of a folder.

    An unfinished folder holds files of more than one report.
    """
    from tracelens_ext import __version__

    about = {"generator": GENERATOR, "version": __version__, TABLES_VERSION_KEY: TABLES_VERSION}
    manifest = about | {"files": list(names)} | ({"unfinished": True} if unfinished else {})
    with written_beside(folder / MANIFEST) as beside:
        beside.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def manifest_files(folder: str | os.PathLike[str]) -> list[str]:
    """The files of a folder that this program made, by its manifest; none without one."""
    files = read_manifest(folder).get("files")
    names = files if isinstance(files, list) else []
    return [name for name in names if isinstance(name, str) and _is_plain(name)]


def unfinished_note(folder: str | os.PathLike[str]) -> list[str]:
    """A line about a folder to which a run wrote that was killed; nothing of any other."""
    if not read_manifest(folder).get("unfinished"):
        return []
    note = "a run was killed while it put its files in place here, which may be of two reports"
    return [f"{os.fspath(folder)}: {note}"]


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, object]:
    """The manifest of a folder; empty if it has none that this program wrote."""
    path = Path(folder) / MANIFEST
    try:
        if not path.is_file():  # a pipe would never answer
            return {}
        with path.open("rb") as stream:
            manifest = json.loads(stream.read(_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    ours = isinstance(manifest, dict) and manifest.get("generator") == GENERATOR
    return manifest if ours else {}


def may_replace(path: str | os.PathLike[str]) -> bool:
    """Whether nothing is lost when a file is replaced: it is absent, empty, or our own."""
    return not _holds_something(Path(path)) or made_here(path)


def made_here(path: str | os.PathLike[str]) -> bool:
    """Whether a file carries the mark of this program's outputs.

    A demo trace does not: it is an input.
    """
    target = Path(path)
    try:
        if not target.is_file():  # a pipe would never answer
            return False
        with target.open("rb") as stream:
            head = stream.read(_LOOK_BYTES)
    except (OSError, ValueError):
        return False
    if head.startswith(_ZIP):
        return _is_our_workbook(target)
    return _MARK.match(head) is not None


def _is_our_workbook(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_CREATOR_PART) as stream:
            return _CREATOR in stream.read(_CREATOR_PART_BYTES)
    except (OSError, KeyError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return False


def _holds_something(path: Path) -> bool:
    """Whether a file that is not empty is at a path.

    Of folders, devices and names that cannot be, the writer says what is wrong with them.
    """
    try:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError):
        return False


def refuse_input(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse to write to a file or folder that is read."""
    for source in inputs:
        try:
            same = Path(path).samefile(source)
        except (OSError, ValueError):
            continue  # one of them does not exist
        if same:
            raise OutputError(
                f"{os.fspath(path)}: is the trace itself; choose another name for the output"
            )


def _is_plain(name: str) -> bool:
    """Whether a name is of a file in the folder itself; a manifest may come from anywhere."""
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\\0")
