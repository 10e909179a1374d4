"""Waits for `import torch` in every Python process of a program that is being recorded.

Python imports this file at its start, because its folder is in front of `PYTHONPATH`. To cost a
process without PyTorch as little as possible, this file only imports modules that Python has
already loaded. `pathlib`, `typing` or `importlib.util` would cost milliseconds.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(__file__)
_PACKAGE = "tracelens_ext_hook"
#: Folder of the files about processes, which the reporting program reads.
_PROCESSES = os.path.join(_FOLDER, "processes")
#: This file exists if any Python process loaded the hook.
_PYTHON_RAN = os.path.join(_PROCESSES, "python-ran")


class _TorchFinder:
    """Finds PyTorch with the other finders, and loads the recorder once PyTorch is imported."""

    def __init__(self) -> None:
        self._is_searching = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the module spec of PyTorch; None for every other module."""
        if name != "torch" or self._is_searching:
            return None
        self._is_searching = True  # another finder may ask all finders in turn
        try:
            spec = self._ask_other_finders(name, path, target)
        finally:
            self._is_searching = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._follow(spec.loader)
        return spec

    def _ask_other_finders(self, name: str, path: "Any", target: "Any") -> "Any":
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _follow(self, loader: "Any") -> None:
        """Make the loader of PyTorch load the recorder afterwards; otherwise it stays unchanged."""
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _load_recorder(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # the loader cannot have attributes of its own
            _write_problem("PyTorch is loaded by " + repr(type(loader)))


def _load_recorder(torch: "Any") -> None:
    """Load the recorder. An error is written to a file, so that the program goes on."""
    try:
        from importlib import util

        package_folder = os.path.join(_FOLDER, _PACKAGE)
        spec = util.spec_from_file_location(
            _PACKAGE,
            os.path.join(package_folder, "__init__.py"),
            submodule_search_locations=[package_folder],
        )
        assert spec is not None  # Python always has a loader for .py files
        assert spec.loader is not None
        package = util.module_from_spec(spec)
        sys.modules[_PACKAGE] = package
        spec.loader.exec_module(package)
        package.install(torch, _FOLDER)
    except Exception as error:
        _write_problem(repr(error))


def _write_problem(problem: str) -> None:
    """Write a problem to a file, which the reporting program reads."""
    path = os.path.join(_PROCESSES, "problem-" + str(os.getpid()))
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(problem)
    except OSError:
        pass


def _leave_search_path() -> None:
    """Remove this folder from the search path, so that the program's own imports do not change."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)


def _note_that_python_ran() -> None:
    try:
        if not os.path.exists(_PYTHON_RAN):
            os.close(os.open(_PYTHON_RAN, os.O_CREAT | os.O_WRONLY, 0o666))
    except OSError:  # the folder no longer exists, because the recording is over
        pass


def _start() -> None:
    """Load the recorder, now or once PyTorch is imported."""
    _leave_search_path()
    if hasattr(sys, "_tracelens_ext_records"):
        return  # a recording within another one: the inner hook came first, and records
    sys._tracelens_ext_records = True  # type: ignore[attr-defined]
    _note_that_python_ran()
    if "torch" in sys.modules:  # a .pth file imported it
        _load_recorder(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _TorchFinder())


def _run_existing_sitecustomize() -> None:
    """Import the `sitecustomize` that Python would have found without this file.

    If there is none, the import raises the error that Python expects and ignores. Python reports
    errors within that module as usual.
    """
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


if __name__ == "sitecustomize":  # not if the file is imported under another name
    _start()
    _run_existing_sitecustomize()
