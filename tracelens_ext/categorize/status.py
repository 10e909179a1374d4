"""The state of every installed plugin: what it brings, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens_ext.categorize.choice import python_stage

if TYPE_CHECKING:
    from tracelens_ext.categorize.registry import Plugin, PluginRegistry
    from tracelens_ext.categorize.stages import Kernel

_PROBE: Final[tuple[Kernel, ...]] = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ("Memset (Device)", "aten::zero_"),
)
"""Two kernels on which to try Python categorisers."""


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """A plugin and how it fares.

    Attributes:
        plugin: the plugin.
        packs: the names of its rule packs, those to choose marked with `*`.
        problems: what is wrong with it, a line each; empty when nothing is.
    """

    plugin: Plugin
    packs: tuple[str, ...]
    problems: tuple[str, ...]


def plugin_status(registry: PluginRegistry) -> list[PluginStatus]:
    """Call every hook that can be called without a trace, and say how each plugin fares.

    Python categorisers are tried on two kernels. Report sheets need a trace and are not tried.
    """
    offered = registry.rule_packs()
    registry.readers()
    for hook in registry.categorizers():
        with registry.guard(hook.plugin.name):
            python_stage(hook).decide(_PROBE)
    return [
        PluginStatus(
            plugin,
            tuple(
                o.pack.name + ("*" if o.pack.selectable else "")
                for o in offered
                if o.plugin.name == plugin.name
            ),
            tuple(
                problem.removeprefix(f"{plugin.name}: ")
                for problem in registry.problems
                if problem.startswith(f"{plugin.name}: ")
            ),
        )
        for plugin in registry.plugins
    ]
