"""The corpus of broken inputs: its files, what is expected of each, and what a run makes of one.

`broken_inputs/NAME` has one thing wrong with it, and `broken_inputs/NAME.expected` says in JSON
what a report of it gives:

* `exit`: the exit code;
* `error`: the line on standard error after the file's name;
* of one that can be used: `events` (present in the file), `dropped` (reason → how many),
  `kernels` (name → [launches, µs in all]), `unlinked` GPU events, `notes`;
* `allow_truncated`: the same with `--allow-truncated`, where that makes a difference.

What libraries say of damage differs between their versions: `…` stands for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.cli import run

if TYPE_CHECKING:
    import pytest

FOLDER = Path(__file__).resolve().parents[1] / "broken_inputs"
SUFFIX = ".expected"
_LONGEST_NAME = 80
_DROPPED = re.compile(r"([\d,]+) ([^;]+)")
#: Of JSON, Python's decoder: the byte is ours, except of a trailing comma. Of gzip, two libraries.
_LIBRARY = re.compile(
    r"(not valid JSON at byte) [\d,]+ \((?:Expecting property name|Illegal trailing)[^()]*\)"
    r"|(gzip stream is damaged after) [\d,]+ bytes of text \((?:[^()]|\([^()]*\))*\)"
)
_FORMATS = re.compile(r"expected [^;]+ \([^()]+\)(?:, or [^;]+)+$")
_WHY = re.compile(
    r"(not valid JSON at byte [\d,]+|is a damaged SQLite database) \([^()]*\)"
)
#: In every report: how two columns differ, and what the findings amount to.
_ALWAYS = (
    "An op category describes what an operation is for",
    "Findings explain",
    "No finding would save",
    "1 more finding saves",
    "No shapes were recorded",
    "The GPU is idle for",
    "The trace has no shapes",
)


def corpus() -> list[Path]:
    """Return the broken files, by name."""
    return sorted(path for path in FOLDER.iterdir() if path.suffix != SUFFIX)


def expectation(path: Path) -> dict[str, Any]:
    """Return the expected outcome of a broken file."""
    expected = json.loads(
        path.with_name(path.name + SUFFIX).read_text(encoding="utf-8")
    )
    assert isinstance(expected, dict)
    return expected


def outcome(
    path: Path, folder: Path, capfd: pytest.CaptureFixture[str], *options: str
) -> dict[str, Any]:
    """What the command line makes of a file, in the terms of an expectation.

    Args:
        path: the file.
        folder: an empty folder to write to.
        capfd: what catches the streams.
        options: more options.
    """
    target = folder / "report.json"
    capfd.readouterr()
    code = run(["report", str(path), "-o", str(target), "--quiet", *options])
    printed, said = capfd.readouterr()
    assert printed == "", "--quiet prints nothing"
    assert "Traceback" not in said
    if code:
        assert not list(folder.iterdir()), "a run that fails leaves nothing"
        return {"exit": code, "error": _error(said, path)}
    report = json.loads(target.read_text(encoding="utf-8"))
    target.unlink()
    salvaged = [note for note in report["notes"] if note.startswith("Salvaged ")]
    assert said == "".join(f"tracelens-ext: {path}: {note}\n" for note in salvaged)
    return {"exit": code, **_usable(report)}


def agrees(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return True if an outcome is the expected one."""
    return found == {
        key: value for key, value in expected.items() if key != "allow_truncated"
    }


def portable(text: str) -> str:
    """A message without what libraries say, where they say damage begins, and all formats."""
    text = _FORMATS.sub("expected …", text)
    text = _LIBRARY.sub(lambda found: f"{found[1] or found[2]} … (…)", text)
    return _WHY.sub(r"\1 (…)", text)


def _error(said: str, path: Path) -> str:
    """The one line of an error, after the program's name and the file's."""
    beginning = f"tracelens-ext: {path}: "
    assert said.startswith(beginning), said
    assert said.count("\n") == 1, said
    assert "internal error" not in said
    assert "; " in said, "a message says what to do"
    return portable(said.removeprefix(beginning).removesuffix("\n"))


def _usable(report: dict[str, Any]) -> dict[str, Any]:
    facts = report["facts"]
    tables = report["tables"]
    kernels: dict[str, list[float]] = {}
    for row in tables.get("kernels_by_category", []):
        count, total = kernels.get(_short(row["kernel_name"]), [0, 0])
        total = round(total + 1000 * row["total_time_ms"], 3)
        kernels[_short(row["kernel_name"])] = [count + row["count"], total]
    return {
        "events": facts["Events"],
        "dropped": {
            reason: int(count.replace(",", ""))
            for count, reason in _DROPPED.findall(facts["Events dropped"])
        },
        "kernels": kernels,
        "unlinked": facts["GPU events unlinked"],
        "notes": [
            portable(note) for note in report["notes"] if not note.startswith(_ALWAYS)
        ],
    }


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:40]} … ({len(name)} characters)"
