"""Bring the output that pages show up to date, where the program prints something new.

`python docs/scripts/update_examples.py` runs the commands of the pages below. Each line of a block
of output that the program no longer prints is replaced by the most similar line that it prints. A
line without a counterpart is named, and stays. Read the changes before you commit them.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from tracelens_ext.cli import run

ROOT = Path(__file__).resolve().parents[2]
#: Page → the width of the terminal.
WIDTHS = {
    "README.md": 80,
    "docs/tutorial.md": 100,
    "docs/how-to/compare.md": 80,
    "docs/how-to/explore.md": 100,
    "docs/how-to/idle-time.md": 100,
    "docs/how-to/memory.md": 100,
    "docs/background/simulation.md": 100,
}
#: How alike two lines must be, from 0 to 1.
LEAST_SIMILARITY = 0.6
OUTPUT_BLOCK = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ tracelens-ext (.*)$", re.MULTILINE)


def main() -> None:
    """Update every page, and name the lines that need a person."""
    unresolved = []
    for name, width in WIDTHS.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        printed = output_of_commands(text, width)
        updated, missing = updated_page(text, printed)
        path.write_text(updated, encoding="utf-8")
        unresolved += [f"{name}: {line}" for line in missing]
    print("\n".join(unresolved))
    sys.exit(bool(unresolved))


def output_of_commands(text: str, width: int) -> list[str]:
    """Run the commands of a page in an empty folder, and return the lines that they print."""
    os.environ["COLUMNS"] = str(width)
    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
    ):
        for trace in ("trace.json.gz", "demo/trace.json.gz"):
            run(["demo", trace])
        for command in COMMAND.findall(text):
            arguments = re.sub(r" > [\w.]+$", "", command)
            run(shlex.split(arguments, comments=True))
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def updated_page(text: str, printed: list[str]) -> tuple[str, list[str]]:
    """Return a page whose output the commands print, and the lines without a counterpart."""
    missing: list[str] = []

    def updated_block(match: re.Match[str]) -> str:
        lines = []
        for line in match[0].splitlines():
            if line.strip() in ("", "…") or line.rstrip() in printed:
                lines.append(line)
                continue
            similar = difflib.get_close_matches(line, printed, 1, LEAST_SIMILARITY)
            if not similar:
                missing.append(line)
            lines.append(similar[0] if similar else line)
        return "".join(f"{line}\n" for line in lines)

    return OUTPUT_BLOCK.sub(updated_block, text), missing


if __name__ == "__main__":
    main()
