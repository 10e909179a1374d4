"""Advice and spelling that the messages of several readers share."""

from __future__ import annotations

REMEDY_COPY_AGAIN = "copy or record the file again"
REMEDY_SALVAGE = "analyze what comes before that with --allow-truncated"
REMEDY_RECORD_WITH_PYTORCH = (
    "record with torch.profiler and export_chrome_trace(), "
    "or use that tool's own viewer"
)
_LONGEST_NAME = 60


def in_a_line(name: str) -> str:
    """Return a name from a file as one short line for a message; the command line escapes it."""
    line = " ".join(name.split())[:_LONGEST_NAME]
    return line.encode("utf-8", "replace").decode()
