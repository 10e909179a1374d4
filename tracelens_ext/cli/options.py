"""Options of commands: described in docstrings, those that several commands share here, once."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from tracelens_ext.errors import UsageError
from tracelens_ext.settings import AS_USUAL, ReadingOptions
from tracelens_ext.tables.options import ReportOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tracelens_ext.iterations.iterations import Selection
    from tracelens_ext.work.gpu_work import GpuWork

#: Described as in the docstring of a command, which wins: `name FLAGS METAVAR LEAST..MOST: help`;
#: all between are optional. A flag that begins with two hyphens is instead of `--name`.
_SHARED = """
    Operands:
        trace TRACE: A trace of PyTorch, Nsight Systems, rocprofv3 or JAX (tracelens-ext formats).
        traces TRACE: Traces of PyTorch, Nsight Systems, rocprofv3 or JAX (tracelens-ext formats);
            folders of them; patterns.

    Options:
        annotation REGEX: Take annotations (record_function, NVTX ranges) whose name matches for
            iterations.  [default: ProfilerStep#N]
        capture FILE_OR_FOLDER: Traces in which the CUDA graphs were captured: tell what is in graph
            launches.
        categorizer: Ask this plugin or map first, such as jax or vllm:gpt-oss.
        device: Only this device.
        force: Overwrite files that tracelens-ext did not make.
        json: Print all tables as JSON instead, every row of them.
        maps FOLDER: Folder of engine/model maps (JSON) for --categorizer.
        pstep N 0..: Only GPU work of ProfilerStep#N.
        quiet --quiet -q: Print nothing but errors.
        rules: TOML file of your own rules; wins over all others.
        total: Compare whole traces, even where both have iterations.
        without_pack NAME: Switch off this pack; see `rules list`.

        salvage: Of a cut off or damaged file, analyse the events before that.
        max_bytes SIZE: Refuse more text than this, unpacked, such as 5GB.  [default: 64GB, or 100
            times the file beyond 200MB]
        jobs N 1..1024: Threads or processes.  [default: one a core]
        nsys PROGRAM: Converts .nsys-rep files.  [default: nsys on the PATH]
        kernel_annotations FILE: PyTorch's annotations of CUDA graphs (JSON).  [default: found
            beside the trace]
        no_cache: Read the file, whatever the cache holds.
        verify_cache: Use the cache only if no byte has changed (slower).
        notes: Print every note, not five lines of them.
    """
#: The options of every command that reads traces.
READING = frozenset(
    {"salvage", "max_bytes", "jobs", "nsys", "kernel_annotations", "no_cache"}
    | {"verify_cache", "notes"}
)
_Made = TypeVar("_Made")
_SECTIONS = ("Operands:", "Options:")


@dataclass(frozen=True)
class Screen:
    """How much is shown on the terminal."""

    notes: bool = False  #: every note


@dataclass(frozen=True)
class RuleOptions:
    """Which rules give kernels their categories."""

    rules: list[Path] | None = None
    categorizer: str | None = None
    maps: list[Path] | None = None
    without_pack: list[str] | None = None

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

    capture: Path | None = None
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
    """Likewise, perhaps of linked GPU events alone.

    Options:
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
    """


@dataclass(frozen=True)
class AnalysisOfReport(AnalysisOfLinked):
    """Likewise, perhaps without categories.

    Options:
        kernel_categories: Give every kernel a category.
    """


@dataclass(frozen=True)
class SelectionOptions:
    """Which GPU events are asked about.

    Options:
        pstep_by: Work of that step by launch, or by time.  [default: launch]
        stream: Only this stream.
    """

    pstep: int | None = None
    pstep_by: Literal["launch", "time"] | None = None
    stream: int | None = None
    device: int | None = None

    def selection(self, category: str | None = None) -> Selection:
        """What they select.

        Raises:
            UsageError: they do not go together.
        """
        from tracelens_ext.iterations.iterations import Selection

        if self.pstep_by is not None and self.pstep is None:
            raise UsageError("--pstep-by needs --pstep N")
        by = self.pstep_by or "launch"
        return Selection(self.pstep, by, self.stream, self.device, category)


def selected_text(selection: Selection, work: GpuWork) -> str:
    """What is selected in words, and what is left out for want of a launch; empty for all."""
    left_out = selection.left_out(work)
    if not left_out:
        return selection.text
    return f"{selection.text}. {left_out} --pstep-by time goes by that."


GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]
_GAP_TOP = 15
_GAP_SORT: GapSort = "avg"


@dataclass(frozen=True)
class GapOptions:
    """What is asked about gaps.

    Options:
        gap_top 0..: Kernel pairs, longest gaps and (at most 8) rows of what the host was in to
            print.  [default: 15]
        gap_sort: What kernel pairs are sorted by, largest first.  [default: avg]
        hist_min 0..: Shortest gap of the histogram, µs.
        hist_max 0..: Longest gap of the histogram, µs.
        log: Histogram bins of one ratio, not one width.
        all: In the JSON, every gap as a row too.
    """

    gap_top: int | None = None
    gap_sort: GapSort | None = None
    hist_min: float | None = None
    hist_max: float | None = None
    log: bool = False
    all: bool = False

    def __post_init__(self) -> None:
        for bound in (self.hist_min, self.hist_max):
            if bound is not None and not math.isfinite(bound):
                raise UsageError("--hist-min and --hist-max are numbers of µs")
        low = self.hist_min or 0.0
        if self.hist_max is not None and self.hist_max <= low:
            raise UsageError(
                f"--hist-max {self.hist_max:g} is not above --hist-min {low:g}: no gap fits"
            )

    @property
    def top(self) -> int:
        """Pairs and longest gaps to print."""
        return _GAP_TOP if self.gap_top is None else self.gap_top

    @property
    def sort(self) -> GapSort:
        """What the pairs are sorted by."""
        return self.gap_sort or _GAP_SORT

    def check_unused(self) -> None:
        """Check that none is given, as gaps are not wanted.

        Raises:
            UsageError: one is.
        """
        if given := given_options(self):
            verb = "need" if len(given) > 1 else "needs"
            raise UsageError(f"{', '.join(given)} {verb} --gaps (or --gap-output FILE)")


def given_options(group: DataclassInstance) -> list[str]:
    """The options of a dataclass that are given, as they are written."""
    return [
        f"--{each.name.replace('_', '-')}"
        for each in fields(group)
        if getattr(group, each.name) != each.default
    ]


@dataclass(frozen=True)
class OwnGapOptions(GapOptions):
    """Likewise, by the shorter names that the command `gaps` has.

    Options:
        gap_top --gap-top --top -t 0..: Kernel pairs, longest gaps and (at most 8) host rows to
            print.
        gap_sort --gap-sort --sort -s: What kernel pairs are sorted by, largest first.
    """

    gap_top: int = _GAP_TOP
    gap_sort: GapSort = _GAP_SORT


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make what a command's docstring says of its parameters their options.

    A parameter of a dataclass stands for its fields, an option each: those that its docstring, or
    `_SHARED`, describes, and those of `ReportOptions`. What is `Annotated` is left to typer.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=keyword) for each in _options_of(command)]
    names = [each.name for each in parameters]
    if "capture" not in names:
        parameters = [each for each in parameters if each.name != "kernel_annotations"]
    adds_notes = "salvage" in names and "notes" not in names
    if adds_notes:
        parameters += _options_of(Screen)

    @functools.wraps(command)
    def with_dataclasses(**given: Any) -> None:  # noqa: ANN401  # whatever the command takes
        if adds_notes:
            given.pop("notes")
        if given.get("device_peaks") is not None:
            from tracelens_ext.roofline.peaks import read_peaks

            read_peaks(given["device_peaks"])  # before a trace is read that takes long
        _called(command, given)

    with_dataclasses.__doc__ = _described(command.__doc__ or "")[0]
    with_dataclasses.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_dataclasses.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_dataclasses


def _parameters(taker: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command, or the fields of a dataclass."""
    if not is_dataclass(taker):
        return list(inspect.signature(taker, eval_str=True).parameters.values())
    types = get_type_hints(taker, None, {"Path": Path})
    types |= {"max_bytes": str | None} if taker is ReadingOptions else {}
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            each.name,
            keyword,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=types[each.name],
        )
        for each in fields(taker)
    ]


