"""The server for agents: the questions as tools of the Model Context Protocol, over stdio."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from tracelens_ext.agents.folders import Folders
from tracelens_ext.agents.questions import Questions
from tracelens_ext.errors import TracelensError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcp.server.mcpserver import MCPServer

_TOOLS = ("open_trace", "findings", "table", "explain_kernel", "tree", "compare", "what_if", "sql")
_LONGEST_LINE = 2000
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
        message = (
            "the server needs the package mcp, version 2; run: pip install 'tracelens-ext[mcp]'"
        )
        raise UsageError(message) from None
    from mcp.types import ToolAnnotations

    from tracelens_ext import __version__
    from tracelens_ext.export.database import SCHEMA

    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: is no folder; name folders with traces")
    questions = Questions(Folders(tuple(folder.resolve() for folder in folders)))
    server: MCPServer[Any] = MCPServer(
        "tracelens-ext", version=__version__, instructions=_INSTRUCTIONS, log_level="ERROR"
    )
    one_at_a_time = threading.Lock()
    for name in _TOOLS:
        tool = getattr(questions, name)
        about = f"{tool.__doc__}\n{SCHEMA}" if name == "sql" else tool.__doc__
        server.add_tool(
            _telling_errors(tool, one_at_a_time),
            name=name,
            description=about,
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
            structured_output=False,
        )
    return server


def _telling_errors(tool: Callable[..., str], one_at_a_time: threading.Lock) -> Callable[..., Any]:
    """A tool whose errors are the program's one line."""
    from mcp.types import CallToolResult, TextContent

    @functools.wraps(tool)
    def call(**arguments: Any) -> Any:  # noqa: ANN401  # the tool's own
        try:
            with one_at_a_time:
                return tool(**arguments)
        except (TracelensError, MemoryError) as error:
            line = " ".join(str(error).split()) or "there is not enough memory for this"
            told = TextContent(type="text", text=line[:_LONGEST_LINE])
            return CallToolResult(content=[told], is_error=True)

    return call
