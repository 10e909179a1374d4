"""Lets scripts for TraceLens call this package: static methods, and keywords of TraceLens."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tracelens_ext.errors import UsageError

_Arguments = ParamSpec("_Arguments")
_Self = TypeVar("_Self")
_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_EXTENSION = "write a plugin; tracelens_ext.hooks.hookspecs has its hooks"
_TREE = "leave it out; the call tree is built here"
_PHASES = (
    "leave it out; get_df_phases() finds the phases from the annotations of the engine"
)
_PEAKS = "give device_peaks to the report, or to get_df_roofline()"
#: Keyword of TraceLens → what to do instead. A function here may accept some of them itself.
INSTEAD = {
    **dict.fromkeys(("arch", "gpu_arch_json_path"), _PEAKS),
    **dict.fromkeys(("augmented_tree", "rebuild_tree"), _TREE),
    **dict.fromkeys(("decode_threshold", "inference_phase_analysis"), _PHASES),
    **dict.fromkeys(("extension_file", "tree_postprocess_extension"), _EXTENSION),
    "comparison_json_path": "compare with: tracelens-ext compare A B",
    "detect_recompute": "leave it out; tables have `is_recompute` if anything was recomputed",
    "enable_pseudo_ops": "leave it out; there are no pseudo operations",
    "event_to_category": "leave it out; the kinds of events are taken from the profiler",
    "include_args": "leave it out; the arguments are always available",
    "include_kernel_names": "use include_kernel_details=True",
    "include_nccl": "use get_df_collectives()",
    "include_overlap_info": "use get_df_gpu_timeline(), which shows what is exposed",
    "inductor_cache_dir": "leave it out; Inductor kernels are recognized by name",
    "jax": "leave it out; use categorizer='jax' for JAX's categories",
    "python_path": "leave it out; nothing is simulated",
    "topk_roofline_ops": "use get_df_roofline().head(N), or: tracelens-ext roofline --top N",
    "tree": "use trace, the path of the trace",
}


def knows_tracelens(function: _Function) -> _Function:
    """Let a function refuse keywords of TraceLens that it does not accept, with a replacement.

    For any other unknown keyword, it raises the same `TypeError` as Python.
    """
    own_parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:  # noqa: ANN401  # whatever the function takes
        for name in given:
            if name in own_parameters:
                continue
            called = function.__qualname__.removesuffix(".__init__")
            if name in INSTEAD:
                raise UsageError(f"{called} has no argument {name!r}: {INSTEAD[name]}")
            near = [
                f"; did you mean {known!r}?"
                for known in get_close_matches(name, own_parameters, n=1)
            ]
            raise TypeError(
                f"{called}() got an unexpected keyword argument {name!r}{''.join(near)}"
            )
        return function(*args, **given)

    return checked  # type: ignore[return-value]  # of the same signature


class OnClassToo(Generic[_Self, _Arguments, _Result]):
    """A method that can also be called on the class, like static methods of TraceLens.

    Called on the class, its `self` is None.
    """

    def __init__(
        self, method: Callable[Concatenate[_Self | None, _Arguments], _Result]
    ) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(
        self, instance: _Self | None, owner: type[_Self]
    ) -> Callable[_Arguments, _Result]:
        """Return the method bound to an object, or to None for the class."""
        return functools.wraps(self._method)(functools.partial(self._method, instance))


_RANKS = "tracelens-ext fleet FOLDER -o RESULTS, or report FOLDER"
#: Option of a script of TraceLens, or argument of HTA → the option here. An underscore stands for a
#: hyphen, too.
_OPTIONS = {
    **dict.fromkeys(
        ("duration_ratio", "num_kernels"), "tracelens-ext kernels TRACE --top N"
    ),
    **dict.fromkeys(
        ("output_csv_dir", "output_csvs_dir"), "--csv-dir FOLDER of report"
    ),
    **dict.fromkeys(
        ("profile_json_path", "profile_path"), "tracelens-ext report TRACE"
    ),
    **dict.fromkeys(
        ("trace_dir", "trace_files", "trace_glob", "trace_pattern"), _RANKS
    ),
    "collective_analysis": "--collective-analysis of report",
    "detailed_analysis": "tracelens-ext ranks RESULTS, after fleet",
    "disable_coll_analysis": "--no-collective-analysis of report",
    "enable_kernel_summary": "--kernel-summary of report",
    "gpu_arch_json_path": "--device-peaks FILE of report or roofline",
    "include_overlap_info": "leave it out; the GPU timeline shows what is exposed",
    "include_unlinked_kernels": "leave it out; they are included (--exclude-unlinked-kernels)",
    "output_dir": "--output FOLDER of report",
    "output_xlsx_path": "--output FILE.xlsx of report",
    "topk_roofline_ops": "tracelens-ext roofline TRACE --top N",
    "use_multiprocessing": "--jobs N",
    "visualize": "--html FILE of report",
    "world_size": "leave it out; it is read from the traces",
}


def option_hint(option: str, known_options: Iterable[str]) -> str:
    """Return what replaces an option of TraceLens; empty if it has no replacement.

    Args:
        option: the option, as the user wrote it.
        known_options: the options of the command `report`.
    """
    name = option.lstrip("-").replace("-", "_")
    ours = f"--{name.replace('_', '-')}"
    if name not in _OPTIONS and ours in known_options and ours != option:
        return f"{ours} of report"
    return _OPTIONS.get(name) or INSTEAD.get(name, "")
