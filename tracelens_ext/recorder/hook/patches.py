"""Replaces methods of PyTorch while iterations are counted, and restores them afterwards."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Protocol


class Follower(Protocol):
    """An object that is notified of steps, calls and profilers."""

    is_over: bool

    def optimizer_was_made(self, optimizer: Any) -> None:
        """Note that an optimizer was created."""

    def optimizer_begins(self, optimizer: Any) -> bool:
        """Note that a step begins; return False if it is part of a step of the same optimizer."""

    def optimizer_ends(self, optimizer: Any, *, has_stepped: bool) -> None:
        """Count a step of an optimizer that has ended, unless it failed."""

    def call_begins(self) -> None:
        """Note that the outermost module is called."""

    def call_ends(self) -> None:
        """Count a call of the outermost module that has ended."""

    def program_profiles(self) -> None:
        """Make way for a profiler that the program creates itself."""


class _Replacement(NamedTuple):
    """An attribute of a class that was replaced."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    def undo(self) -> None:
        """Restore the original, unless other code has replaced ours."""
        if self.owner.__dict__.get(self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class _Calls(threading.local):
    """The module calls that are running in a thread."""

    is_within_module = False


class TorchPatches:
    """The replaced methods of PyTorch.

    Args:
        torch: the module `torch`.
        recorder: the object that is notified.
    """

    def __init__(self, torch: Any, recorder: Follower) -> None:
        self._torch = torch
        self._recorder = recorder
        self._is_compiling = _compiling_test(torch)
        self._calls: List[_Replacement] = []
        self._others: List[_Replacement] = []
        self._call = torch.nn.Module.__dict__["__call__"]
        self._counting_call = self._make_counting_call(self._call)
        #: True once the steps of optimizer classes are wrapped, which is never undone
        self._wraps_steps = False

    def put_on(self, *, calls: bool) -> None:
        """Begin to follow optimizers and profilers, and calls of modules if wanted."""
        if not self._others:
            self._follow_profilers()
        if not self._wraps_steps:
            self._follow_optimizers()
            self._wraps_steps = True
        module = self._torch.nn.Module
        if calls and not self._calls and module.__dict__["__call__"] is self._call:
            self._replace(self._calls, module, "__call__", self._counting_call)

    def take_off(self) -> None:
        """Restore what can be restored; wrapped steps of optimizers stay, but are not counted."""
        self.take_off_calls()
        for replacement in self._others:
            replacement.undo()
        self._others.clear()

    def take_off_calls(self) -> None:
        """Stop following calls of modules."""
        for replacement in self._calls:
            replacement.undo()
        self._calls.clear()
        self._correct_compiler()

    @contextmanager
    def original_call(self) -> Iterator[None]:
        """Restore the original `Module.__call__` during this block.

        At its first start, PyTorch's profiler looks up which Python function calls modules, and it
        crashes if the arguments of that function are not as it expects.
        """
        module = self._torch.nn.Module
        is_ours = module.__dict__["__call__"] is self._counting_call
        if is_ours:
            module.__call__ = self._call
        try:
            yield
        finally:
            if is_ours:
                module.__call__ = self._counting_call

    def _correct_compiler(self) -> None:
        """Tell torch.compile the original call, if it was loaded while ours was in place."""
        for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
            module = sys.modules.get(name)
            known = getattr(module, "unpatched_nn_module_call", None)
            if known is self._counting_call:
                module.unpatched_nn_module_call = self._call  # type: ignore[union-attr]

    @staticmethod
    def _replace(
        replacements: List[_Replacement], owner: Any, name: str, replacement: Any
    ) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, replacement)
        replacements.append(_Replacement(owner, name, original, replacement))

    # Calls of modules

    def _make_counting_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of `Module.__call__` that counts calls."""
        is_compiling = self._is_compiling
        set_compiler = _set_compiler()
        recorder = self._recorder
        calls = _Calls()

        @functools.wraps(call)
        def counting_call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return call(self, *arguments, **keywords)
            if calls.is_within_module:
                return call(self, *arguments, **keywords)
            calls.is_within_module = True
            try:
                compiler = set_compiler(None)
                try:
                    recorder.call_begins()
                finally:
                    set_compiler(compiler)
                result = call(self, *arguments, **keywords)
            finally:
                calls.is_within_module = False
            compiler = set_compiler(None)
            try:
                recorder.call_ends()
            finally:
                set_compiler(compiler)
            return result

        _hide_from_compiler(counting_call)
        return counting_call

    # Steps of optimizers

    def _follow_optimizers(self) -> None:
        optimizer_class = self._torch.optim.Optimizer
        if "profile_hook_step" not in optimizer_class.__dict__:
            self._follow_with_hook()
            return
        original = optimizer_class.profile_hook_step
        wrap = self._make_step_wrapper(original)
        optimizer_class.profile_hook_step = staticmethod(wrap)
        if "_patch_step_function" in optimizer_class.__dict__:
            patch = optimizer_class.__dict__["_patch_step_function"]
            recorder = self._recorder

            @functools.wraps(patch)
            def patch_step_function(optimizer: Any) -> None:
                patch(optimizer)
                recorder.optimizer_was_made(optimizer)

            optimizer_class._patch_step_function = patch_step_function

    def _follow_with_hook(self) -> None:
        """Follow optimizers in versions of PyTorch that wrap their steps in another way."""
        recorder = self._recorder

        def after_step(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if recorder.optimizer_begins(optimizer):
                recorder.optimizer_ends(optimizer, has_stepped=True)

        register = self._torch.optim.optimizer.register_optimizer_step_post_hook
        register(after_step)

    def _make_step_wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper for `step` of an optimizer class, instead of PyTorch's own wrapper."""
        is_compiling = self._is_compiling
        set_compiler = _set_compiler()
        recorder = self._recorder

        @functools.wraps(original)
        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            step = original(function)

            @functools.wraps(step)
            def counting_step(*arguments: Any, **keywords: Any) -> Any:
                if is_compiling():
                    return step(*arguments, **keywords)
                if recorder.is_over or not arguments:
                    return step(*arguments, **keywords)
                optimizer = arguments[0]
                compiler = set_compiler(None)
                try:
                    is_outermost = recorder.optimizer_begins(optimizer)
                finally:
                    set_compiler(compiler)
                if not is_outermost:
                    return step(*arguments, **keywords)
                has_stepped = False
                try:
                    result = step(*arguments, **keywords)
                    has_stepped = True
                finally:
                    compiler = set_compiler(None)
                    try:
                        recorder.optimizer_ends(optimizer, has_stepped=has_stepped)
                    finally:
                        set_compiler(compiler)
                return result

            _hide_from_compiler(counting_step)
            return counting_step

        return profile_hook_step

    # Profilers of the program

    def _follow_profilers(self) -> None:
        for owner in (
            self._torch.profiler._KinetoProfile,
            self._torch.autograd.profiler.profile,
        ):
            replacement = self._make_profiler_init(owner.__dict__["__init__"])
            self._replace(self._others, owner, "__init__", replacement)

    def _make_profiler_init(self, initialize: Callable[..., None]) -> Any:
        recorder = self._recorder

        @functools.wraps(initialize)
        def announcing_init(profiler: Any, *arguments: Any, **keywords: Any) -> None:
            is_enabled = keywords.get("enabled", True)
            if arguments and isinstance(arguments[0], bool):
                is_enabled = arguments[0]
            if is_enabled:
                recorder.program_profiles()
            initialize(profiler, *arguments, **keywords)

        return announcing_init


