"""Finds, loads and calls plugins.

No plugin can stop a run: each is imported, registered and called under a guard that turns its
errors into a line in `PluginRegistry.problems`, and gives up calls that take too long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pluggy

from tracelens_ext.errors import TracelensError
from tracelens_ext.hooks import hookspecs
from tracelens_ext.hooks.hookspecs import PROJECT, HookOptions, options_of

SECONDS_VARIABLE: Final = "TRACELENS_EXT_PLUGIN_SECONDS"
"""How long one call of a plugin may take, in seconds."""
_DEFAULT_SECONDS: Final = 10.0
_SHORTEST_SECONDS: Final = 0.1
NO_PLUGINS_VARIABLE: Final = "TRACELENS_EXT_NO_PLUGINS"
"""Set to 1 to use only what this distribution itself brings."""
_OWN_DISTRIBUTION: Final = "tracelens-ext"

T = TypeVar("T")


class PluginTimeoutError(TracelensError):
    """A plugin did not answer in time."""


@contextmanager
def guarded(name: str, problems: list[str]) -> Iterator[None]:
    """Run code of a plugin. An error ends the block and becomes a line in `problems`.

    Only `KeyboardInterrupt` and similar exceptions pass through.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin may raise anything
        line = f"{name}: {one_line(error)}"
        if line not in problems:
            problems.append(line)


def one_line(error: BaseException) -> str:
    """Return an error in one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split())
    if isinstance(error, TracelensError):
        return text
    type_name = type(error).__name__
    if not text:
        return type_name
    return f"{type_name}: {text}"


def time_limit() -> float:
    """Return how many seconds one call of a plugin may take."""
    try:
        seconds = float(os.environ.get(SECONDS_VARIABLE, ""))
    except ValueError:
        return _DEFAULT_SECONDS
    if not seconds > 0:  # this refuses NaN, too
        return _DEFAULT_SECONDS
    return min(max(_SHORTEST_SECONDS, seconds), threading.TIMEOUT_MAX)


def call_within(seconds: float, function: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Call a function in its own thread, and stop waiting if it takes too long.

    Python cannot stop a thread: a call that never ends keeps its (daemon) thread until the program
    exits.

    Raises:
        PluginTimeoutError: it takes too long.
    """
    from concurrent.futures import Future, wait

    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="tracelens-ext plugin", daemon=True)
    thread.start()
    is_done = wait([answer], seconds).done
    if not is_done:
        limit = f"change the limit with {SECONDS_VARIABLE}"
        raise PluginTimeoutError(f"no answer within {seconds:g} s; {limit}")
    return answer.result()


class PluginAnswerError(TracelensError):
    """A plugin returned something of the wrong type or form."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An installed plugin, loaded or not."""

    name: str  #: the name of its entry point
    module: str  #: what the entry point names
    distribution: str  #: the installed project it belongs to, with its version
    own: bool  #: True for a built-in plugin
    #: the hooks it implements; empty when it could not be loaded
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offered(Generic[T]):
    """One thing that a plugin offers, such as a rule pack, and the plugin."""

    item: T
    plugin: Plugin


