"""`tracelens-ext mcp`: let an agent ask about traces, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER…", help="Whose traces may be asked about.")
    ],
) -> None:
    """Serve the traces in folders to an agent over stdin and stdout; nothing is written."""
    from tracelens_ext.agents.server import make_server

    make_server(folders).run("stdio")
