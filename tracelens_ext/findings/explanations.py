"""The text about each kind of finding: the sections of `findings.md`, a documentation page."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final

_FILE: Final = "findings.md"
#: The heading of a section about a finding.
_HEADING: Final = re.compile(r"^## `([a-z0-9-]+)`$", re.MULTILINE)
#: A link within the page or to another page. Without the page, only its label makes sense.
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")


@functools.cache
def explanations() -> Mapping[str, str]:
    """Return the text about each built-in kind of finding by id, as Markdown without links."""
    page = resources.files("tracelens_ext.findings").joinpath(_FILE)
    parts = _HEADING.split(page.read_text(encoding="utf-8"))
    identifiers = parts[1::2]
    sections = parts[2::2]
    texts = {}
    for identifier, section in zip(identifiers, sections, strict=True):
        text, _, _ = section.partition("\n## ")
        text_without_links = _LINK.sub(r"\1", text)
        texts[identifier] = text_without_links.strip()
    return texts


def explanation_of(identifier: str) -> str:
    """Return the text about a kind of finding; empty for findings of plugins."""
    return explanations().get(identifier, "")
