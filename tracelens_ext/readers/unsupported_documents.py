"""Recognizes JSON documents of other tools, so that the message can name them."""

from __future__ import annotations

from collections.abc import Iterable

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.messages import REMEDY_RECORD_WITH_PYTORCH, in_a_line

#: A message names up to this many members of a document.
_MOST_MEMBERS = 6
#: Top-level member that only one tool writes → what the document is.
_DOCUMENT_OF_MEMBER = {
    "nodes": "a PyTorch execution trace (ExecutionTraceObserver)",
    "shared": "a speedscope file",
    "resourceSpans": "OpenTelemetry spans",
}


def error_for_document(path: str, members: Iterable[str]) -> TraceFormatError:
    """Return the error for a JSON document that has no list of `traceEvents`.

    Args:
        path: the file as the user named it.
        members: the names of the members at the top level of the document.
    """
    names = list(members)
    if {"pg_config", "entries"} <= set(names):
        problem = "is a dump of PyTorch's flight recorder, not a trace"
        return TraceFormatError(path, problem, "run: tracelens-ext ranks FILE")
    for name in names:
        if name in _DOCUMENT_OF_MEMBER:
            problem = f"is {_DOCUMENT_OF_MEMBER[name]}, which is not supported"
            return TraceFormatError(path, problem, REMEDY_RECORD_WITH_PYTORCH)
    if "traceEvents" in names:
        problem = "has traceEvents that are not a list"
        return TraceFormatError(path, problem, REMEDY_RECORD_WITH_PYTORCH)
    content = "it is empty"
    if names:
        listed = ", ".join(map(in_a_line, names[:_MOST_MEMBERS]))
        content = f"it contains: {listed}"
        if len(names) > _MOST_MEMBERS:
            content += " …"
    problem = f"is JSON without traceEvents ({content})"
    return TraceFormatError(path, problem, REMEDY_RECORD_WITH_PYTORCH)
