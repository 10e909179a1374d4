"""Text that Excel and XML can hold: cells, sheet names, and what has to be replaced or cut.

The replacements, all of them:

* a character that XML forbids (most controls, U+FFFE, U+FFFF) and a lone surrogate: U+FFFD;
* a text longer than a cell may be: its beginning and a mark that says how long it was;
* a sheet name: forbidden characters become `_`, one too long or already taken is cut and numbered.
"""

from __future__ import annotations

import re
from html import escape  # that of xml.sax would bring what opens URLs along
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CELL_CHARACTERS = 32_767
SHEET_NAME_CHARACTERS = 31

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# Excel reads `_x0041_` in a text as the character A; the escape of the underscore prevents that.
_EXCEL_ESCAPE = re.compile("_(?=x[0-9A-Fa-f]{4}_)")
_NOT_IN_SHEET_NAME = re.compile(r"[\[\]:*?/\\\x00-\x1f\ufffd]")
_RESERVED_SHEET_NAMES = frozenset({"history"})


def cleaned(text: str) -> str:
    """Replace every character that a workbook cannot hold with U+FFFD, one for one."""
    return _NOT_IN_XML.sub("\ufffd", text)


def excel_length(text: str) -> int:
    """Count characters as Excel does: one beyond U+FFFF counts twice."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def cell_text(text: str) -> tuple[str, bool]:
    """Give what a cell shows of a text.

    Args:
        text: any text.

    Returns:
        The cleaned text, cut with a mark when it is longer than a cell may be; and whether it
        was cut.
    """
    shown = cleaned(text)
    if len(shown) <= CELL_CHARACTERS // 2 or excel_length(shown) <= CELL_CHARACTERS:
        return shown, False
    mark = f" … [cut here, {len(shown):,} characters in all]"
    return _cut(shown, CELL_CHARACTERS - len(mark)) + mark, True


def excel_escaped(text: str) -> str:
    """Escape what Excel would read as an escaped character: `_x0041_` as `A`."""
    return _EXCEL_ESCAPE.sub("_x005F_", text)


def xml_escaped(text: str) -> str:
    """Escape what XML would take for markup in the content of an element."""
    return escape(text, quote=False)


def xml_text(text: str) -> str:
    """Write a cleaned text as the content of an XML element that Excel reads back unchanged."""
    escaped = xml_escaped(excel_escaped(text))
    # An XML parser turns a bare carriage return into a line feed, a reference it keeps.
    return escaped.replace("\r", "&#13;") if "\r" in escaped else escaped


def unique_sheet_names(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Turn names of tables into names that Excel accepts for sheets.

    Args:
        wanted: the names, in the order of the sheets.
        taken: names that other sheets of the workbook already have.

    Returns:
        A name for each: at most 31 characters, none forbidden, no two equal when the case of
        letters is ignored.
    """
    seen = {name.casefold() for name in taken} | _RESERVED_SHEET_NAMES
    names = []
    for name in wanted:
        # An apostrophe at either end would end the quotes around the name in a reference.
        allowed = _NOT_IN_SHEET_NAME.sub("_", cleaned(name)).strip().strip("'").strip() or "sheet"
        candidate = _cut(allowed, SHEET_NAME_CHARACTERS).rstrip(" '")
        number = 2
        while candidate.casefold() in seen:
            suffix = f" ({number})"
            candidate = _cut(allowed, SHEET_NAME_CHARACTERS - len(suffix)).rstrip(" '") + suffix
            number += 1
        seen.add(candidate.casefold())
        names.append(candidate)
    return names


def _cut(text: str, length: int) -> str:
    """Keep the beginning of a text, `length` characters as Excel counts them."""
    if excel_length(text) <= length:
        return text
    # Half a character beyond U+FFFF is dropped with its other half.
    return text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")
