"""The options that several commands share.

A command can use an alias from here (`force: Force = False`). Or it takes a dataclass as one
parameter (`analysis: AnalysisOptions`), and `with_option_groups` makes an option of each annotated
field. `ReportOptions` has no annotations; it describes its options in the metadata of its fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from tracelens_ext.cli.screen import every_note
from tracelens_ext.errors import UsageError
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tracelens_ext.analysis.iterations.selection import EventFilter
    from tracelens_ext.trace.gpu_events import GpuEvents


def _size_of(text: str) -> int:
    """Return the size in bytes that the value of `--max-bytes` stands for."""
    from tracelens_ext.readers.cache.folder import parse_size

    size = parse_size(text)
    if not size:
        raise UsageError(
            f"--max-bytes {text!r} is not a size; write it as 5GB or 500MB"
        )
    return size


def _check_device_peaks(name: str | None) -> str | None:
    """Check that the peaks can be read, before minutes are spent on reading a trace."""
    if name is not None:
        from tracelens_ext.roofline.peaks import read_peaks

        read_peaks(name)
    return name


def _show_every_note(wanted: bool) -> bool:
    every_note.set(wanted)
    return wanted


TraceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A trace (PyTorch, Nsight Systems, rocprofv3, JAX); see tracelens-ext formats.",
    ),
]
TracesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help=(
            "Traces from PyTorch, Nsight Systems, rocprofv3 or JAX (see tracelens-ext "
            "formats): files, folders or patterns."
        ),
    ),
]
Annotation = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help=(
            "Use annotations (record_function, NVTX ranges) whose name matches as "
            "iterations.  [default: ProfilerStep#N]"
        ),
    ),
]
Capture = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE_OR_FOLDER",
        help="Capture traces, used to resolve the kernels inside CUDA graph launches.",
    ),
]
Device = Annotated[int | None, typer.Option(help="Only this device.")]
DevicePeaks = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        callback=_check_device_peaks,
        help=(
            "Peaks for the roofline: a file (TOML, or TraceLens JSON), or the name of "
            "a known device, such as 'H100 SXM'.  [default: the device of the trace]"
        ),
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite files that tracelens-ext did not write."),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print all rows of all tables as JSON instead."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
Step = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Only GPU work of ProfilerStep#N."),
]
Total = Annotated[
    bool,
    typer.Option("--total", help="Compare whole traces, even if both have iterations."),
]
UnlinkedKernels = Annotated[
    bool,
    typer.Option(
        "--include-unlinked-kernels/--exclude-unlinked-kernels",
        help="Count GPU events without a launch.  [default: include]",
        show_default=False,
    ),
]
UserRules = Annotated[
    list[Path] | None,
    typer.Option(help="TOML file with your own rules; they override all others."),
]


@dataclass(frozen=True)
class ReadingFlags(ReadingOptions):
    """How traces are read: the options of every command that reads them."""

    allow_truncated: Annotated[
        bool,
        typer.Option(
            "--allow-truncated",
            help="Analyze a truncated or damaged file up to the damage.",
        ),
    ] = False
    max_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=_size_of,
            help=(
                "Refuse files larger than this when unpacked, such as 5GB.  [default: "
                "64GB, or 100 times the file size for files above 200MB]"
            ),
        ),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="Number of threads or processes.  [default: one per core]",
        ),
    ] = None
    nsys: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM",
            help="Convert .nsys-rep files with this nsys.  [default: read them "
            "directly]",
        ),
    ] = None
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Analyze this rank of a file that contains several ranks.",
        ),
    ] = None
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Read the file even if it is in the cache."),
    ] = False
    verify_cache: Annotated[
        bool,
        typer.Option(
            "--verify-cache",
            help="Use the cache only if no byte of the file has changed (slower).",
        ),
    ] = False
    notes: Annotated[
        bool,
        typer.Option(
            "--notes",
            callback=_show_every_note,
            help="Print all notes instead of the first five lines.",
        ),
    ] = False


@dataclass(frozen=True)
class GraphReadingFlags(ReadingFlags):
    """How traces are read by commands that look into CUDA graphs."""

    kernel_annotations: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=(
                "PyTorch's CUDA graph annotations (JSON).  [default: found next to "
                "the trace]"
            ),
        ),
    ] = None


@dataclass(frozen=True)
class RuleOptions:
    """Which rules give kernels their categories."""

    rules: UserRules = None
    categorizer: Annotated[
        str | None,
        typer.Option(help="Use this categorizer first, such as jax or vllm:gpt-oss."),
    ] = None
    maps: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of engine/model maps (JSON) for --categorizer.",
        ),
    ] = None
    disable_pack: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Disable this rule pack; see `rules list`."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `TreePerfAnalyzer` and `KernelCategorizer.create`."""
        return {
            "rules": self.rules or (),
            "categorizer": self.categorizer,
            "maps": self.maps or (),
            "disabled_packs": self.disable_pack or (),
        }


