"""`docs/reference/files.md` names every reason to drop an event."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.broken_input_helpers import corpus, expectation
from tests.support.docs_helpers import page_text

ROOT = Path(__file__).resolve().parents[2]
TEXT = page_text("files.md")


def test_every_reason_to_drop_is_named() -> None:
    section = TEXT.split("## Dropped")[1].split("## ")[0]
    named = set(re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE))
    sources = [
        path.read_text(encoding="utf-8")
        for path in ROOT.glob("tracelens_ext/readers/**/*.py")
    ]
    counted = re.findall(r"""dropped\[\s*"([^"]+)"\s*\]""", "\n".join(sources))
    assert set(counted) <= named
    seen = {
        reason for path in corpus() for reason in expectation(path).get("dropped", ())
    }
    assert seen <= named
    assert len(named) >= 5
