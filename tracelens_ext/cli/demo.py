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
    steps: Annotated[
        int | None,
        typer.Option(
            help="Training steps to simulate; 3 unless a problem needs more.", min=1, max=1000
        ),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(help="Ranks to simulate, a file each: NAME_rank0 …", min=1, max=1024),
    ] = 1,
    problem: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID[=MS]",
            help="A problem to put in, as 'findings' names it, and the milliseconds that it costs"
            " (30). Repeatable.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not a demo trace.")
    ] = False,
) -> None:
    """Write a demo trace: a simulated training job, the same on every run; needs no GPU."""
    from tracelens_ext.demo.problems import parse_problems, steps_for

    problems = parse_problems(problem or ())
    steps = steps_for(problems, steps)
    paths = [out] if ranks == 1 else [_of_rank(out, rank) for rank in range(ranks)]
    for path in paths:
        if not force and _stands_in_the_way(path):
            raise OutputError(
                f"{path}: exists and is not a demo trace;"
                " choose another name, or --force to overwrite"
            )
    for rank, path in enumerate(paths):
        write_demo_trace(path, vendor.value, seed, steps, rank=rank, ranks=ranks, problems=problems)
    size = sum(path.stat().st_size for path in paths) / 1e6
    written = f"{out}" if ranks == 1 else f"{paths[0]} to {paths[-1].name}"
    command = f"report {_quoted(out)}"
    if ranks > 1:
        command = f"fleet {_quoted(_of_rank(out, '*'))} -o results"
    typer.echo(
        f"wrote {written} ({size:.1f} MB, {steps} steps on a simulated {vendor.value} GPU);"
        f" next: tracelens-ext {command}"
    )


def _of_rank(path: Path, rank: int | str) -> Path:
    """The name of one rank's file: `trace.json.gz` is `trace_rank0.json.gz` and so on."""
    stem, dot, ending = path.name.partition(".json")
    return path.with_name(f"{stem}_rank{rank}{dot}{ending}")


def _stands_in_the_way(path: Path) -> bool:
    return (path.exists() or path.is_symlink()) and not is_demo_trace(path)


def _quoted(path: Path) -> str:
    """The path as one word of a shell command."""
    from shlex import quote

    return quote(str(path))
