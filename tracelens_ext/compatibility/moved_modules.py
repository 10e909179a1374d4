"""Old names of moved modules and of renamed classes keep working for one release.

`install` puts a finder at the head of `sys.meta_path`. Importing an old module name returns the
module at its new place, with a `DeprecationWarning` that tells the new name. The old name of a
class returns the renamed class. Nothing is imported, and no file is opened, until an old name is
used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
    from types import ModuleType
else:
    # Nothing of the base classes is needed at run time, and their module is slow to import.
    Loader = object
    MetaPathFinder = object

_PACKAGE: Final = "tracelens_ext"
_PREFIX: Final = f"{_PACKAGE}."

#: Old name → new name, of modules and packages, both without `tracelens_ext.`. What a moved package
#: contains moved with it, unless it has a line of its own.
MOVED_MODULES: Final[dict[str, str]] = {
    "agents": "cli",
    "agents.server": "cli.mcp_server",
    "analysis.timeline.time_axis": "analysis.timeline.timeline_bins",
    "cache": "readers.cache",
    "chart": "compare.engine_chart",
    "class_statistics": "analysis.nsys_statistics",
    "cli.compare": "cli.commands.compare",
    "cli.export": "cli.commands.export",
    "cli.findings": "cli.commands.findings",
    "cli.gaps": "cli.commands.gaps",
    "cli.iterations": "cli.commands.iterations",
    "cli.kernels": "cli.commands.kernels",
    "cli.nsys": "cli.commands.nsys",
    "cli.report": "cli.commands.report",
    "collectives": "analysis",
    "compare.finished": "compare.finished_reports",
    "compare.finished_tables": "compare.report_files",
    "compare.places": "compare.alignment",
    "demo": "cli.demo_recordings",
    "distributed.wait_origins": "distributed.wait_root_causes",
    "findings.detect": "findings.engine",
    "findings.detectors.synchronisation": "findings.detectors.synchronization",
    "findings.places": "findings.attribution",
    "findings.told": "findings.summary",
    "fleet": "distributed",
    "fleet.places": "distributed.storage",
    "fleet.together": "distributed.html_page",
    "gaps": "analysis.idle_time",
    "gaps.hosts": "analysis.idle_time.cpu_activity",
    "gaps.told": "analysis.idle_time.histogram",
    "graphs": "analysis.cuda_graphs",
    "graphs.recorded": "analysis.cuda_graphs.captures",
    "intervals": "trace.intervals",
    "iterations": "analysis.iterations",
    "iterations.iterations": "analysis.iterations.selection",
    "iterations.measured": "analysis.iterations.measurement",
    "kernel_names": "categorize.kernel_names",
    "kernels": "analysis.kernels",
    "linking": "trace.linking",
    "memory": "analysis.memory",
    "modules": "analysis",
    "nesting": "trace.nesting",
    "operations": "analysis.operations",
    "ranks": "distributed",
    "ranks.part": "distributed.extract",
    "ranks.together": "distributed.aggregate",
    "readers.nsys.places": "readers.nsys.export_schema",
    "readers.perfetto.making": "readers.perfetto.trace_assembly",
    "readers.xplane.recording": "readers.xplane.profile",
    "recording": "analysis.coverage",
    "recording.recording": "analysis.coverage.coverage",
    "recording.told": "analysis.coverage.report_tables",
    "replay": "simulation",
    "replay.changes": "simulation.scenarios",
    "replay.path": "simulation.critical_path",
    "replay.program": "simulation.dependency_graph",
    "replay.what_if": "simulation.simulation",
    "report.colours": "report.colors",
    "roofline.found": "roofline.analysis",
    "roofline.passes": "roofline.movement",
    "roofline.products": "roofline.gemm",
    "serving": "analysis.serving",
    "tables": "report.tables",
    "timeline": "analysis.timeline",
    "tracelens_calls": "compatibility.tracelens",
    "tree": "trace.call_tree",
    "work": "trace",
    "work.gpu_work": "trace.gpu_events",
    "work.memoize": "trace.caching",
    "work.patterns": "categorize.user_patterns",
}

#: Module, by its new name → old name of a class or function → what it is called now.
RENAMED_CLASSES: Final[dict[str, dict[str, str]]] = {
    "analysis.coverage.coverage": {
        "Recording": "Coverage",
        "recording_of": "coverage_of",
    },
    "analysis.coverage.program": {"Program": "RecordedProgram"},
    "analysis.cuda_graphs.matching": {"Match": "GraphMatch"},
    "analysis.iterations.selection": {"Selection": "EventFilter"},
    "analysis.timeline.overview": {"Coverage": "CategoryCoverage"},
    "categorize.categorizer": {"Match": "RuleMatch"},
    "categorize.check": {"Finding": "RuleProblem"},
    "categorize.rules": {"Verdict": "RuleVerdict"},
    "compare.alignment": {"Place": "ProgramPlace", "Work": "PlaceWork"},
    "compare.engine_chart.runs": {"Run": "EngineRun"},
    "compare.verdict": {
        "Unit": "WorkUnit",
        "Verdict": "ComparisonVerdict",
    },
    "distributed.job": {"Outcome": "JobOutcome"},
    "readers.builtin": {"Format": "FormatReader"},
    "readers.nsys.csv_tables": {"Report": "NsysCsvReport", "Table": "NsysCsvTable"},
    "readers.rocprof.csv_tables": {"Table": "RocprofCsvTable"},
    "readers.xplane.profile": {"Recording": "XplaneProfile"},
    "report.excel_cells": {"Column": "ExcelColumn"},
    "report.html_tables": {"Column": "HtmlColumn", "Table": "HtmlTable"},
    "roofline.hlo": {"Work": "HloWork"},
    "simulation.dependency_graph": {"Program": "DependencyGraph"},
    "trace.gpu_events": {"GpuWork": "GpuEvents"},
    "trace.intervals": {"Union": "DisjointIntervals"},
}

#: Old packages that defined names themselves; the others only contained modules.
_PACKAGES_WITH_NAMES: Final = frozenset({"fleet"})


def install() -> None:
    """Let imports find old names. Further calls have no effect."""
    if not any(isinstance(finder, _OldNameFinder) for finder in sys.meta_path):
        # It comes first, as other finders would load a module of a moved package a second time.
        sys.meta_path.insert(0, _OldNameFinder())


def new_module_name(old_name: str) -> str | None:
    """Return the new name of a module that moved, without `tracelens_ext.`; None for others.

    `gaps.causes` became `analysis.idle_time.causes` as its package `gaps` moved.
    """
    if old_name in MOVED_MODULES:
        return MOVED_MODULES[old_name]
    package, _, module = old_name.rpartition(".")
    if not package:
        return None
    new_package = new_module_name(package)
    if new_package is None:
        return None
    return f"{new_package}.{module}"


class _OldNameFinder(MetaPathFinder):
    """Finds modules and classes by their old names."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a module with an old name or with renamed classes, or else None."""
        if not fullname.startswith(_PREFIX):
            return None
        name = fullname.removeprefix(_PREFIX)
        new_name = new_module_name(name)
        if new_name is not None:
            return ModuleSpec(fullname, _MovedModuleLoader(name, new_name))
        if name not in RENAMED_CLASSES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            loader = spec.loader
            spec.loader = _RenamedClassesLoader(loader.name, loader.path)
        return spec


