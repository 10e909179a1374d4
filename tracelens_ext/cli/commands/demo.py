"""`tracelens-ext demo`: writes a recording of a small training job to try things out."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.hooks import Command


def demo(
    out: Annotated[Path, typer.Argument(help="Output file, .json or .json.gz.")] = Path(
        "demo_trace.json.gz"
    ),
    vendor: Annotated[
        Literal["nvidia", "amd"],
        typer.Option(help="GPU vendor of the simulated machine."),
    ] = "nvidia",
    ranks: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=4,
            help=(
                "Write the NVIDIA job with this many ranks, one file each (NAME_rank0 "
                "…); rank 1 is slow."
            ),
        ),
    ] = 1,
    fixed: Annotated[
        bool,
        typer.Option(
            "--fixed", help="The same NVIDIA job after its data loader has been fixed."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite the file even if it is not a demo trace."
        ),
    ] = False,
) -> None:
    """Write a demo trace of a small training job; needs no GPU."""
    from tracelens_ext.cli.demo_recordings import copy_recording, is_demo_trace

    if ranks > 1 and vendor != "nvidia":
        raise UsageError("only the NVIDIA demo has several ranks; leave out --vendor")
    if fixed and (ranks > 1 or vendor != "nvidia"):
        raise UsageError(
            "--fixed exists for the NVIDIA job with one rank; leave out --vendor and"
            " --ranks"
        )
    recordings: dict[str, Path] = {"nvidia_fixed" if fixed else vendor: out}
    written = str(out)
    command = f"report {quote(str(out))}"
    if ranks > 1:
        paths = [_path_of_rank(out, rank) for rank in range(ranks)]
        recordings = {f"nvidia_rank{rank}": path for rank, path in enumerate(paths)}
        written = f"{paths[0]} to {paths[-1].name}"
        command = f"fleet {quote(str(_path_of_rank(out, '*')))} -o results"
    for path in recordings.values():
        is_there = path.exists() or path.is_symlink()
        if is_there and not force and not is_demo_trace(path):
            remedy = "choose another name, or overwrite it with --force"
            raise OutputError(f"{path}: exists and is not a demo trace; {remedy}")
    for name, path in recordings.items():
        copy_recording(name, path)
    megabytes = sum(path.stat().st_size for path in recordings.values()) / 1e6
    description = f"({megabytes:.1f} MB, of a simulated {vendor} GPU)"
    typer.echo(f"wrote {written} {description}; next: tracelens-ext {command}")


def _path_of_rank(out: Path, rank: int | str) -> Path:
    """Return the file for a rank: `trace_rank0.json.gz` next to `trace.json.gz`, and so on."""
    stem, dot, ending = out.name.partition(".json")
    return out.with_name(f"{stem}_rank{rank}{dot}{ending}")


COMMAND = Command(
    name="demo",
    summary="Write a demo trace.",
    function=demo,
    group="Manage",
    examples=("demo", "demo fixed.json.gz --fixed", "demo job.json.gz --ranks 4"),
)
