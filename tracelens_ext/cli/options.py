"""Options of commands, and what every command does with its arguments beyond what typer does.

They are described in docstrings, those that several commands share in this one; a command's wins:
`name FLAGS METAVAR LEAST..MOST: help`, all between optional. A flag that begins with two hyphens is
instead of `--name`.

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
    nsys PROGRAM: Have this nsys convert .nsys-rep files.  [default: they are read directly]
    kernel_annotations FILE: PyTorch's annotations of CUDA graphs (JSON).  [default: found
        beside the trace]
    no_cache: Read the file, whatever the cache holds.
    verify_cache: Use the cache only if no byte has changed (slower).
    notes: Print every note, not five lines of them.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand

from tracelens_ext.cli.screen import every_note, screen_width
from tracelens_ext.errors import UsageError
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.roofline.peaks import read_peaks
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tracelens_ext.analysis.iterations.selection import Selection
    from tracelens_ext.trace.gpu_events import GpuEvents

#: The options of every command that reads traces.
READING = {each.name for each in fields(ReadingOptions)} - {"folders"} | {"notes"}
_Made = TypeVar("_Made")


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
    reading: ReadingOptions = DEFAULT_READING_OPTIONS

    def __post_init__(self) -> None:
        if not self.kernel_categories and (self.rules or self.categorizer or self.without_pack):
            raise UsageError(
                "--rules, --categorizer and --without-pack need kernel categories; leave out"
                " --no-kernel-categories"
            )
        if self.maps and not self.categorizer:
            raise UsageError("--maps needs --categorizer ENGINE:MODEL, which names one of them")


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
        """What they select."""
        from tracelens_ext.analysis.iterations.selection import Selection

        if self.pstep_by is not None and self.pstep is None:
            raise UsageError("--pstep-by needs --pstep N")
        by = self.pstep_by or "launch"
        return Selection(self.pstep, by, self.stream, self.device, category)


def selected_text(selection: Selection, work: GpuEvents) -> str:
    """What is selected in words, and what is left out for want of a launch; empty for all."""
    left_out = selection.left_out(work)
    if not left_out:
        return selection.text
    return f"{selection.text}. {left_out} --pstep-by time goes by that."


def given_options(group: DataclassInstance) -> list[str]:
    """The options of a dataclass that are given, as they are written."""
    return [
        f"--{each.name.replace('_', '-')}"
        for each in fields(group)
        if getattr(group, each.name) != each.default
    ]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make what a command's docstring says of its parameters their options.

    A parameter of a dataclass stands for its fields, an option each: those that the docstring of
    the command, its own or this file's describes, and those of `ReportOptions`. What is `Annotated`
    is left to typer.
    """
    parameters = _options_of(command)
    keyword = inspect.Parameter.KEYWORD_ONLY
    names = [each.name for each in parameters]
    if "capture" not in names:
        parameters = [each for each in parameters if each.name != "kernel_annotations"]
    if "salvage" in names and "notes" not in names:
        option = _option("notes", False, *_described(__doc__)[1]["notes"])
        kind = Annotated[bool, option]
        parameters.append(inspect.Parameter("notes", keyword, default=False, annotation=kind))

    @functools.wraps(command)
    def with_dataclasses(**given: Any) -> None:  # noqa: ANN401  # whatever the command takes
        if given.get("device_peaks") is not None:
            read_peaks(given["device_peaks"])  # before a trace is read that takes long
        every_note.set(given.get("notes", False))
        _called(command, given)

    with_dataclasses.__doc__ = _described(command.__doc__ or "")[0]
    parameters = [each.replace(kind=keyword) for each in parameters]
    with_dataclasses.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_dataclasses.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_dataclasses


