"""Serves traces to AI agents: an MCP server over stdin and stdout, or any other transport.

MCP is the Model Context Protocol. An error becomes one line that tells the agent what to change.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.cli.mcp_answers import Answer, answer_text
from tracelens_ext.cli.mcp_tools import TOOLS, TraceTools
from tracelens_ext.cli.mcp_traces import ServedTraces
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.export import database

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from pydantic import ValidationError

#: The most characters of an error message.
_LONGEST_LINE = 2000
#: How much of a name or value an error message shows.
_LONGEST_NAME = 200
#: Type of an argument, as in the signature of a tool → what a message calls it.
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "bool": "true or false",
    "list[str]": "a list of strings",
    "dict[str, Plain]": "an object that maps columns to a string, number, boolean or null",
}
_INSTRUCTIONS = (
    "Where did the GPU time of a trace go, and what would save the most? Call "
    "open_trace('.') to list the traces, then open_trace(path), then findings(path). "
    "Every answer names useful next calls."
)


def make_server(folders: Sequence[Path]) -> MCPServer[Any]:
    """Return a server of the traces below some folders.

    Raises:
        UsageError: the package `mcp` is not installed, or one of these is not a folder.
    """
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import CallToolResult, TextContent
    except ImportError:
        message = (
            "this command needs version 2 of the package mcp; run: pip install "
            "'tracelens-ext[mcp]'"
        )
        raise UsageError(message) from None

    class Server(MCPServer[Any]):
        """A server whose error messages are one line."""

        async def call_tool(
            self,
            name: str,
            arguments: dict[str, Any],
            context: Any = None,  # noqa: ANN401  # of mcp, which is optional
        ) -> Any:  # noqa: ANN401  # of mcp, which is optional
            try:
                _check_names(name, arguments)
                return await super().call_tool(name, arguments, context)
            except (TracelensError, ToolError) as error:
                line = _error_line(name, error.__cause__ or error)
            content = TextContent(type="text", text=line)
            return CallToolResult(content=[content], is_error=True)

    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: is not a folder; give folders that contain traces"
            )
    tools = TraceTools(ServedTraces([folder.resolve() for folder in folders]))
    server = Server("tracelens-ext", instructions=_INSTRUCTIONS, log_level="ERROR")
    lock = threading.Lock()
    for name in TOOLS:
        tool = getattr(tools, name)
        description = tool.__doc__
        if name == "sql":
            description += f"\n{database.SCHEMA}"
        server.add_tool(
            _with_text_answer(tool, tools, lock),
            name=name,
            description=description,
            structured_output=False,
        )
    return server


def _with_text_answer(
    tool: Callable[..., Answer | str], tools: TraceTools, lock: threading.Lock
) -> Callable[..., str]:
    """Return a tool with its answer as text, and with notes about the recording in it.

    The lock keeps other tools waiting meanwhile, as analyzers are not made for several threads.
    """

    @functools.wraps(tool)
    def call(**arguments: Any) -> str:  # noqa: ANN401  # of any type
        with lock:
            answer = tool(**arguments)
            if isinstance(answer, str):
                return answer
            return answer_text(tools.with_notes(arguments["path"], answer))

    return call


def _argument_types(tool: str) -> dict[str, str]:
    """Return what each argument of a tool must be, in words."""
    _self, *parameters = inspect.signature(
        getattr(TraceTools, tool)
    ).parameters.values()
    types = {}
    for parameter in parameters:
        annotation = str(parameter.annotation).removesuffix(" | None")
        types[parameter.name] = _TYPE_NAMES[annotation]
    return types


def _check_names(tool: str, arguments: Mapping[str, object]) -> None:
    """Check that there are a tool and arguments with these names."""
    if tool not in TOOLS:
        raise UsageError(
            f"there is no tool {tool[:_LONGEST_NAME]!r}; the tools are: {', '.join(TOOLS)}"
        )
    known = _argument_types(tool)
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise UsageError(
            f"{tool} has no argument {unknown[0][:_LONGEST_NAME]!r}; it takes "
            f"{', '.join(known)}"
        )


def _error_line(tool: str, error: BaseException) -> str:
    """Return an error message in one line. A bug is logged; the message has only its type."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        message = _argument_problem(tool, error)
    elif isinstance(error, TracelensError):
        message = str(error)
    elif isinstance(error, MemoryError):
        message = "there is not enough memory for this; use a smaller trace"
    else:
        logging.getLogger(__name__).error("%s failed", tool, exc_info=error)
        message = (
            f"{tool}: internal error: {type(error).__name__}; this is a bug: please "
            "report it"
        )
    return " ".join(message.split())[:_LONGEST_LINE]


def _argument_problem(tool: str, error: ValidationError) -> str:
    """Return what is wrong with the first wrong argument, and what it must be."""
    first_error = error.errors()[0]
    location = first_error["loc"]
    name = str(location[0])
    is_inside_value = len(location) > 1
    if first_error["type"] == "missing":
        problem = "is missing"
    elif is_inside_value:
        problem = f"contains {first_error['input']!r:.{_LONGEST_NAME}}"
    else:
        problem = f"is {first_error['input']!r:.{_LONGEST_NAME}}"
    expected = _argument_types(tool)[name]
    return f"{tool}: the argument {name} {problem}; expected {expected}"