def _options_of(taker: Callable[..., Any]) -> list[inspect.Parameter]:
    """The options of a command, or those that stand for a dataclass."""
    own = [each.__doc__ or "" for each in reversed(getattr(taker, "__mro__", (taker,)))]
    texts = [_SHARED, *own] if taker is not ReportOptions else []
    described = {name: said for text in texts for name, said in _described(text)[1].items()}
    found = []
    for parameter in _parameters(taker):
        name, kind = parameter.name, parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            found += _options_of(kind)
        elif hasattr(kind, "__metadata__"):
            found.append(parameter)
        elif name in described:
            option = _option(name, parameter.default, *described[name])
            found.append(parameter.replace(annotation=Annotated[kind, option]))
        elif name in ReportOptions.__dataclass_fields__:
            found.append(parameter.replace(annotation=Annotated[kind, report_option(name)]))
        elif not is_dataclass(taker):
            found.append(parameter)  # typer's own
    return found


def _called(taker: Callable[..., _Made], given: dict[str, Any]) -> _Made:
    """What a command, or a dataclass, makes of the options that are its own; they are taken out."""
    chosen: dict[str, Any] = {}
    for parameter in _parameters(taker):
        name, kind = parameter.name, parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            chosen[name] = _called(kind, given)
        elif name in given:
            chosen[name] = given.pop(name)
    if "max_bytes" in chosen:
        chosen["max_bytes"] = size_of(chosen["max_bytes"])
    return taker(**chosen)


