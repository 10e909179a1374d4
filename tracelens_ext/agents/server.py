"""The questions as tools of the Model Context Protocol, over stdio; answers are short JSON."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.agents.questions import Answer, Questions
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.report.formats import nested_json_text

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

LONGEST, _LONGEST_LINE = 60_000, 2000  # characters of an answer, and of an error
#: Characters of a text and entries of a list that stay, until the answer is short enough.
_CUTS = ((4000, 200), (1000, 100), (400, 50), (200, 25), (100, 12), (60, 6))
_TOOLS = ("open_trace", "findings", "table", "explain_kernel", "tree", "compare", "what_if", "sql")
#: What the types of arguments are called.
_MEANT = {
    "str": "a text",
    "int": "a whole number",
    "bool": "true or false",
    "list[str]": "a list of texts",
    "dict[str, Plain]": "an object: a text, a number, true, false or null for each column",
}
_INSTRUCTIONS = (
    "Where did the GPU time of a trace go, and what would save the most? Ask open_trace('.') for"
    " the traces, open_trace(path), then findings(path). Every answer says what to ask next."
)


def make_server(folders: Sequence[Path]) -> MCPServer[Any]:
    """The server of the traces below some folders."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import CallToolResult, TextContent
    except ImportError:
        message = "this needs the package mcp, version 2; run: pip install 'tracelens-ext[mcp]'"
        raise UsageError(message) from None
    from tracelens_ext.export.database import SCHEMA

    class Server(MCPServer[Any]):
        """Errors are the program's one line."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:  # noqa: ANN401
            try:
                _check_names(name, arguments)
                return await super().call_tool(name, arguments, context)
            except (TracelensError, ToolError) as error:
                line = _line(name, error.__cause__ or error)
            return CallToolResult(content=[TextContent(type="text", text=line)], is_error=True)

    if none := [folder for folder in folders if not folder.is_dir()]:
        raise UsageError(f"{none[0]}: is no folder; name folders with traces")
    questions = Questions([folder.resolve() for folder in folders])
    server = Server("tracelens-ext", instructions=_INSTRUCTIONS, log_level="ERROR")
    one_at_a_time = threading.Lock()

    def as_text(tool: Callable[..., Answer]) -> Callable[..., str]:
        @functools.wraps(tool)
        def call(**arguments: Any) -> str:  # noqa: ANN401  # the tool's own
            with one_at_a_time:
                return answer_text(tool(**arguments))

        return call

    for name in _TOOLS:
        tool = getattr(questions, name)
        about = f"{tool.__doc__}\n{SCHEMA}" if name == "sql" else tool.__doc__
        server.add_tool(as_text(tool), name=name, description=about, structured_output=False)
    return server


def _arguments(tool: str) -> dict[str, str]:
    """What a tool takes, and what each must be."""
    _, *taken = inspect.signature(getattr(Questions, tool)).parameters.values()
    return {each.name: _MEANT[str(each.annotation).removesuffix(" | None")] for each in taken}


def _check_names(tool: str, arguments: Mapping[str, object]) -> None:
    if tool not in _TOOLS:
        raise UsageError(f"there is no tool {tool[:200]!r}; there are: {', '.join(_TOOLS)}")
    if unknown := sorted(set(arguments) - set(_arguments(tool))):
        taken = ", ".join(_arguments(tool))
        raise UsageError(f"{tool} has no argument {unknown[0][:200]!r}; it takes {taken}")


def _line(tool: str, error: BaseException) -> str:
    """What was wrong, in one line; of a fault of the program no more than that there was one."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first, meant = error.errors()[0], _arguments(tool)
        name = str(first["loc"][0])
        verb = "holds" if len(first["loc"]) > 1 else "is"
        wrong = "is missing" if first["type"] == "missing" else f"{verb} {first['input']!r:.200}"
        said = f"{tool}: the argument {name} {wrong}; give {meant[name]}"
    elif isinstance(error, TracelensError):
        said = str(error)
    elif isinstance(error, MemoryError):
        said = "there is not enough memory for this; ask for a smaller trace"
    else:
        logging.getLogger(__name__).error("%s failed", tool, exc_info=error)
        said = f"{tool}: internal error: {type(error).__name__}; this is a bug: please report it"
    return " ".join(said.split())[:_LONGEST_LINE]


def answer_text(answer: Answer) -> str:
    """An answer as JSON; of one that is too long the beginnings of texts and lists, saying so."""
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
