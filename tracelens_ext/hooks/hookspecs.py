# mypy: disable-error-code="empty-body"
"""The hooks: everything a plugin can add; docs/how-to/write-a-plugin.md has an example of each.

A plugin is a module (or any object) named by an entry point of the group `tracelens_ext`:

    [project.entry-points.tracelens_ext]
    my-company = "my_company_tracelens"

It implements the hooks it needs, as functions of these names marked with `hookimpl`, and takes
only the arguments it uses. A hook is called once a run, never once a kernel. A plugin that
fails is reported by name, and the run goes on without it.

The order does not depend on the order of installation: `hookimpl(priority=…)`, or `priority` in a
rule pack, decides, then the name of the plugin.

What comes with this distribution uses the same hooks. All plugins are imported at the start of a
run, so a plugin should import what is slow (pandas) inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import pluggy

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

# The packages that use a hook depend on this one, so it names no type of theirs: the docstrings do.

PROJECT: Final = "tracelens_ext"
"""The project name for pluggy and the entry point group."""

_OPTIONS: Final = "tracelens_ext_options"
_hookspec: Final = pluggy.HookspecMarker(PROJECT)
_marker: Final = pluggy.HookimplMarker(PROJECT)
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HookOptions:
    """What a plugin says about one of its hooks."""

    priority: int = 0  #: among plugins, higher first
    #: when True, the hook takes part only when a user chooses the plugin by name.
    selectable: bool = False


@overload
def hookimpl(function: _Function) -> _Function: ...
@overload
def hookimpl(
    *, priority: int = 0, selectable: bool = False
) -> Callable[[_Function], _Function]: ...
def hookimpl(
    function: _Function | None = None, *, priority: int = 0, selectable: bool = False
) -> _Function | Callable[[_Function], _Function]:
    """Mark a function of a plugin as the implementation of the hook it is named after.

    Args:
        function: the function.
        priority: among plugins, higher first.
        selectable: take part only when chosen with `--categorizer PLUGIN` (for
            `tracelens_categorize_kernels`).

    Rule packs carry their own of both.
    """

    def mark(target: _Function) -> _Function:
        setattr(target, _OPTIONS, HookOptions(priority, selectable))
        return _marker(target)

    if function is None:
        return mark
    return mark(function)


def options_of(function: Callable[..., Any]) -> HookOptions:
    """Return what `hookimpl` was given for a function; the defaults for pluggy's own marker."""
    options = getattr(function, _OPTIONS, None)
    if isinstance(options, HookOptions):
        return options
    return HookOptions()


@_hookspec
def tracelens_rule_packs() -> Iterable[Any]:
    """Rule packs to add.

    Returns:
        Any mix of paths of TOML rule packs, paths of JSON engine/model maps, the same tables as
        dicts, and `tracelens_ext.categorize.RulePack` objects.
    """


@_hookspec
def tracelens_categorize_kernels(
    table: pd.DataFrame,
) -> Sequence[str | None] | pd.Series[Any]:
    """Categorize kernels in Python: one call a run, with every distinct kernel at once.

    Args:
        table: one row for each distinct pair, columns `kernel_name` (text) and `cpu_op` (the
            operation that launched it, None where the trace does not say). It is a copy.

    Returns:
        One category a row, in the same order; None (or NaN) where the plugin has no opinion,
        and the next plugin or rule is asked.
    """


@_hookspec
def tracelens_sheets() -> Iterable[Any]:
    """Tables that say what they hold: sheets of the report.

    Returns:
        `tracelens_ext.report.tables.table.Table` objects.
    """


@_hookspec
def tracelens_report_sheets(analyzer: object) -> Mapping[str, pd.DataFrame]:
    """Tables to add to the report as sheets, the short way.

    Args:
        analyzer: the `TreePerfAnalyzer` of the trace that is being reported.

    Returns:
        Sheet name (at most 31 characters) → table. A name that the report already has is
        refused.
    """


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `tracelens-ext`."""

    name: str  #: what it is called
    summary: str  #: its line of `--help`, at most 64 characters
    #: a function as typer takes it, or a `typer.Typer` with several commands; or, as a text,
    #: `module:function`, which is imported when the command is called. A parameter of the type
    #: `tracelens_ext.settings.ReadingOptions` gets the options about reading
    function: Any
    #: where `--help` lists it: `Inspect`, `Diagnose`, `Compare` or `Manage`
    group: str = "Inspect"
    #: what stands at the end of its help, without `tracelens-ext`
    examples: tuple[str, ...] = ()
    #: makes sections at the end of its help: title → rows of a name and what it means
    help_sections: Callable[[], Mapping[str, Sequence[tuple[str, str]]]] | None = None
    #: its arguments are the command line of another program, whose options are not its own
    runs_program: bool = False


@_hookspec
def tracelens_commands() -> Iterable[Command]:
    """Commands of `tracelens-ext`.

    Returns:
        `Command` objects. A name that there is already is refused.
    """


@_hookspec
def tracelens_performance_models() -> Mapping[str, Callable[[Any], Any]]:
    """Performance models: what an operation has to compute and to move, from its arguments.

    Returns:
        Operation name, such as `my_company::fused_mlp` (or the beginning of names and `*`) → a
        function of a `tracelens_ext.roofline.operation.Operation` that returns its `Cost`, or
        raises `NoModelError` with the reason why there is none. Models of plugins go before the
        built-in ones.
    """


@_hookspec
def tracelens_findings() -> Iterable[Any]:
    """Detectors: what would save time, and what to do about it.

    Returns:
        `tracelens_ext.findings.inspection.Detector` objects. Those of plugins are asked before the
        built-in ones, and what they claim of the wall time no other can.
    """


class Reader:
    """Reads one trace format.

    Derive from this class, or write one that has `name`, `recognises` and `read` alone.
    """

    name: str = ""  #: what messages call the format
    #: how the names of such files end: folders and patterns take files with these names for traces.
    #: None for a suffix that other files have too, such as `.csv`
    suffixes: tuple[str, ...] = ()
    how_to_record: str = ""  #: how such a file is made, in a line
    extra: str = ""  #: the extra of this distribution that it needs; empty for none

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this format; `path`: of an open file, what it is called.

        `head`: its first bytes, unpacked when the file is gzipped; at least 4,096 unless the file
        is shorter. Go by these: file names deceive.
        """
        raise NotImplementedError

    def read(self, path: Path) -> Mapping[str, Any] | Trace:
        """Read a file, as a `Trace` or a document as PyTorch's profiler writes it.

        That is `{"traceEvents": [...]}`, with times in µs.
        """
        raise NotImplementedError

    def read_source(self, source: Any) -> Mapping[str, Any] | Trace:  # noqa: ANN401
        """Read a file, or an open file; as `read`, which this method calls unless it is overridden.

        `source`, a `tracelens_ext.readers.source.ByteSource`, has the unpacked bytes, of which none
        are read yet, the `path`, the `progress` to report and the `cache` for what is converted.
        Raises TraceFormatError where the file cannot be read; other readers may be asked.
        """
        if source.file is None:
            raise TraceFormatError(
                source.path,
                f"is an open file of the format {self.name}",
                "give its path",
            )
        return self.read(source.file)


@_hookspec
def tracelens_readers() -> Iterable[Reader]:
    """Readers of trace formats.

    Returns:
        Readers. The first that recognizes a file reads it. This distribution's own are asked
        before those of other plugins.
    """
