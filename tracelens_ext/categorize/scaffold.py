"""Writes the skeleton of a plugin: a distribution that can be installed, with a test."""

from __future__ import annotations

import keyword
import os
import re
import tomllib
from pathlib import Path
from typing import Final

from tracelens_ext.errors import OutputError, UsageError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)*")


def write_plugin(name: str, parent: str | os.PathLike[str] = ".") -> list[Path]:
    """Write the skeleton of a plugin distribution below a folder.

    Args:
        name: the name of the distribution, and of its folder.
        parent: the folder in which the new folder is created.

    Returns:
        The paths of the files.

    Raises:
        UsageError: the name is invalid.
        OutputError: the folder already exists, or cannot be written.
    """
    module = re.sub(r"[-.]", "_", name).lower()
    is_taken = keyword.iskeyword(module) or module == "tracelens_ext"
    if is_taken or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a plugin; use letters, digits and '-', starting with "
            "a letter, such as my-company-kernels"
        )
    folder = Path(parent) / name
    texts = _texts_of_files(folder, name, module)
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise OutputError(
            f"{folder} already exists; choose another name or folder"
        ) from None
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written: {error.strerror or error}"
        ) from None
    return list(texts)


def _texts_of_files(folder: Path, name: str, module: str) -> dict[Path, str]:
    """Return the text of each file of the skeleton."""
    skeleton = Path(__file__).with_name("skeleton.toml").read_text(encoding="utf-8")
    texts = {}
    for path_template, text_template in tomllib.loads(skeleton).items():
        path = folder / path_template.format(module=module)
        texts[path] = text_template.format(name=name, module=module)
    return texts