@dataclass(frozen=True, slots=True)
class Hook:
    """One plugin's implementation of a hook, ready to be called."""

    name: str
    plugin: Plugin
    function: Callable[..., Any]
    argument_names: tuple[str, ...]
    options: HookOptions

    def call(self, **arguments: object) -> Any:  # noqa: ANN401
        """Call the hook with the arguments that it accepts; plugins of others have a time limit."""
        return self._within_limits(partial(self._answer, arguments))

    def items(self, **arguments: object) -> list[Any]:
        """Call the hook, and return the items of the iterable that it returns.

        Raises:
            PluginAnswerError: it returns something that is not a list of items.
            PluginTimeoutError: this takes too long.
        """

        def list_answer() -> list[Any]:
            answer = self._answer(arguments)
            # A single text would otherwise be split into letters.
            is_single = isinstance(answer, (str, bytes, Mapping))
            if is_single or not isinstance(answer, Iterable):
                got = type(answer).__name__
                raise PluginAnswerError(f"{self.name}: expected a list, got {got}")
            return list(answer)

        items: list[Any] = self._within_limits(list_answer)
        return items

    def _answer(self, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401
        values = [arguments[name] for name in self.argument_names]
        return self.function(*values)

    def _within_limits(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        if self.plugin.own:
            return function()
        return call_within(time_limit(), function)


class PluginRegistry:
    """The plugins that take part in a run.

    Args:
        found: entry points with the distributions that they come from, the built-in ones first.

    Attributes:
        plugins: all plugins that were found, loaded or not.
        problems: an error message `NAME: error` for each failure; hooks that are called add more.
    """

    def __init__(self, entry_points: Iterable[Any]) -> None:
        self.problems: list[str] = []
        self.plugins: list[Plugin] = []
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for entry_point in entry_points:
            self._load(entry_point)

    def guard(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which errors of the plugin with this name become problems."""
        return guarded(name, self.problems)

    def hooks(self, name: str) -> list[Hook]:
        """Return the implementations of one hook: higher priority first, then by plugin name."""
        plugins = {plugin.name: plugin for plugin in self.plugins}
        hooks = []
        for implementation in getattr(self._manager.hook, name).get_hookimpls():
            function = implementation.function
            hook = Hook(
                name=name,
                plugin=plugins[implementation.plugin_name],
                function=function,
                argument_names=tuple(implementation.argnames),
                options=options_of(function),
            )
            hooks.append(hook)
        return sorted(
            hooks, key=lambda hook: (-hook.options.priority, hook.plugin.name)
        )

    def offers(
        self, hook_name: str, check: Callable[[Any], object], **arguments: object
    ) -> list[Offered[Any]]:
        """Return the items that all plugins offer through a hook.

        Higher priority comes first, then by plugin name, then as the plugin lists them.

        Args:
            hook_name: such as `tracelens_readers`.
            check: raises `PluginAnswerError` (or anything else) for an item of the wrong shape.
                That becomes a problem, and the other items stay.
            arguments: the arguments of the hook.
        """
        offered: list[Offered[Any]] = []
        for hook in self.hooks(hook_name):
            with self.guard(hook.plugin.name):
                for item in hook.items(**arguments):
                    with self.guard(hook.plugin.name):
                        check(item)
                        offered.append(Offered(item, hook.plugin))
        return offered

    def _load(self, entry_point: EntryPoint) -> None:
        """Import and register a plugin; an error becomes a problem."""
        distribution = _distribution_of(entry_point.dist)
        label = " ".join(part for part in distribution if part)
        plugin = Plugin(
            name=entry_point.name,
            module=entry_point.value,
            distribution=label,
            own=_is_own(entry_point),
        )
        is_second = self._manager.has_plugin(plugin.name)
        # a second plugin with the same name is listed, but not loaded
        if is_second:
            plugin = replace(plugin, name=f"{plugin.name} ({label})")
        with self.guard(plugin.name):
            try:
                if is_second:
                    problem = (
                        "another plugin already has this name; rename the entry point"
                    )
                    raise PluginAnswerError(problem)
                hooks = self._register(plugin.name, entry_point.load())
                plugin = replace(plugin, hooks=hooks)
            finally:
                self.plugins.append(plugin)

    def _register(self, name: str, module: object) -> tuple[str, ...]:
        """Register a loaded plugin and return its hooks; if that fails, undo the registration.

        Raises:
            PluginAnswerError: it has no hooks, unknown ones, or wrappers of them.
        """
        if self._manager.is_registered(module):
            other = self._manager.get_name(module)
            raise PluginAnswerError(
                f"refers to the same object as the plugin {other!r}"
            )
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
            return self._hooks_of(module)
        except (pluggy.PluginValidationError, PluginAnswerError) as error:
            # After a failed registration, pluggy keeps the hooks that came before the bad one.
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            if isinstance(error, pluggy.PluginValidationError):
                raise PluginAnswerError(_explain_validation(error)) from None
            raise

    def _hooks_of(self, module: object) -> tuple[str, ...]:
        """Return the names of the hooks that a registered plugin implements."""
        callers = self._manager.get_hookcallers(module) or []
        if not callers:
            raise PluginAnswerError("has no hook; mark its functions with @hookimpl")
        for caller in callers:
            for implementation in caller.get_hookimpls():
                is_wrapper = implementation.wrapper or implementation.hookwrapper
                if implementation.plugin is module and is_wrapper:
                    raise PluginAnswerError(
                        f"{caller.name}: hook wrappers are not supported"
                    )
        return tuple(sorted(caller.name for caller in callers))


def load_registry(*, plugins: bool = True) -> PluginRegistry:
    """Find and load the installed plugins; unless `plugins` is True, only the built-in ones.

    The environment variable `TRACELENS_EXT_NO_PLUGINS=1` does the same for a whole run.
    """
    return _registry(_entry_points(), only_own=_only_own(plugins=plugins))


def default_registry(*, plugins: bool = True) -> PluginRegistry:
    """Return the registry of this process, loaded on first use; see `load_registry`."""
    only_own = _only_own(plugins=plugins)
    if not only_own:
        # If no other plugins are installed, both kinds of registry are the same one.
        only_own = all(_is_own(entry_point) for entry_point in _installed())
    return _loaded(only_own=only_own)


@cache
def _loaded(*, only_own: bool) -> PluginRegistry:
    return _registry(_installed(), only_own=only_own)


def _registry(entry_points: Sequence[EntryPoint], *, only_own: bool) -> PluginRegistry:
    if not only_own:
        return PluginRegistry(entry_points)
    return PluginRegistry(
        entry_point for entry_point in entry_points if _is_own(entry_point)
    )


def _entry_points() -> list[EntryPoint]:
    """Return the installed entry points; the built-in ones come first and keep their names."""

    def own_first(entry_point: EntryPoint) -> tuple[bool, str, str]:
        return not _is_own(entry_point), entry_point.name, entry_point.value

    return sorted(entry_points(group=PROJECT), key=own_first)


# looking for entry points takes milliseconds
_installed = cache(_entry_points)


def _only_own(*, plugins: bool) -> bool:
    """Return whether the caller or the user has switched off the plugins of others."""
    return not plugins or os.environ.get(NO_PLUGINS_VARIABLE, "") not in ("", "0")


class _DistributionName(NamedTuple):
    """The name and version of a distribution."""

    name: str
    version: str


def _is_own(entry_point: EntryPoint) -> bool:
    name = _distribution_of(entry_point.dist).name
    return name.lower().replace("_", "-") == _OWN_DISTRIBUTION


@lru_cache(maxsize=256)
def _distribution_of(distribution: Distribution | None) -> _DistributionName:
    """Return the name and version of a distribution, cached as its metadata is slow to parse."""
    if distribution is None:
        return _DistributionName("unknown", "")
    return _DistributionName(name=distribution.name, version=distribution.version)


def _explain_validation(error: pluggy.PluginValidationError) -> str:
    """Return pluggy's message in one line, with the most similar hook if the name is unknown."""
    import difflib

    text = " ".join(str(error).split())
    if "unknown hook" not in text:
        return text
    wrong_name = text.split("unknown hook ", 1)[1].split("'")[1]
    known_hooks = [name for name in dir(hookspecs) if name.startswith("tracelens_")]
    near = difflib.get_close_matches(wrong_name, known_hooks, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known_hooks)}"
    return f"unknown hook {wrong_name!r}; {hint}"
