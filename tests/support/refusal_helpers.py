"""What the user is told of a file that cannot be read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers import read_trace

if TYPE_CHECKING:
    from pathlib import Path


def refused(source: bytes | Path | dict[str, Any]) -> str:
    """Return the message, after checking that it is one line with file, problem and remedy."""
    with pytest.raises(TraceFormatError) as caught:
        read_trace(io.BytesIO(source) if isinstance(source, bytes) else source)
    message = str(caught.value)
    assert (
        message == f"{caught.value.path}: {caught.value.problem}; {caught.value.remedy}"
    )
    assert "\n" not in message
    return message
