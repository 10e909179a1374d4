"""The performance models: a function of an operation for each name, from every plugin.

The built-in ones, a file a family, come through the hook `tracelens_performance_models` as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, hookimpl

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Model

#: The modules of this package that have a dictionary `MODELS`.
_FAMILIES = (
    "hlo",
    "gemm",
    "attention",
    "elementwise",
    "memory_bound",
)


@hookimpl
def tracelens_performance_models() -> dict[str, Model]:
    """The built-in models; names without a library are PyTorch's own (`aten::`)."""
    families = [import_module(f"tracelens_ext.roofline.{name}").MODELS for name in _FAMILIES]
    return {
        name if "::" in name or name.endswith("*") else f"aten::{name}": model
        for models in families
        for name, model in models.items()
    }


def offered_models(registry: PluginRegistry) -> dict[str, Offered[Model]]:
    """Operation → its model, those of plugins before the built-in ones."""
    found: dict[str, Offered[Model]] = {}
    hooks = registry.hooks("tracelens_performance_models")
    for hook in sorted(hooks, key=lambda each: each.plugin.own):
        with registry.guard(hook.plugin.name):
            answer: Any = hook.call()
            items: Any = answer.items() if isinstance(answer, Mapping) else [(None, None)]
            if not all(isinstance(name, str) and callable(model) for name, model in items):
                why = "expected operation name → function"
                raise PluginAnswerError(f"tracelens_performance_models: {why}")
            found = {name: Offered(model, hook.plugin) for name, model in items} | found
    return found


def model_of(name: str, models: Mapping[str, Offered[Model]]) -> Offered[Model] | None:
    """The model of an operation: by its name, else by the longest beginning, as in `triton_*`."""
    if (model := models.get(name)) is not None:
        return model
    fitting = (n for n in models if n.endswith("*") and name.startswith(n[:-1]))
    return models.get(max(fitting, key=len, default=""))
