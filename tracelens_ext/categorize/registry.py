"""The plugins: found, loaded one by one, and asked; whatever fails is reported by name.

Nothing a plugin does can stop a run: each is imported, registered and called under a guard that
turns its errors into a line in `PluginRegistry.problems`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pluggy

from tracelens_ext.categorize import hookspecs
from tracelens_ext.categorize.guard import Guard, call_within, time_limit
from tracelens_ext.categorize.hookspecs import PROJECT, HookOptions, Reader, options_of
from tracelens_ext.categorize.loading import load_pack, parse_pack
from tracelens_ext.categorize.maps import load_map_file
from tracelens_ext.categorize.rules import RulePack
from tracelens_ext.errors import RuleError, TracelensError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    import pandas as pd

    from tracelens_ext.trace import Trace

NO_PLUGINS_VARIABLE: Final = "TRACELENS_EXT_NO_PLUGINS"
"""Set to 1 to use only what this distribution itself brings."""
_OWN_DISTRIBUTION: Final = "tracelens-ext"


class EntryPointLike(Protocol):
    """What the registry asks of an entry point."""

    @property
    def name(self) -> str:
        """What the plugin is called."""

    @property
    def value(self) -> str:
        """What it names, `module` or `module:object`."""

    @property
    def dist(self) -> Distribution | None:
        """The installed distribution it belongs to."""

    def load(self) -> Any:  # noqa: ANN401
        """Import it."""


class PluginAnswerError(TracelensError):
    """A plugin's answer has the wrong shape."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An installed plugin, loaded or not.

    Attributes:
        name: the name of its entry point.
        module: what the entry point names.
        distribution: the installed project it belongs to, with its version.
        own: True for what this distribution brings.
        hooks: the hooks it implements; empty when it could not be loaded.
    """

    name: str
    module: str
    distribution: str
    own: bool
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedPack:
    """A rule pack and the plugin that brought it."""

    pack: RulePack
    plugin: Plugin


@dataclass(frozen=True, slots=True)
class OfferedHook:
    """One implementation of a hook, ready to be called."""

    plugin: Plugin
    function: Callable[..., Any]
    argument_names: tuple[str, ...]
    options: HookOptions

    def call(self, **arguments: object) -> Any:  # noqa: ANN401
        """Call it with those of the arguments it takes; strangers under a time limit."""
        wanted = [arguments[name] for name in self.argument_names]
        if self.plugin.own:
            return self.function(*wanted)
        return call_within(time_limit(), self.function, wanted)


@dataclass(frozen=True, slots=True)
class OfferedReader:
    """A reader and the plugin that brought it."""

    reader: Reader
    plugin: Plugin


class PluginRegistry:
    """The plugins that take part in a run.

    Args:
        found: entry points and the distributions they come from, this distribution's first.

    Attributes:
        plugins: every plugin found, loaded or not.
        problems: what failed, each `NAME: error` in one line; grows while hooks are called.
    """

    def __init__(self, found: Iterable[EntryPointLike]) -> None:
        self.problems: list[str] = []
        self.plugins: list[Plugin] = []
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for entry_point in found:
            self._load(entry_point)

    def guard(self, name: str) -> Guard:
        """A context in which whatever the plugin of that name raises becomes a problem."""
        return Guard(name, self.problems)

    def rule_packs(self) -> list[OfferedPack]:
        """Every rule pack of every plugin; a broken pack is a problem, its neighbours stay."""
        return list(self._rule_packs)

    @cached_property
    def _rule_packs(self) -> list[OfferedPack]:
        offered = []
        for hook in self.hooks("tracelens_rule_packs"):
            with self.guard(hook.plugin.name):
                for item in _iterable(hook.call(), "tracelens_rule_packs"):
                    with self.guard(hook.plugin.name):
                        packs = _packs_from(item, vetted=hook.plugin.own)
                        offered += [OfferedPack(pack, hook.plugin) for pack in packs]
        return offered

    def categorizers(self) -> list[OfferedHook]:
        """Every Python categoriser, in order of precedence."""
        return self.hooks("tracelens_categorize_kernels")

    def report_sheets(self, analyzer: object, taken: Iterable[str] = ()) -> dict[str, pd.DataFrame]:
        """The extra sheets of all plugins.

        Args:
            analyzer: the `TreePerfAnalyzer` to hand over.
            taken: names of sheets the report already has (case does not matter to Excel).
        """
        import pandas as pd

        sheets: dict[str, pd.DataFrame] = {}
        names = {name.lower() for name in taken}
        for hook in self.hooks("tracelens_report_sheets"):
            with self.guard(hook.plugin.name):
                answer = hook.call(analyzer=analyzer)
                if not isinstance(answer, Mapping):
                    raise PluginAnswerError(
                        "tracelens_report_sheets: expected sheet name → DataFrame, "
                        f"got {type(answer).__name__}"
                    )
                for name, table in answer.items():
                    with self.guard(hook.plugin.name):
                        if not isinstance(name, str) or not isinstance(table, pd.DataFrame):
                            raise PluginAnswerError(
                                "tracelens_report_sheets: expected sheet name → DataFrame, "
                                f"got {name!r} → {type(table).__name__}"
                            )
                        if name.lower() in names:
                            raise PluginAnswerError(f"sheet {name!r}: the report has one already")
                        names.add(name.lower())
                        sheets[name] = table
        return sheets

    def readers(self) -> list[OfferedReader]:
        """The extra readers of all plugins, in order of precedence."""
        found: list[OfferedReader] = []
        for hook in self.hooks("tracelens_readers"):
            with self.guard(hook.plugin.name):
                for reader in _iterable(hook.call(), "tracelens_readers"):
                    for method in ("recognises", "read"):
                        if not callable(getattr(reader, method, None)):
                            raise PluginAnswerError(
                                f"tracelens_readers: {reader!r} has no method {method!r}"
                            )
                    found.append(OfferedReader(reader, hook.plugin))
        return found

    def read_trace(self, path: Path, head: bytes) -> Mapping[str, Any] | Trace | None:
        """Read a file with the first plugin that recognises it.

        Args:
            path: the file.
            head: its first bytes, unpacked.

        Returns:
            What the reader returned (see `hookspecs.Reader`); None when no plugin recognises the
            file, or the one that did failed (then a problem says how).
        """
        for offered in self.readers():
            recognised = False
            with self.guard(offered.plugin.name):
                recognised = bool(offered.reader.recognises(path, head))
            if recognised:
                with self.guard(offered.plugin.name):
                    return offered.reader.read(path)
        return None

    def hooks(self, name: str) -> list[OfferedHook]:
        """The implementations of one hook: higher priority first, then by plugin name."""
        plugins = {plugin.name: plugin for plugin in self.plugins}
        offered = [
            OfferedHook(
                plugins[implementation.plugin_name],
                implementation.function,
                tuple(implementation.argnames),
                options_of(implementation.function),
            )
            for implementation in getattr(self._manager.hook, name).get_hookimpls()
        ]
        return sorted(offered, key=lambda hook: (-hook.options.priority, hook.plugin.name))

    def _load(self, entry_point: EntryPointLike) -> None:
        plugin = _describe(entry_point)
        if self._manager.has_plugin(plugin.name):
            # Two of one name stay apart in listings and messages; the second is not loaded.
            plugin = replace(plugin, name=f"{plugin.name} ({plugin.distribution})")
            self.plugins.append(plugin)
            self.problems.append(
                f"{plugin.name}: another plugin has this name already; rename the entry point"
            )
            return
        with self.guard(plugin.name):
            try:
                hooks = self._register(plugin.name, entry_point.load())
                plugin = replace(plugin, hooks=hooks)
            finally:
                self.plugins.append(plugin)

    def _register(self, name: str, module: object) -> tuple[str, ...]:
        """Register a loaded plugin and name its hooks; leave nothing behind when that fails."""
        if self._manager.is_registered(module):
            other = self._manager.get_name(module)
            raise PluginAnswerError(f"names the same object as the plugin {other!r}")
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
            return self._hooks_of(module)
        except pluggy.PluginValidationError as error:
            # A failed registration leaves the hooks that came before the bad one live.
            self._forget(module)
            raise PluginAnswerError(_explain_validation(error)) from None
        except PluginAnswerError:
            self._forget(module)
            raise

    def _hooks_of(self, module: object) -> tuple[str, ...]:
        callers = self._manager.get_hookcallers(module) or []
        if not callers:
            raise PluginAnswerError("has no hook; mark its functions with @hookimpl")
        for caller in callers:
            for implementation in caller.get_hookimpls():
                wraps = implementation.wrapper or implementation.hookwrapper
                if implementation.plugin is module and wraps:
                    raise PluginAnswerError(f"{caller.name}: hook wrappers are not supported")
        return tuple(sorted(caller.name for caller in callers))

    def _forget(self, module: object) -> None:
        if self._manager.is_registered(module):
            self._manager.unregister(module)


def load_registry(*, plugins: bool = True) -> PluginRegistry:
    """Find and load the installed plugins now.

    Args:
        plugins: False to use only this distribution's own. The environment variable
            `TRACELENS_EXT_NO_PLUGINS=1` does the same for a whole run.
    """
    return PluginRegistry(_taking_part(_entry_points(), plugins=plugins))


def default_registry(*, plugins: bool = True) -> PluginRegistry:
    """The registry of this process, loaded on first use."""
    variable = os.environ.get(NO_PLUGINS_VARIABLE, "")
    found = _taking_part(_installed(variable), plugins=plugins)
    # With and without strangers is one registry where there are none.
    return _cached_registry(not all(map(_is_own, found)), variable)


@lru_cache(maxsize=4)
def _cached_registry(plugins: bool, variable: str) -> PluginRegistry:
    return PluginRegistry(_taking_part(_installed(variable), plugins=plugins))


@lru_cache(maxsize=4)
def _installed(_variable: str) -> list[EntryPointLike]:
    """The entry points of this process: looking for them takes milliseconds."""
    return _entry_points()


def _entry_points() -> list[EntryPointLike]:
    """Those installed, this distribution's first: nobody else can take their names."""
    return sorted(entry_points(group=PROJECT), key=lambda e: (not _is_own(e), e.name, e.value))


