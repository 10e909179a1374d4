"""The complete diffs of the page on the architecture, taken apart to be applied."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


def documented_addition(folder: str, changed: str) -> tuple[str, str, str, str]:
    """The diff of an addition: a new file in a folder of the package, and one line in another file.

    Returns:
        The name of the new file, its text, and what the lines around the new one are before and
        after.
    """
    (diff,) = re.findall(
        rf"```diff\n--- /dev/null\n\+\+\+ b/tracelens_ext/{folder}/(.*?)```",
        PAGE.read_text(encoding="utf-8"),
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
