"""`tracelens-ext demo`: write a generated trace to try everything with."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.demo import DEFAULT_NAME, is_demo_trace, write_demo_trace
from tracelens_ext.errors import OutputError


class DemoVendor(StrEnum):
    """Whose machine to simulate."""

    nvidia = "nvidia"
    amd = "amd"


def demo(
    out: Annotated[
        Path, typer.Argument(help="File to write, .json or .json.gz.", show_default=True)
    ] = Path(DEFAULT_NAME),
    vendor: Annotated[
        DemoVendor, typer.Option(help="Whose machine and kernel names.")
    ] = DemoVendor.nvidia,
    seed: Annotated[int, typer.Option(help="Of the small variations in every duration.")] = 0,
    steps: Annotated[int, typer.Option(help="Training steps to simulate.", min=1, max=1000)] = 3,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not a demo trace.")
    ] = False,
) -> None:
    """Write a demo trace: a simulated training job, the same on every run; needs no GPU."""
    if not force and _stands_in_the_way(out):
        raise OutputError(
            f"{out}: exists and is not a demo trace; choose another name, or --force to overwrite"
        )
    written = write_demo_trace(out, vendor.value, seed=seed, steps=steps)
    size = written.stat().st_size / 1e6
    typer.echo(
        f"wrote {written} ({size:.1f} MB, {steps} steps on a simulated {vendor.value} GPU);"
        f" next: tracelens-ext report {_quoted(written)}"
    )


def _stands_in_the_way(path: Path) -> bool:
    return (path.exists() or path.is_symlink()) and not is_demo_trace(path)


def _quoted(path: Path) -> str:
    """The path as one word of a shell command."""
    from shlex import quote

    return quote(str(path))
