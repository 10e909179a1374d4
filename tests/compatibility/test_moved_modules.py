"""Old names of modules and of classes keep working, with a warning that tells the new name."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tracelens_ext
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compatibility.moved_modules import (
    MOVED_MODULES,
    RENAMED_CLASSES,
    new_module_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(tracelens_ext.__file__).parent
#: What the documentation of the release before had people import: module and name.
DOCUMENTED = [
    ("analyzer", "TreePerfAnalyzer"),
    ("cache.store", "TraceCache"),
    ("categorize", "Rule"),
    ("categorize", "RulePack"),
    ("categorize", "check_pack"),
    ("categorize", "load_maps"),
    ("categorize", "load_pack"),
    ("chart.page", "write_results"),
    ("chart.runs", "measure_run"),
    ("chart.specification", "parse_inputs"),
    ("cli.load", "analyze"),
    ("cli.options", ""),
    ("cli.screen", "Part"),
    ("cli.screen", "show"),
    ("cli.screen", "trace_report"),
    ("compare.comparison", "compare"),
    ("compare.report", "measured_for_comparison"),
    ("findings.finding", "Evidence"),
    ("findings.finding", "Finding"),
    ("findings.inspection", "Detector"),
    ("findings.inspection", "Inspection"),
    ("fleet", "run_fleet"),
    ("hooks", "CATEGORIES"),
    ("hooks", "Chart"),
    ("hooks", "Command"),
    ("hooks", "GPU_EVENTS"),
    ("hooks", "Reader"),
    ("hooks", "Table"),
    ("hooks", "hookimpl"),
    ("iterations.iterations", "Selection"),
    ("lazy", "pd"),
    ("perf_report", "generate_perf_report_pytorch"),
    ("readers.builder", "TraceBuilder"),
    ("readers.source", "ByteSource"),
    ("readers.source", "SQLITE_MAGIC"),
    ("report.html", "write_html"),
    ("roofline.operation", "Cost"),
    ("roofline.operation", "Models"),
    ("roofline.operation", "NoModelError"),
    ("roofline.operation", "Operation"),
    ("roofline.operation", "vector_cost"),
    ("roofline.peaks", "read_peaks"),
    ("settings", "ReadingOptions"),
    ("tables.charts", "Chart"),
    ("tables.table", "Table"),
    ("trace", "EventKind"),
    ("tracelens_calls", ""),
    ("tree", "CallTree"),
    ("work.gpu_work", "GpuWork"),
]


@pytest.fixture(autouse=True)
def _forget_old_modules() -> Iterator[None]:
    """Old names are looked up again in each test: a module is loaded, and warned of, once."""
    names = [f"tracelens_ext.{name}" for name in all_old_modules()]
    for name in names:
        sys.modules.pop(name, None)
    yield
    for name in names:
        sys.modules.pop(name, None)


def modules_below(package: str) -> list[str]:
    folder = PACKAGE.joinpath(*package.split("."))
    return [
        f"{package}.{path.stem}"
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    ]


def all_old_modules() -> list[str]:
    """Return the old names with a line of their own, and those of modules of moved packages."""
    names = set(MOVED_MODULES)
    for old, new in MOVED_MODULES.items():
        for module in modules_below(new):
            names.add(old + module.removeprefix(new))
    return sorted(names)


@pytest.mark.parametrize("old", sorted(MOVED_MODULES))
def test_a_moved_module_is_the_module_at_its_new_place(old: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        moved = import_module(f"tracelens_ext.{old}")
    new = f"tracelens_ext.{MOVED_MODULES[old]}"
    assert moved is import_module(new)
    assert moved.__name__ == new
    assert moved.__spec__ is not None
    assert moved.__spec__.name == new


@pytest.mark.parametrize(
    "old", ["gaps.causes", "tree", "replay.what_if", "work.gpu_work"]
)
def test_one_warning_tells_the_new_name(old: str) -> None:
    name = f"tracelens_ext.{old}"
    with pytest.warns(DeprecationWarning) as caught:
        import_module(name)
    new = f"tracelens_ext.{new_module_name(old)}"
    expected = f"{name} is now {new}; the old name will be removed in the next release"
    assert [str(warning.message) for warning in caught] == [expected]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_module(name)


@pytest.mark.process
def test_the_warning_points_at_the_line_that_imports(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import tracelens_ext\nfrom tracelens_ext.tree import CallTree\n")
    command = [sys.executable, "-W", "always::DeprecationWarning", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{script}:2: DeprecationWarning: tracelens_ext.tree is now" in done.stderr
    assert done.stderr.count("DeprecationWarning") == 1


@pytest.mark.parametrize(("module", "name"), DOCUMENTED)
def test_what_the_documentation_had_people_import_can_be_imported(
    module: str, name: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = import_module(f"tracelens_ext.{module}")
        if name:
            assert getattr(found, name) is not None


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (module, old, new)
        for module, names in RENAMED_CLASSES.items()
        for old, new in names.items()
    ],
)
def test_a_renamed_class_has_its_old_name_too(module: str, old: str, new: str) -> None:
    home = import_module(f"tracelens_ext.{module}")
    with pytest.warns(
        DeprecationWarning, match=f"{module}.{old} is now {new}; the old name"
    ):
        renamed = getattr(home, old)
    assert renamed is getattr(home, new)


def test_other_names_are_missing_as_usual() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"tracelens_ext\.never"):
        import_module("tracelens_ext.never")
    with pytest.raises(ModuleNotFoundError, match=r"idle_time\.never"):
        import_module("tracelens_ext.gaps.never")
    gpu_events = import_module("tracelens_ext.trace.gpu_events")
    with pytest.raises(AttributeError, match="has no attribute 'never'"):
        _ = gpu_events.never


def test_objects_pickled_under_the_old_name_are_read() -> None:
    selection = import_module("tracelens_ext.analysis.iterations.selection").EventFilter
    new = pickle.dumps(selection)
    assert b"tracelens_ext.analysis.iterations.selection" in new
    old = b"ctracelens_ext.iterations.iterations\nSelection\n."
    with pytest.warns(DeprecationWarning):
        assert pickle.loads(old) is selection  # noqa: S301  # written above


def test_instances_are_those_of_the_old_class() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old_class = import_module("tracelens_ext.work.gpu_work").GpuWork
    document = {
        "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]
    }
    assert isinstance(TreePerfAnalyzer(document).work, old_class)


def test_nothing_of_ours_uses_an_old_name() -> None:
    """The package, its plugins and its tests import modules by their new names."""
    root = PACKAGE.parent
    files = [
        path
        for folder in ("tracelens_ext", "plugins", "categorizers", "tests")
        for path in (root / folder).rglob("*.py")
    ]
    old = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = (
                [node.module]
                if isinstance(node, ast.ImportFrom) and node.module
                else []
            )
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                name = module.removeprefix("tracelens_ext.")
                if name != module and new_module_name(name) is not None:
                    old.append(f"{path.relative_to(root)}: {module}")
    assert old == []


@pytest.mark.process
def test_importing_the_package_is_quick() -> None:
    """Neither a part of ours is imported, nor what takes a while in the standard library."""
    code = "import sys, tracelens_ext; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("tracelens_ext.")}
    assert ours <= {
        "tracelens_ext.compatibility",
        "tracelens_ext.compatibility.earlier_arguments",
        "tracelens_ext.compatibility.moved_modules",
        "tracelens_ext.compatibility.renamed_names",
        "tracelens_ext.settings",
    }
    assert not loaded & {"importlib.resources", "numpy", "pandas", "tempfile"}
