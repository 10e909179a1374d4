"""Writing the skeleton of a plugin: an installable distribution, with its test."""

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
    """Write the skeleton of a plugin distribution below a folder; the files written."""
    module = re.sub(r"[-.]", "_", name).lower()
    if not _NAME.fullmatch(name) or keyword.iskeyword(module) or module == "tracelens_ext":
        raise UsageError(
            f"{name!r} cannot be the name of a plugin; use letters, digits and '-', starting with "
            "a letter, such as my-company-kernels"
        )
    folder = Path(parent) / name
    skeleton = Path(__file__).with_name("skeleton.toml").read_text(encoding="utf-8")
    texts = {
        folder / path.format(module=module): text.format(name=name, module=module)
        for path, text in tomllib.loads(skeleton).items()
    }
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise OutputError(f"{folder} exists already; choose another name or folder") from None
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}") from None
    return [*texts]