#: Section, words between name and colon, and help of each parameter that is described.
_Described = dict[str, tuple[str, list[str], str]]


def _described(doc: str) -> tuple[str, _Described]:
    """A docstring without its sections about parameters, and what these say."""
    told, found, section, name = [], _Described(), "", ""
    for line in inspect.cleandoc(doc).splitlines():
        if line in _SECTIONS:
            section = line
        elif not section:
            told.append(line)
        elif line.startswith(" " * 8) and name in found:
            kind, words, text = found[name]
            found[name] = kind, words, f"{text} {line.strip()}"
        elif line.strip():
            head, _, text = line.partition(": ")
            name, *words = head.split()
            found[name] = section, words, text
    return "\n".join(told).strip(), found


def _option(name: str, default: object, section: str, words: list[str], text: str) -> Any:  # noqa: ANN401  # typer's, which has no public type
    text = re.sub(r" *\[default:", "  [default:", text)
    flags = [each for each in words if each.startswith("-")]
    limits = next((each for each in words if re.fullmatch(r"[\d.]*\.\.[\d.]*", each)), "..")
    metavars = [each for each in words if each != limits and each not in flags]
    has_default = default not in (None, "", Path(), inspect.Parameter.empty)
    more: dict[str, Any] = {
        "metavar": metavars[0] if metavars else None,
        "help": text,
        "show_default": has_default and "[default:" not in text,
    }
    if section == "Operands:":
        return typer.Argument(**more)
    if not any(each.startswith("--") for each in flags):
        long = name.replace("_", "-")
        flags.insert(0, f"--{long}/--no-{long}" if default is True else f"--{long}")
    least, most = (json.loads(end or "null") for end in limits.split(".."))
    return typer.Option(*flags, **more, min=least, max=most)


def report_option(name: str) -> Any:  # noqa: ANN401  # likewise
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


def size_of(text: str | None) -> int | None:
    """The size that `--max-bytes` gives.

    Raises:
        UsageError: it is none.
    """
    from tracelens_ext.cache.folder import parse_size

    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise UsageError(f"--max-bytes {text!r} is no size; write it as 5GB or 500MB")
    return size
