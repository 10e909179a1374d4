"""Modules."""

from __future__ import annotations

from typing import Any

from torch.autograd.profiler import operation


class Module:
    def _wrapped_call_impl(self, *arguments: Any, **keywords: Any) -> Any:
        return self.forward(*arguments, **keywords)

    __call__ = _wrapped_call_impl

    def forward(self, *_arguments: Any) -> Any:
        operation("aten::linear")


class Sequential(Module):
    def __init__(self, *modules: Module) -> None:
        self.modules = modules

    def forward(self, *arguments: Any) -> Any:
        for module in self.modules:
            module(*arguments)
