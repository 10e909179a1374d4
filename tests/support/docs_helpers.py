"""The pages of the documentation: where they are, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page_path(name: str) -> Path:
    """The page with this file name, in whichever folder of the documentation it is."""
    (path,) = DOCS.rglob(name)
    return path


def page_text(name: str) -> str:
    """The Markdown of the page with this file name."""
    return page_path(name).read_text(encoding="utf-8")


def code_blocks(text: str, language: str) -> list[str]:
    """The code of the blocks in this language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE
    )


def commands_of(text: str) -> list[str]:
    """What follows `$ tracelens-ext` in the examples of a page."""
    return re.findall(r"^\$ tracelens-ext (.*)$", text, re.MULTILINE)


def documented_addition(folder: str, changed: str) -> tuple[str, str, str, str]:
    """The diff of an addition: a new file in a folder of the package, and one line in another file.

    Returns:
        The name of the new file, its text, and what the lines around the new one are before and
        after.
    """
    (diff,) = re.findall(
        rf"```diff\n--- /dev/null\n\+\+\+ b/tracelens_ext/{folder}/(.*?)```",
        page_text("architecture.md"),
        re.DOTALL,
    )
    new, hunk = diff.split(f"--- a/tracelens_ext/{folder}/{changed}\n")
    name, _, *lines = new.splitlines()
    assert all(line.startswith("+") for line in lines)
    changes = hunk.splitlines()[2:]
    assert [line[0] for line in changes].count("+") == 1
    before, after = (
        "".join(f"{line[1:]}\n" for line in changes if line[0] in kept)
        for kept in (" -", " +")
    )
    return name, "".join(f"{line[1:]}\n" for line in lines), before, after
