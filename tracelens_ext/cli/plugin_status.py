"""The state of the installed plugins: what each contributes, and which errors it has."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens_ext.hooks import Plugin, PluginRegistry

#: Two kernels and the operations that launched them, on which Python categorizers are tried.
_PROBE = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ("Memset (Device)", "aten::zero_"),
)


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """The state of a plugin."""

    plugin: Plugin  #: the plugin
    #: the names of its rule packs; `*` marks those that only an option selects
    packs: tuple[str, ...]
    #: True if any part works: a pack, a reader, or a hook that did not fail
    works: bool
    #: its error messages, one line each
    problems: tuple[str, ...]


def plugin_status(registry: PluginRegistry) -> list[PluginStatus]:
    """Call every hook that can be called without a trace, and return the state of each plugin.

    Python categorizers are tried on two kernels. Report sheets need a trace and are not tried.
    """
    from tracelens_ext.categorize.choices import offered_packs

    packs = offered_packs(registry)
    working = _working_plugins(registry)
    working.update(offered.plugin.name for offered in packs)
    statuses = []
    for plugin in registry.plugins:
        names = [
            f"{offered.item.name}*" if offered.item.selectable else offered.item.name
            for offered in packs
            if offered.plugin.name == plugin.name
        ]
        beginning = f"{plugin.name}: "
        problems = [
            problem.removeprefix(beginning)
            for problem in registry.problems
            if problem.startswith(beginning)
        ]
        status = PluginStatus(
            plugin=plugin,
            packs=tuple(names),
            works=plugin.name in working,
            problems=tuple(problems),
        )
        statuses.append(status)
    return statuses


def _working_plugins(registry: PluginRegistry) -> set[str]:
    """Return the plugins with a reader, a categorizer or sheets that did not fail."""
    from tracelens_ext.categorize.choices import python_stages
    from tracelens_ext.readers.formats import offered_readers

    working = {offered.plugin.name for offered in offered_readers(registry)}
    for plugin in registry.plugins:
        if any("sheets" in hook for hook in plugin.hooks):
            working.add(plugin.name)
    for stage in python_stages(registry):
        with registry.guard(stage.name):
            stage.decide(_PROBE)
            working.add(stage.name)
    return working
