# mypy: disable-error-code="empty-body"
"""The hooks: everything a plugin can add; docs/how-to/write-a-plugin.md has an example of each.

A plugin is a module (or any object) named by an entry point of the group `tracelens_ext`:

    [project.entry-points.tracelens_ext]
    my-company = "my_company_tracelens"

It implements the hooks that it needs as functions with these names, marked with `hookimpl`. A
function may leave out arguments that it does not use. A hook is called once per run, never once per
kernel. A plugin that fails is reported by name, and the run goes on without it.

The order does not depend on the order of installation. It depends on `hookimpl(priority=…)`, or on
the `priority` in a rule pack, and then on the name of the plugin.

Built-in rules, tables, readers and commands use the same hooks. All plugins are imported at the
start of a run, so a plugin should import slow modules (pandas) inside its functions.
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

# The packages that use a hook depend on this one, so their types are only named in docstrings.

PROJECT: Final = "tracelens_ext"
"""The project name for pluggy and the entry point group."""

_OPTIONS: Final = "tracelens_ext_options"
_hookspec: Final = pluggy.HookspecMarker(PROJECT)
_marker: Final = pluggy.HookimplMarker(PROJECT)
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HookOptions:
    """The options that a plugin gives for one of its hooks."""

    priority: int = 0  #: hooks with a higher priority are called first
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
        priority: plugins with a higher priority come first.
        selectable: use it only if the user selects it with `--categorizer PLUGIN` (for
            `tracelens_categorize_kernels`).

    Rule packs declare both in their files.
    """

    def mark(target: _Function) -> _Function:
        setattr(target, _OPTIONS, HookOptions(priority, selectable))
        return _marker(target)

    if function is None:
        return mark
    return mark(function)


def options_of(function: Callable[..., Any]) -> HookOptions:
    """Return the options given to `hookimpl`; the defaults for pluggy's own marker."""
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
    """Categorize kernels in Python: one call per run, with all distinct kernels at once.

    Args:
        table: one row for each distinct pair, columns `kernel_name` (text) and `cpu_op` (the
            operation that launched it, None where the trace does not say). It is a copy.

    Returns:
        One category per row, in the same order; None (or NaN) where the plugin has no opinion. Then
        the next plugin or rule decides.
    """


@_hookspec
def tracelens_sheets() -> Iterable[Any]:
    """Declared tables, which become sheets of the report.

    Returns:
        `tracelens_ext.report.tables.table.Table` objects.
    """


@_hookspec
def tracelens_report_sheets(analyzer: object) -> Mapping[str, pd.DataFrame]:
    """Tables to add to the report as sheets, without a declaration.

    Args:
        analyzer: the `TreePerfAnalyzer` of the trace that is being reported.

    Returns:
        Sheet name (at most 31 characters) → table. A name that the report already uses is refused.
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
        `Command` objects. A name that is already taken is refused.
    """


@_hookspec
def tracelens_performance_models() -> Mapping[str, Callable[[Any], Any]]:
    """Performance models: the work and the memory traffic of an operation, from its arguments.

    Returns:
        Operation name, such as `my_company::fused_mlp` (or the beginning of names and `*`) → a
        function of a `tracelens_ext.roofline.operation.Operation` that returns its `Cost`, or
        raises `NoModelError` with the reason why there is none. Models of plugins take precedence
        over the built-in ones.
    """


@_hookspec
def tracelens_findings() -> Iterable[Any]:
    """Detectors: what would save time, and what to do about it.

    Returns:
        `tracelens_ext.findings.inspection.Detector` objects. Those of plugins are called before the
        built-in ones. Wall time that a detector claims cannot be claimed again by a later one.
    """


class Reader:
    """Reads one trace format.

    Derive from this class, or write a class with at least `name`, `recognises` and `read`.
    """

    name: str = ""  #: what messages call the format
    #: how the names of such files end: folders and patterns take files with these names for traces.
    #: None for a suffix that other files have too, such as `.csv`
    suffixes: tuple[str, ...] = ()
    how_to_record: str = ""  #: how such a file is made, in a line
    extra: str = ""  #: the extra of this distribution that it needs; empty for none

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a file has this format.

        Args:
            path: the file. Its name may mislead, so decide by its first bytes.
            head: the first bytes, unpacked if the file is gzipped; at least 4,096 unless the file
                is shorter.
        """
        raise NotImplementedError

    def read(self, path: Path) -> Mapping[str, Any] | Trace:
        """Read a file.

        Returns:
            A `Trace`, or a document in the form that PyTorch's profiler writes:
            `{"traceEvents": [...]}`, with times in µs.
        """
        raise NotImplementedError

    def read_source(self, source: Any) -> Mapping[str, Any] | Trace:  # noqa: ANN401
        """Read a file or an open stream. By default, this calls `read`.

        Args:
            source: a `tracelens_ext.readers.source.ByteSource`. It has the unpacked bytes, none of
                which have been read, the `path`, the `progress` to report, and the `cache` for
                converted files.

        Raises:
            TraceFormatError: the file cannot be read; another reader may try.
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
        Readers. The first one that recognizes a file reads it. The built-in readers are asked
        before those of other plugins.
    """
