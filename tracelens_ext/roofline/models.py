"""The performance models: a function of an operation for each name, from every plugin.

The built-in ones, a file a family, come through the hook `tracelens_performance_models` as well.
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
    """Return the built-in models; names without a library are PyTorch's own (`aten::`)."""
    models: dict[str, Model] = {}
    for family in _FAMILIES:
        module = import_module(f"tracelens_ext.roofline.{family}")
        for name, model in module.MODELS.items():
            has_library = "::" in name or name.endswith("*")
            models[name if has_library else f"aten::{name}"] = model
    return models


def offered_models(registry: PluginRegistry) -> dict[str, Offered[Model]]:
    """Return the model of each operation, those of plugins before the built-in ones."""
    models: dict[str, Offered[Model]] = {}
    hooks = registry.hooks("tracelens_performance_models")
    for hook in sorted(hooks, key=lambda hook: hook.plugin.own):
        with registry.guard(hook.plugin.name):
            for name, model in _checked_models(hook.call()).items():
                models.setdefault(name, Offered(model, hook.plugin))
    return models


def _checked_models(answer: Any) -> dict[str, Model]:  # noqa: ANN401  # of a plugin
    """Return what a plugin answers.

    Raises:
        PluginAnswerError: it is no mapping of names to functions.
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
    """Return the model of an operation: by its name, else by the longest beginning (`triton_*`)."""
    exact = models.get(name)
    if exact is not None:
        return exact
    fitting = [
        pattern
        for pattern in models
        if pattern.endswith("*") and name.startswith(pattern.removesuffix("*"))
    ]
    if not fitting:
        return None
    return models[max(fitting, key=len)]
