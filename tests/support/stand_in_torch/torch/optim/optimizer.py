"""Optimizers, whose steps are wrapped when the first one of a class is made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.autograd.profiler import operation, record_function


class Optimizer:
    step: Callable[..., Any]

    def __init__(self) -> None:
        self._patch_step_function()

    @staticmethod
    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            name = f"Optimizer.step#{type(arguments[0]).__name__}.step"
            with record_function(name):
                return function(*arguments, **keywords)

        return wrapper

    def _patch_step_function(self) -> None:
        own = type(self)
        if not getattr(own.step, "hooked", None):
            own.step = self.profile_hook_step(own.step)
            own.step.hooked = True  # type: ignore[attr-defined]


class SGD(Optimizer):
    def step(self) -> None:
        operation("aten::add_")
