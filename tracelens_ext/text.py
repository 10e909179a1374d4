"""What text can be written anywhere."""

from __future__ import annotations

import re

#: What is shown where an event has no name.
NO_NAME = "(no name)"

_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: lone surrogates become U+FFFD, one for one.

    They come from escapes in JSON and from file names that are no UTF-8; where pyarrow is
    installed, pandas refuses them too.
    """
    return _SURROGATE.sub("\ufffd", text)