def _taking_part(found: list[EntryPointLike], *, plugins: bool) -> list[EntryPointLike]:
    """Those of the entry points that a user has not switched off."""
    only_own = not plugins or os.environ.get(NO_PLUGINS_VARIABLE, "") not in ("", "0")
    return [e for e in found if _is_own(e) or not only_own]


def _is_own(entry_point: EntryPointLike) -> bool:
    if entry_point.dist is None:
        return False
    name, _ = _name_and_version(entry_point.dist)
    return name.lower().replace("_", "-") == _OWN_DISTRIBUTION


def _describe(entry_point: EntryPointLike) -> Plugin:
    distribution = entry_point.dist
    known = "unknown" if distribution is None else " ".join(_name_and_version(distribution))
    return Plugin(entry_point.name, entry_point.value, known, _is_own(entry_point))


@lru_cache(maxsize=256)
def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """What a distribution calls itself; each look at its metadata parses the whole of it."""
    return distribution.name, distribution.version


def _packs_from(item: object, *, vetted: bool) -> Iterator[RulePack]:
    """The rule packs in one item of a plugin's answer."""
    if isinstance(item, RulePack):
        yield item
    elif isinstance(item, Mapping):
        yield parse_pack(item)
    elif isinstance(item, (str, os.PathLike)):
        if Path(item).suffix.lower() == ".json":
            yield from load_map_file(item)
        else:
            yield load_pack(item, check_patterns=not vetted)
    else:
        raise RuleError(
            "tracelens_rule_packs: expected paths of rule packs, dicts or RulePack objects, "
            f"got {type(item).__name__}"
        )


def _iterable(answer: object, hook: str) -> list[Any]:
    """A hook's answer as a list; a lone text would otherwise be taken letter by letter."""
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise PluginAnswerError(f"{hook}: expected a list, got {type(answer).__name__}")
    return list(answer)


def _explain_validation(error: pluggy.PluginValidationError) -> str:
    """Pluggy's message in one line, with the nearest hook when the name is not one."""
    text = " ".join(str(error).split())
    if "unknown hook" not in text:
        return text
    wrong = text.split("unknown hook ", 1)[1].split("'")[1]
    known = [name for name in dir(hookspecs) if name.startswith("tracelens_")]
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown hook {wrong!r}; {hint}"
