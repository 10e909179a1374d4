"""Options that several commands share, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tracelens_ext.tables.options import ReportOptions


def report_option(name: str) -> Any:  # noqa: ANN401  # typer's, which has no public type
    """A field of `ReportOptions` as an option."""
    field = ReportOptions.__dataclass_fields__[name]
    said, flag = field.metadata, f"--{name.replace('_', '-')}"
    shown = f"  [default: {said['shown_default']}]" if "shown_default" in said else ""
    return typer.Option(
        *([flag] if field.default is False else []),  # no --no-… for what is off by default
        help=said["meaning"] + shown,
        min=said.get("least"),
        max=said.get("most"),
        metavar=said.get("metavar"),
        show_default=not shown,
    )


Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A trace of PyTorch, Nsight Systems, rocprofv3 or JAX (tracelens-ext formats).",
        show_default=False,
    ),
]
Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help="Traces of PyTorch, Nsight Systems, rocprofv3 or JAX (tracelens-ext formats); folders"
        " of them; patterns.",
        show_default=False,
    ),
]
TracesOrReports = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help="Traces, folders of them, patterns; or finished reports of traces: workbooks (.xlsx),"
        " folders of CSV or Parquet tables.",
        show_default=False,
    ),
]
Annotation = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Take annotations (record_function, NVTX ranges) whose name matches for"
        " iterations.  [default: ProfilerStep#N]",
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
WithoutPack = Annotated[
    list[str] | None,
    typer.Option("--without-pack", metavar="NAME", help="Switch off this pack; see `rules list`."),
]
UnlinkedKernels = Annotated[
    bool,
    typer.Option(
        "--include-unlinked-kernels/--exclude-unlinked-kernels",
        help="Count GPU events without a launch, or not.  [default: include]",
        show_default=False,
    ),
]
Capture = Annotated[
    Path | None,
    typer.Option(
        "--capture",
        metavar="FILE_OR_FOLDER",
        help="Traces in which the CUDA graphs were captured: tell what is in graph launches.",
        show_default=False,
    ),
]
DevicePeaks = Annotated[str | None, report_option("device_peaks")]
MicroIdle = Annotated[float | None, report_option("micro_idle_thresh_us")]
Total = Annotated[
    bool,
    typer.Option("--total", help="Compare whole traces, even where both have iterations."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite files that tracelens-ext did not make."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