def _compiling_test(torch: Any) -> Callable[[], bool]:
    """Return a function that tells whether torch.compile is tracing."""
    compiler = getattr(torch, "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", bool)
    return test


def _eval_frame() -> Any:
    """Return the part of PyTorch that runs compiled functions, without importing the compiler."""
    library = getattr(sys.modules.get("torch"), "_C", None)
    compiler = getattr(library, "_dynamo", None)
    return getattr(compiler, "eval_frame", None)


def _hide_from_compiler(function: Callable[..., Any]) -> None:
    """Let torch.compile run a function uncompiled, and compile the functions that it calls."""
    eval_frame = _eval_frame()
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    elif hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(function.__code__)


def _set_compiler() -> Callable[[Any], Any]:
    """Return a function that sets the compiler for the following calls and returns the old one.

    If there is a compiler, it is not a Python function, which the compiler would inspect, too.
    """

    def set_nothing(_compiler: Any) -> Any:
        return None

    set_compiler: Callable[[Any], Any] = getattr(
        _eval_frame(), "set_eval_frame", set_nothing
    )
    return set_compiler


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep torch.compile from inspecting calls in this block."""
    set_compiler = _set_compiler()
    compiler = set_compiler(None)
    try:
        yield
    finally:
        set_compiler(compiler)
