"""The questions as tools of the Model Context Protocol, over stdio; answers are short JSON."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracelens_ext.agents.questions import Questions
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.report.json_text import nested_json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcp.server.mcpserver import MCPServer

    from tracelens_ext.agents.questions import Answer

LONGEST, _LONGEST_LINE = 60_000, 2000  # characters of an answer, and of an error
#: Characters of a text and entries of a list that stay, until the answer is short enough.
_CUTS = ((4000, 200), (1000, 100), (400, 50), (200, 25), (100, 12), (60, 6))
_TOOLS = ("open_trace", "findings", "table", "explain_kernel", "tree", "compare", "what_if", "sql")
_INSTRUCTIONS = (
    "Where did the GPU time of a trace go, and what would save the most? Ask open_trace('.') for"
    " the traces, open_trace(path), then findings(path). Every answer says what to ask next."
)


def make_server(folders: Sequence[Path]) -> MCPServer[Any]:
    """The server of the traces below some folders.

    Raises:
        UsageError: the extra is not installed, or a folder is none.
    """
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        message = "this needs the package mcp, version 2; run: pip install 'tracelens-ext[mcp]'"
        raise UsageError(message) from None
    from tracelens_ext.export.database import SCHEMA

    if none := [folder for folder in folders if not folder.is_dir()]:
        raise UsageError(f"{none[0]}: is no folder; name folders with traces")
    questions = Questions([folder.resolve() for folder in folders])
    server = MCPServer[Any]("tracelens-ext", instructions=_INSTRUCTIONS, log_level="ERROR")
    one_at_a_time = threading.Lock()
    for name in _TOOLS:
        tool = getattr(questions, name)
        about = f"{tool.__doc__}\n{SCHEMA}" if name == "sql" else tool.__doc__
        told = _as_text(tool, one_at_a_time)
        server.add_tool(told, name=name, description=about, structured_output=False)
    return server


def _as_text(tool: Callable[..., Answer], one_at_a_time: threading.Lock) -> Callable[..., Any]:
    """A tool whose answer is a text, and whose errors are the program's one line."""
    from mcp.types import CallToolResult, TextContent

    @functools.wraps(tool)
    def call(**arguments: Any) -> Any:  # noqa: ANN401  # the tool's own
        try:
            with one_at_a_time:
                return answer_text(tool(**arguments))
        except (TracelensError, MemoryError) as error:
            line = " ".join(str(error).split()) or "there is not enough memory for this"
            told = TextContent(type="text", text=line[:_LONGEST_LINE])
            return CallToolResult(content=[told], is_error=True)

    return call


def answer_text(answer: Answer) -> str:
    """An answer as JSON; of one that is too long the beginnings of texts and lists, saying so.

    Raises:
        UsageError: nothing useful of it is short enough.
    """
    text = nested_json_text(answer, indent=None)
    for characters, entries in _CUTS:
        if len(text) <= LONGEST:
            return text
        kept = {name: _cut(value, characters, entries) for name, value in answer.items()}
        said = f"to {characters:,} characters a text and {entries} entries a list"
        kept["cut"] = f"{said}; ask for less (columns, where, limit, depth) to see the rest"
        text = nested_json_text(kept, indent=None)
    if len(text) > LONGEST:
        raise UsageError("the answer is too long; ask for fewer columns or rows")
    return text


def _cut(value: object, characters: int, entries: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}…"
    if isinstance(value, Mapping):
        some = list(value.items())[:entries]
        return {name[:characters]: _cut(part, characters, entries) for name, part in some}
    if isinstance(value, list | tuple):
        return [_cut(part, characters, entries) for part in value[:entries]]
    return value
