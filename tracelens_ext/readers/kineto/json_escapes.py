r"""Backslashes that were not escaped, as old profilers wrote them in names: ``"C:\kernels\q.cu"``.

Such a backslash begins none of the escapes of JSON, so it stands for itself. One that happens to
begin an escape (``\new``) cannot be told from it, and one before the closing quote hides that.
"""

from __future__ import annotations

import re

_BYTES = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_TEXT = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')


def mend_bytes(text: bytes) -> bytes:
    """JSON in which every backslash is an escape; the same object where it was already."""
    if b"\\" not in text:
        return text
    mended = _BYTES.sub(lambda found: found[0] if found[1] else rb"\\", text)
    return text if len(mended) == len(text) else mended


def mend_text(text: str) -> str:
    """As `mend_bytes`, of decoded text."""
    return _TEXT.sub(lambda found: found[0] if found[1] else r"\\", text)


def length_before(text: str, mended_length: int) -> int:
    """How much of a text became the first `mended_length` characters of what `mend_text` made."""
    added = 0
    for found in _TEXT.finditer(text):
        if found.start() + added >= mended_length:
            break
        added += found[1] is None
    return mended_length - added