class _MovedModuleLoader(Loader):
    """Returns the module at the new place for an old name."""

    def __init__(self, old_name: str, new_name: str) -> None:
        self._old_name = old_name
        self._new_name = new_name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        """Let the import system make a module as usual; `exec_module` puts another in its place."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Register the module at the new place under the old name."""
        new_name = _PREFIX + self._new_name
        sys.modules[module.__name__] = import_module(new_name)
        package_of_modules = self._old_name in MOVED_MODULES and _is_package(new_name)
        if package_of_modules and self._old_name not in _PACKAGES_WITH_NAMES:
            return
        warnings.warn(
            f"{module.__name__} is now {new_name}; the old name will be removed in "
            "the next release",
            DeprecationWarning,
            stacklevel=2,
        )


class _RenamedClassesLoader(SourceFileLoader):
    """Loads a module as usual, and lets its classes be imported by their old names, too."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and make it resolve old names that it does not define."""
        super().exec_module(module)
        new_names = RENAMED_CLASSES[module.__name__.removeprefix(_PREFIX)]
        vars(module).setdefault("__getattr__", _getter_of_old_names(module, new_names))


def _getter_of_old_names(
    module: ModuleType, new_names: dict[str, str]
) -> Callable[[str], object]:
    """Return the `__getattr__` of a module with renamed classes."""

    def get_by_old_name(name: str) -> object:
        new_name = new_names.get(name)
        if new_name is None:
            raise AttributeError(
                f"module {module.__name__!r} has no attribute {name!r}"
            )
        warnings.warn(
            f"{module.__name__}.{name} is now {new_name}; the old name will be "
            "removed in the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(module, new_name)

    return get_by_old_name


def _is_package(module_name: str) -> bool:
    return hasattr(sys.modules[module_name], "__path__")
