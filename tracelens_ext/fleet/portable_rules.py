"""Rules and maps of the user as texts, which a worker on another machine can have too."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.errors import RuleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Files = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class PortableRules:
    """What a user's categories are made of."""

    rules: Files = ()  #: rule files, (name, content) each, in order
    categorizer: str | None = None  #: the name of a plugin, pack or map
    categorizer_file: Files = ()  #: instead of it a JSON file
    maps: Files = ()  #: files of engine/model maps
    without_packs: tuple[str, ...] = ()  #: names of packs that take no part

    @classmethod
    def of(
        cls,
        rules: Sequence[str | os.PathLike[str]],
        categorizer: str | os.PathLike[str] | None,
        maps: Sequence[str | os.PathLike[str]],
        without_packs: Sequence[str] = (),
    ) -> PortableRules:
        """Read the files that a user names, once they have been found good."""
        from tracelens_ext.categorize import KernelCategorizer

        if categorizer is not None and not isinstance(categorizer, str | os.PathLike):
            raise UsageError("categorizer: a fleet takes a name or a JSON file, no function or map")
        KernelCategorizer.create(
            rules=rules, categorizer=categorizer, maps=maps, without_packs=without_packs
        )
        chosen = None if categorizer is None else os.fspath(categorizer)
        is_file = chosen is not None and Path(chosen).suffix.lower() == ".json"
        return cls(
            tuple(_file(Path(path)) for path in rules),
            None if is_file else chosen,
            (_file(Path(chosen)),) if chosen and is_file else (),
            tuple(_file(path) for place in maps for path in _map_files(Path(place))),
            tuple(without_packs),
        )

    @property
    def digest(self) -> str:
        """A hash of all of it."""
        content = hashlib.sha256(repr((self.categorizer, self.without_packs)).encode())
        for files in (self.rules, self.categorizer_file, self.maps):
            content.update(repr([hashlib.sha256(text).hexdigest() for _, text in files]).encode())
        return content.hexdigest()

    def options(self) -> dict[str, Any]:
        """The arguments about rules of an analyzer, with files made here."""
        return {**_options(self, worker_folder()), "without_packs": self.without_packs}


@lru_cache(maxsize=4)
def _options(rules: PortableRules, where: str | None) -> dict[str, Any]:
    """Write the files to a folder there that is removed when the process ends."""
    if not (rules.rules or rules.categorizer_file or rules.maps):
        return {"rules": [], "categorizer": rules.categorizer, "maps": []}
    folder = Path(tempfile.mkdtemp(prefix="tracelens-ext-rules-", dir=where))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    chosen = _write(folder / "categorizer", rules.categorizer_file)
    _write(folder / "maps", rules.maps)
    return {
        "rules": _write(folder / "rules", rules.rules),
        "categorizer": chosen[0] if chosen else rules.categorizer,
        "maps": [folder / "maps"] if rules.maps else [],
    }


def _write(folder: Path, files: Files) -> list[Path]:
    paths = []
    for number, (name, content) in enumerate(files):
        path = folder / f"{number}" / name  # two files may have one name
        if folder.name == "maps":
            path = folder / f"{number}_{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        paths.append(path)
    return paths


def _map_files(place: Path) -> list[Path]:
    """The files in a folder that are maps, for it may hold any other JSON; or the file itself."""
    from tracelens_ext.categorize import load_maps

    packs = load_maps(place, check_patterns=False, passed_over=[])
    return sorted({Path((pack.source or "").removesuffix(f": {pack.name}")) for pack in packs})


def _file(path: Path) -> tuple[str, bytes]:
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise RuleError(f"{path}: cannot be read ({error.strerror or error})") from None


def worker_folder() -> str | None:
    """The folder of this Dask worker, which goes with it, even if it is killed; None without Dask.

    Files in it need not be removed: the process that started the worker removes the folder.
    """
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None
