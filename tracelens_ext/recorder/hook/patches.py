"""Replacements of PyTorch's functions, which count iterations and are undone afterwards."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Protocol


class Follower(Protocol):
    """Receives notifications about optimizers, calls of modules, and profilers of the program."""

    is_over: bool

    def optimizer_was_made(self, optimizer: Any) -> None:
        """Wait for the steps of a new optimizer, too."""

    def optimizer_begins(self, optimizer: Any) -> bool:
        """Note that a step begins; return False within another step of the same optimizer."""

    def optimizer_ends(self, optimizer: Any, *, has_stepped: bool) -> None:
        """Count a step of an optimizer that has ended, unless it failed."""

    def call_begins(self) -> None:
        """Note that a call of the outermost module begins."""

    def call_ends(self) -> None:
        """Count a call of the outermost module that has ended."""

    def program_profiles(self) -> None:
        """Stop recording, because the program creates a profiler itself."""


class _Replacement(NamedTuple):
    """An attribute of a class that was replaced."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    def undo(self) -> None:
        """Put the original back, unless other code has replaced the attribute since."""
        if self.owner.__dict__.get(self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class _Calls(threading.local):
    """Whether each thread is within a call of a module."""

    is_within_module = False


class TorchPatches:
    """The replacements in PyTorch.

    Args:
        torch: PyTorch.
        recorder: The object to notify.
    """

    def __init__(self, torch: Any, recorder: Follower) -> None:
        self._torch = torch
        self._recorder = recorder
        self._is_compiling = _compiling_test(torch)
        self._calls: List[_Replacement] = []
        self._profilers: List[_Replacement] = []
        self._call = torch.nn.Module.__dict__["__call__"]
        self._counting_call = self._make_counting_call(self._call)
        #: PyTorch wraps the steps of an optimizer class once, when the first instance is created.
        #: So this replacement cannot be undone.
        self._wraps_steps = False

    def put_on(self, *, calls: bool) -> None:
        """Notify about optimizers and profilers, and also about calls of modules if `calls`."""
        if not self._profilers:
            self._follow_profilers()
        if not self._wraps_steps:
            self._follow_optimizers()
            self._wraps_steps = True
        module = self._torch.nn.Module
        if calls and not self._calls and module.__dict__["__call__"] is self._call:
            self._replace(self._calls, module, "__call__", self._counting_call)

    def take_off(self) -> None:
        """Undo the replacements, except for steps of optimizers, which are no longer counted."""
        self.take_off_calls()
        for replacement in self._profilers:
            replacement.undo()
        self._profilers.clear()

    def take_off_calls(self) -> None:
        """Stop notifying about calls of modules."""
        for replacement in self._calls:
            replacement.undo()
        self._calls.clear()
        self._correct_compiler()

    @contextmanager
    def original_call(self) -> Iterator[None]:
        """Put the original `Module.__call__` back during this block.

        When PyTorch's profiler starts for the first time, it looks up which Python function calls
        modules. It crashes if the arguments of that function are not those that it expects.
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
        """Make torch.compile use the original call, if it was loaded during the replacement."""
        for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
            module = sys.modules.get(name)
            call_in_compiler = getattr(module, "unpatched_nn_module_call", None)
            if call_in_compiler is self._counting_call:
                module.unpatched_nn_module_call = self._call  # type: ignore[union-attr]

    @staticmethod
    def _replace(
        replacements: List[_Replacement], owner: Any, name: str, replacement: Any
    ) -> None:
        """Replace an attribute of a class, and remember how to undo that."""
        original = owner.__dict__[name]
        setattr(owner, name, replacement)
        replacements.append(_Replacement(owner, name, original, replacement))

    # Calls of modules

    def _make_counting_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of `Module.__call__`, which counts calls of outermost modules."""
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
        """Notify about new optimizers and their steps."""
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
        """Notify about steps of optimizers in versions of PyTorch that wrap them in another way."""
        recorder = self._recorder

        def after_step(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if recorder.optimizer_begins(optimizer):
                recorder.optimizer_ends(optimizer, has_stepped=True)

        register = self._torch.optim.optimizer.register_optimizer_step_post_hook
        register(after_step)

    def _make_step_wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of PyTorch's function that wraps `step` of optimizer classes."""
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
        """Notify about profilers that are created."""
        for owner in (
            self._torch.profiler._KinetoProfile,
            self._torch.autograd.profiler.profile,
        ):
            replacement = self._make_profiler_init(owner.__dict__["__init__"])
            self._replace(self._profilers, owner, "__init__", replacement)

    def _make_profiler_init(self, initialize: Callable[..., None]) -> Any:
        """Return the replacement of `__init__` of a profiler, which notifies about it."""
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
    """Return a function that returns True while torch.compile traces the program."""
    compiler = getattr(torch, "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", bool)
    return test


def _eval_frame() -> Any:
    """Return the part of PyTorch that runs compiled functions; it does not load the compiler."""
    library = getattr(sys.modules.get("torch"), "_C", None)
    compiler = getattr(library, "_dynamo", None)
    return getattr(compiler, "eval_frame", None)


def _hide_from_compiler(function: Callable[..., Any]) -> None:
    """Make torch.compile run a function unchanged, but compile the functions that it calls."""
    eval_frame = _eval_frame()
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    elif hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(function.__code__)


def _set_compiler() -> Callable[[Any], Any]:
    """Return a function that sets the compiler of later calls, and returns the previous one.

    If PyTorch has a compiler, that is a function in C, because the compiler would also compile a
    Python function.
    """

    def set_nothing(_compiler: Any) -> Any:
        return None

    set_compiler: Callable[[Any], Any] = getattr(
        _eval_frame(), "set_eval_frame", set_nothing
    )
    return set_compiler


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep torch.compile from compiling the functions that this block calls."""
    set_compiler = _set_compiler()
    compiler = set_compiler(None)
    try:
        yield
    finally:
        set_compiler(compiler)
