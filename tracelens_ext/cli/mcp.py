"""`tracelens-ext mcp`: let an agent ask about traces, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path


def mcp(
    folders: list[Path],
) -> None:
    """Serve the traces in folders to an agent over stdin and stdout; nothing is written.

    Operands:
        folders FOLDER…: Whose traces may be asked about.
    """
    from tracelens_ext.agents.server import make_server

    make_server(folders).run("stdio")