@dataclass(frozen=True)
class AnalysisOptions(RuleOptions):
    """How traces are read and analyzed.

    Fields without an annotation are no options: each command decides about them itself.
    """

    capture: Capture = None
    kernel_categories: bool = True
    unlinked_kernels: bool = True
    python_frames: bool = False
    reading: Annotated[ReadingOptions, GraphReadingFlags] = DEFAULT_READING_OPTIONS

    def __post_init__(self) -> None:
        chooses_rules = self.rules or self.categorizer or self.disable_pack
        if chooses_rules and not self.kernel_categories:
            raise UsageError(
                "--rules, --categorizer and --disable-pack need kernel categories; "
                "leave out --no-kernel-categories"
            )
        if self.maps and not self.categorizer:
            raise UsageError(
                "--maps needs --categorizer ENGINE:MODEL to select one of the maps"
            )


@dataclass(frozen=True)
class SelectionOptions:
    """Which GPU events a command analyzes."""

    step: Step = None
    step_by: Annotated[
        Literal["launch", "time"] | None,
        typer.Option(
            help="Assign GPU work to steps by launch or time.  [default: launch]"
        ),
    ] = None
    stream: Annotated[int | None, typer.Option(help="Only this stream.")] = None
    device: Device = None

    def selection(self, category: str | None = None) -> EventFilter:
        """Return a filter for the selected GPU events, perhaps only those of a category."""
        from tracelens_ext.analysis.iterations.selection import EventFilter

        if self.step_by is not None and self.step is None:
            raise UsageError("--step-by needs --step N")
        step_by = self.step_by or "launch"
        return EventFilter(
            step=self.step,
            step_by=step_by,
            stream=self.stream,
            device=self.device,
            category=category,
        )


def selected_text(selection: EventFilter, gpu_events: GpuEvents) -> str:
    """Describe a selection, and the GPU events that it misses because their launch is unknown.

    Empty if all GPU events are selected.
    """
    missed_events = selection.left_out(gpu_events)
    if not missed_events:
        return selection.text
    return (
        f"{selection.text}. {missed_events} Use --step-by time to include it by time."
    )


def given_options(group: DataclassInstance) -> list[str]:
    """Return the names of the options in a group whose values differ from the defaults."""
    return [
        f"--{field.name.replace('_', '-')}"
        for field in fields(group)
        if getattr(group, field.name) != field.default
    ]


#: The fields that are options for reading traces.
READING_NAMES = {field.name for field in fields(ReadingFlags)} - {"folders"}


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by the options in its fields.

    `def longest(trace: Path, *, rules: RuleOptions)` becomes `def longest(*, trace: Path, rules:
    …, categorizer: …, maps: …, disable_pack: …)`. Fields that are not `Annotated` are no options.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = _group(parameter.annotation)
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            parameters += _options_of(group)

    @functools.wraps(command)
    def call(**values: Any) -> None:  # noqa: ANN401  # of any type
        arguments = {}
        for name, parameter in signature.parameters.items():
            group = _group(parameter.annotation)
            if group is None:
                arguments[name] = values[name]
            else:
                arguments[name] = _group_from_values(group, values)
        command(**arguments)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return call


def _group(annotation: Any) -> type[DataclassInstance] | None:  # noqa: ANN401  # any type
    """Return the dataclass whose fields are the options of a parameter; None for a plain option.

    `Annotated[ReadingOptions, GraphReadingFlags]` has the type `ReadingOptions`, and its options
    are the fields of `GraphReadingFlags`.
    """
    if annotation is ReadingOptions:
        return ReadingFlags
    for group in (annotation,) + getattr(annotation, "__metadata__", ()):
        if isinstance(group, type) and is_dataclass(group):
            return group
    return None


def _options_of(group: type[DataclassInstance]) -> list[inspect.Parameter]:
    """Return the options of a dataclass, with those of dataclasses within it."""
    annotations = get_type_hints(group, include_extras=True)
    options: list[inspect.Parameter] = []
    for field in fields(group):
        annotation = annotations[field.name]
        inner = _group(annotation)
        if inner is not None:
            options += _options_of(inner)
            continue
        if "meaning" in field.metadata:
            annotation = Annotated[annotation, _described_option(field, annotation)]
        if hasattr(annotation, "__metadata__"):
            option = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=annotation,
            )
            options.append(option)
    return options


def _described_option(field: Field[Any], annotation: object) -> Any:  # noqa: ANN401  # typer's, which has no public type
    """Return the option for a field of `ReportOptions`, as its metadata describes it.

    The layer of reports does not know the command line, so the help text is in the metadata.
    """
    description = field.metadata
    name = field.name.replace("_", "-")
    flags = [f"--{name}"]
    if annotation == bool | None or field.default is True:
        flags = [f"--{name}/--no-{name}"]
    help_text = description["meaning"]
    shown_default = description.get("shown_default")
    if shown_default is not None:
        help_text += f"  [default: {shown_default}]"
    callback = _check_device_peaks if field.name == "device_peaks" else None
    return typer.Option(
        *flags,
        metavar=description.get("metavar"),
        min=description.get("least"),
        max=description.get("most"),
        help=help_text,
        show_default=shown_default is None and field.default != "",
        callback=callback,
    )


def _group_from_values(
    group: type[DataclassInstance], values: dict[str, Any]
) -> DataclassInstance:
    """Return an instance of a dataclass, given the values of all options of a command."""
    annotations = get_type_hints(group, include_extras=True)
    arguments = {}
    for field in fields(group):
        inner = _group(annotations[field.name])
        if inner is not None:
            arguments[field.name] = _group_from_values(inner, values)
        elif field.name in values:
            arguments[field.name] = values[field.name]
    return group(**arguments)
