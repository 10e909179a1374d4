"""Options that several commands share, said once; a dataclass of them is a parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tracelens_ext.cli.reading import OPTIONS, size_of
from tracelens_ext.cli.screen import all_notes
from tracelens_ext.errors import UsageError
from tracelens_ext.settings import AS_USUAL, ReadingOptions
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
    typer.Option(
        "--maps", metavar="FOLDER", help="Folder of engine/model maps (JSON) for --categorizer."
    ),
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
    bool, typer.Option("--total", help="Compare whole traces, even where both have iterations.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite files that tracelens-ext did not make.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print all tables as JSON instead, every row of them.")
]


@dataclass(frozen=True)
class RuleOptions:
    """Which rules give kernels their categories."""

    rules: Rules = None
    categorizer: Categorizer = None
    maps: Maps = None
    without_pack: WithoutPack = None

    def arguments(self) -> dict[str, Any]:
        """They as `TreePerfAnalyzer` and `KernelCategorizer.create` take them."""
        return {
            "rules": self.rules or (),
            "categorizer": self.categorizer,
            "maps": self.maps or (),
            "without_packs": self.without_pack or (),
        }


@dataclass(frozen=True)
class AnalysisOptions(RuleOptions):
    """How traces are analysed."""

    capture: Capture = None
    kernel_categories: bool = True
    unlinked_kernels: bool = True
    python_frames: bool = False
    reading: ReadingOptions = AS_USUAL

    def __post_init__(self) -> None:
        if not self.kernel_categories and (self.rules or self.categorizer or self.without_pack):
            raise UsageError(
                "--rules, --categorizer and --without-pack need kernel categories; leave out"
                " --no-kernel-categories"
            )
        if self.maps and not self.categorizer:
            raise UsageError("--maps needs --categorizer ENGINE:MODEL, which names one of them")


@dataclass(frozen=True)
class AnalysisOfLinked(AnalysisOptions):
    """Likewise, perhaps of linked GPU events alone."""

    unlinked_kernels: UnlinkedKernels = True


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, in place of each parameter of a dataclass, an option for each field of it.

    A field is an option if its type is `Annotated`, or if it is one of `ReportOptions` or of
    `ReadingOptions`, which may be a field themselves.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _options_of(kind)
        else:
            parameters.append(parameter)
    if not groups:
        return command
    if not any(each.name == "capture" for each in parameters):
        parameters = [each for each in parameters if each.name != "kernel_annotations"]
    if any(each.name == "salvage" for each in parameters):
        keyword = inspect.Parameter.KEYWORD_ONLY
        notes = OPTIONS["notes"]
        parameters.append(inspect.Parameter("notes", keyword, default=False, annotation=notes))

    @functools.wraps(command)
    def with_dataclasses(**given: Any) -> None:  # noqa: ANN401  # whatever the command takes
        all_notes.set(given.pop("notes", False))
        chosen = {name: _chosen(kind, given) for name, kind in groups.items()}
        command(**given, **chosen)

    with_dataclasses.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_dataclasses.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_dataclasses


def _options_of(kind: type) -> list[inspect.Parameter]:
    """The options that stand for a dataclass."""
    types = OPTIONS if kind is ReadingOptions else get_type_hints(kind, include_extras=True)
    if kind is ReportOptions:
        types = {name: Annotated[types[name], report_option(name)] for name in types}
    found = []
    for field in fields(kind):
        if (told := types.get(field.name)) is ReadingOptions:
            found += _options_of(ReadingOptions)
        elif hasattr(told, "__metadata__"):
            found.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=told,
                )
            )
    return found


def _chosen(kind: type, given: dict[str, Any]) -> Any:  # noqa: ANN401  # a `kind`
    """The dataclass of what was given, which is taken out."""
    own = {field.name for field in fields(kind)} & {option.name for option in _options_of(kind)}
    chosen = {name: given.pop(name) for name in own if name in given}
    if kind is ReadingOptions:
        chosen["max_bytes"] = size_of(chosen["max_bytes"])
    elif any(field.name == "reading" for field in fields(kind)):
        chosen["reading"] = _chosen(ReadingOptions, given)
    return kind(**chosen)