def _parameters(taker: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command, or the fields of a dataclass."""
    names = {"Path": Path} if is_dataclass(taker) else None  # what only type checkers import
    return [*inspect.signature(taker, locals=names, eval_str=True).parameters.values()]


def _options_of(taker: Callable[..., Any], *outer: str) -> list[inspect.Parameter]:
    """The options of a command, or those that stand for a dataclass; `outer` docstrings win."""
    described = dict(_of_report())
    if taker is not ReportOptions:
        own = [each.__doc__ or "" for each in reversed(getattr(taker, "__mro__", (taker,)))]
        for text in (__doc__, *own, *outer):
            described |= _described(text)[1]
    found = []
    for parameter in _parameters(taker):
        name = parameter.name
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            found += _options_of(kind, taker.__doc__ or "", *outer)
        elif not hasattr(kind, "__metadata__") and name in described:
            option = _option(name, parameter.default, *described[name])
            found.append(parameter.replace(annotation=Annotated[kind, option]))
        elif not is_dataclass(taker):
            found.append(parameter)  # typer's own
    return found


def _called(taker: Callable[..., _Made], given: dict[str, Any]) -> _Made:
    """What a command, or a dataclass, makes of the options that are its own."""
    kinds = {each.name: each.annotation for each in _parameters(taker)}
    groups = {n: k for n, k in kinds.items() if isinstance(k, type) and is_dataclass(k)}
    made = {name: _called(kind, given) for name, kind in groups.items()}
    return taker(**{name: given[name] for name in kinds if name in given} | made)


#: Section, words between name and colon, and help of each parameter that is described.
_Described = dict[str, tuple[str, list[str], str]]
_SECTION = re.compile(r"^(Operands:|Options:)$", re.MULTILINE)
#: Indented somehow, as the docstrings of plugins are; a line that is indented further goes on.
_PARAMETER = re.compile(r"^( +)(\w+)(.*?): (.*(?:\n\1 +\S.*)*)", re.MULTILINE)


def _described(doc: str) -> tuple[str, _Described]:
    """A docstring without its sections about parameters, and what these say."""
    told, *parts = _SECTION.split(inspect.cleandoc(doc))
    found = {
        name: (section, words.split(), re.sub(r"\n *", " ", text))
        for section, part in zip(parts[::2], parts[1::2], strict=True)
        for _, name, words, text in _PARAMETER.findall(part)
    }
    return told.strip(), found


def _option(name: str, default: object, section: str, words: list[str], text: str) -> Any:  # noqa: ANN401  # typer's, which has no public type
    text = re.sub(r" *\[default:", "  [default:", text)
    flags = [each for each in words if each.startswith("-")]
    limits = next((each for each in words if re.fullmatch(r"[\d.]*\.\.[\d.]*", each)), "..")
    metavar = next((each for each in words if each not in (*flags, limits)), None)
    has_default = default not in (None, "", Path(), inspect.Parameter.empty)
    shown = has_default and "[default:" not in text
    if section == "Operands:":
        return typer.Argument(metavar=metavar, help=text, show_default=shown)
    if not any(each.startswith("--") for each in flags):
        long = name.replace("_", "-")
        flags.insert(0, f"--{long}/--no-{long}" if default is True else f"--{long}")
    least, most = (json.loads(end or "null") for end in limits.split(".."))
    more: dict[str, Any] = {"parser": size_of} if name == "max_bytes" else {}
    more |= {"metavar": metavar, "help": text, "show_default": shown, "min": least, "max": most}
    return typer.Option(*flags, **more)


@functools.cache
def _of_report() -> _Described:
    """What the fields of `ReportOptions` say of themselves."""
    lines = ["", "Options:"]
    for field in fields(ReportOptions):
        said = field.metadata
        long = field.name.replace("_", "-")
        words = [field.name, f"{said.get('least', '')}..{said.get('most', '')}"]
        words.append(said.get("metavar", ""))
        if field.type == "bool | None":
            words.append(f"--{long}/--no-{long}")
        shown = f" [default: {said['shown_default']}]" if "shown_default" in said else ""
        lines.append(f"    {' '.join(words)}: {said['meaning']}{shown}")
    return _described("\n".join(lines))[1]


def size_of(text: str) -> int:
    """The size that `--max-bytes` gives."""
    from tracelens_ext.readers.cache.folder import parse_size

    if size := parse_size(text):
        return size
    raise UsageError(f"--max-bytes {text!r} is no size; write it as 5GB or 500MB")


_WIDEST = 120  # columns of a help text
_MAY_BE_EMPTY = "--title"
#: typer's names of types → what people write.
_WRITTEN = {"int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER"}
_WRITTEN |= {"path": "FILE", "file": "FILE", "directory": "FOLDER", "list[Path]": "FILE"}
_WRITTEN |= {"str": "NAME", "list[str]": "NAME"}


def help_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:  # noqa: ANN401  # click's, or typer's own copy of it
    """The row of a parameter in a help text, types as people write them."""
    if not (record := parameter.get_help_record(ctx)):
        return None
    written, text = record
    if parameter.param_type_name == "argument":
        return written.partition(" <")[0].upper(), text
    return re.sub(r"<([^<>]*)>", lambda found: _WRITTEN.get(found[1], found[1]), written), text


class CarefulCommand(TyperCommand):
    """A command whose options do not swallow the option that follows.

    In `report TRACE --html --output x.xlsx` the value of `--html` was forgotten; typer takes
    `--output` for it. A value that begins like an option is given as `--html=--output`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # click's, or typer's own copy of it
        """Refuse an option whose value is the name of another, or empty (a variable not set)."""
        parameters: Iterable[Any] = self.get_params(ctx)
        awaits = {
            name: 0 if each.is_flag or each.count else each.nargs
            for each in parameters
            if each.param_type_name == "option"
            for name in (*each.opts, *each.secondary_opts)
        }
        words = iter(args)
        for word in words:
            if word == "--":
                break
            name = word
            awaited = awaits.get(word, 0)
            if word not in awaits and re.match("-[^-]", word):  # flags in one word, as in -vt
                for at, letter in enumerate(word[1:], start=2):
                    if most := awaits.get(f"-{letter}"):
                        name = f"-{letter}"
                        awaited = most - (at < len(word))
                        break
            values = [*islice(words, awaited)]
            if word.endswith("=") and word[:-1] in awaits:
                name = word[:-1]
                awaited = 1
                values = [""]
            if len(values) < awaited or any(v in awaits or v.startswith("--") for v in values):
                ctx.fail(f"Option {name!r} requires an argument.")
            if "" in values and name != _MAY_BE_EMPTY:
                ctx.fail(f"Option {name!r} has an empty value; give one, or leave the option out.")
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:  # noqa: ANN401  # click's, or typer's own copy of it
        """The help text, as wide as the terminal."""
        ctx.terminal_width = min(screen_width(), _WIDEST) - 2
        return super().get_help(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401  # likewise
        """The usage without brackets that say nothing."""
        return [re.sub(r"[{}]", "", each).upper() for each in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write the arguments, the command's own options, and the names of those about reading."""
        title = "Options about reading, which 'tracelens-ext --help' explains"
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], title: []}
        for each in self.get_params(ctx):
            if record := help_record(each, ctx):
                kind = f"{each.param_type_name.capitalize()}s"
                sections[title if each.name in READING else kind].append(record)
        for kind, records in sections.items():
            if records:
                with formatter.section(kind):
                    if kind == title:
                        formatter.write_text(", ".join(name for name, _ in records))
                    else:
                        formatter.write_dl(records)
