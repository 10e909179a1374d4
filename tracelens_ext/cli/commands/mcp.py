"""`tracelens-ext mcp`: serves traces to AI agents over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.hooks import Command


def mcp(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="Folders whose traces are served."),
    ],
) -> None:
    """Serve the traces in folders to an AI agent over stdin and stdout; no file is written."""
    from tracelens_ext.cli.mcp_server import make_server

    make_server(folders).run("stdio")


COMMAND = Command(
    name="mcp",
    summary="Serve traces to AI agents over the Model Context Protocol.",
    function=mcp,
    group="Inspect",
    examples=("mcp traces/", "mcp traces/ /data/profiles", "mcp ."),
)
