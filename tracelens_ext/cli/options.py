"""Options that several commands share, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A trace of PyTorch (.json, .json.gz) or of Nsight Systems (.sqlite, .nsys-rep).",
        show_default=False,
    ),
]
Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help="Traces of PyTorch (.json, .json.gz) or of Nsight Systems (.sqlite, .nsys-rep);"
        " folders of them; patterns.",
        show_default=False,
    ),
]
Rules = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="TOML file of your own rules; wins over all others."),
]
Categorizer = Annotated[
    str | None,
    typer.Option(
        "--categorizer", help="Ask this plugin or map first, such as jax or vllm:gpt-oss."
    ),
]
Maps = Annotated[
    list[Path] | None,
    typer.Option("--maps", help="Folder of engine/model maps (JSON) for --categorizer."),
]
UnlinkedKernels = Annotated[
    bool,
    typer.Option(
        "--include-unlinked-kernels/--exclude-unlinked-kernels",
        help="Whether GPU events whose launch is not in the trace count in the timeline.",
    ),
]
MicroIdle = Annotated[
    float | None,
    typer.Option(help="Split idle time into holes up to this many µs and longer ones.", min=0),
]
Total = Annotated[
    bool,
    typer.Option("--total", help="Compare whole traces, even where both have iterations."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite files that tracelens-ext did not make."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
