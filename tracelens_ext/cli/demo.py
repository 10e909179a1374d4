"""`tracelens-ext demo`: write a shipped recording to try everything with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from tracelens_ext.demo import copy_recording, is_demo_trace
from tracelens_ext.errors import OutputError, UsageError


def demo(
    out: Path = Path("demo_trace.json.gz"),
    vendor: Literal["nvidia", "amd"] = "nvidia",
    ranks: int = 1,
    force: bool = False,
) -> None:
    """Write a demo trace: a recording of a small training job; needs no GPU.

    Operands:
        out: File to write, .json or .json.gz.

    Options:
        vendor: Whose machine and kernel names.
        ranks N 1..4: Ranks of the NVIDIA job, a file each: NAME_rank0 …; the second is slow.
        force: Overwrite a file that is not a demo trace.
    """
    from shlex import quote

    if ranks > 1 and vendor != "nvidia":
        raise UsageError("several ranks are there of the NVIDIA job only; leave out --vendor")
    names = [vendor] if ranks == 1 else [f"nvidia_rank{rank}" for rank in range(ranks)]
    paths = [out] if ranks == 1 else [_of_rank(out, rank) for rank in range(ranks)]
    for path in paths:
        if not force and (path.exists() or path.is_symlink()) and not is_demo_trace(path):
            raise OutputError(
                f"{path}: exists and is not a demo trace;"
                " choose another name, or --force to overwrite"
            )
    for name, path in zip(names, paths, strict=True):
        copy_recording(name, path)
    size = sum(path.stat().st_size for path in paths) / 1e6
    written = f"{out}" if ranks == 1 else f"{paths[0]} to {paths[-1].name}"
    command = f"report {quote(str(out))}"
    if ranks > 1:
        command = f"fleet {quote(str(_of_rank(out, '*')))} -o results"
    typer.echo(
        f"wrote {written} ({size:.1f} MB, of a simulated {vendor} GPU);"
        f" next: tracelens-ext {command}"
    )


def _of_rank(path: Path, rank: int | str) -> Path:
    """The name of one rank's file: `trace.json.gz` is `trace_rank0.json.gz` and so on."""
    stem, dot, ending = path.name.partition(".json")
    return path.with_name(f"{stem}_rank{rank}{dot}{ending}")
