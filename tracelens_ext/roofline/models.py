"""The performance models: functions that compute the cost of operations of a given name.

Plugins provide them through the hook `tracelens_performance_models`. The built-in models, one file
for each family of operations, come through the same hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, hookimpl

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Model

#: The modules of this package that have a dictionary `MODELS`.
_FAMILIES: Final = (
    "hlo",
    "gemm",
    "quantized",
    "convolution",
    "attention",
    "serving",
    "elementwise",
    "rotary",
    "optimizer",
    "compiled",
    "movement",
    "pooling",
    "fourier",
    "reduction",
    "normalization",
)


@hookimpl
def tracelens_performance_models() -> dict[str, Model]:
    """Return the built-in models by the names of operations.

    A name without a library is an operation of PyTorch, so it gets the prefix `aten::`.
    """
    models: dict[str, Model] = {}
    for family in _FAMILIES:
        module = import_module(f"tracelens_ext.roofline.{family}")
        for name, model in module.MODELS.items():
            has_library = "::" in name or name.endswith("*")
            models[name if has_library else f"aten::{name}"] = model
    return models


def offered_models(registry: PluginRegistry) -> dict[str, Offered[Model]]:
    """Return the models by names of operations; a plugin's model replaces a built-in one."""
    models: dict[str, Offered[Model]] = {}
    hooks = registry.hooks("tracelens_performance_models")
    # Plugins come first, and the first model of a name stays.
    for hook in sorted(hooks, key=lambda hook: hook.plugin.own):
        with registry.guard(hook.plugin.name):
            for name, model in _checked_models(hook.call()).items():
                models.setdefault(name, Offered(model, hook.plugin))
    return models


def _checked_models(answer: Any) -> dict[str, Model]:  # noqa: ANN401  # of a plugin
    """Return a plugin's answer, which has to be a mapping of names to functions.

    Raises:
        PluginAnswerError: the answer is something else.
    """
    problem = "tracelens_performance_models: expected operation name → function"
    if not isinstance(answer, Mapping):
        raise PluginAnswerError(problem)
    models = dict(answer)
    for name, model in models.items():
        is_valid = isinstance(name, str) and callable(model)
        if not is_valid:
            raise PluginAnswerError(problem)
    return models


def model_of(name: str, models: Mapping[str, Offered[Model]]) -> Offered[Model] | None:
    """Return the model of an operation; None without one.

    A model with exactly this name wins. Otherwise the longest pattern that the name begins with
    decides: `triton_red_*` before `triton_*`.
    """
    model_with_name = models.get(name)
    if model_with_name is not None:
        return model_with_name
    matching_patterns = [
        pattern
        for pattern in models
        if pattern.endswith("*") and name.startswith(pattern.removesuffix("*"))
    ]
    if not matching_patterns:
        return None
    return models[max(matching_patterns, key=len)]
