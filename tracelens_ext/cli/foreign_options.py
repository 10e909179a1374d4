"""Options of TraceLens's scripts, and arguments of HTA, by the names that they have here."""

from __future__ import annotations

from collections.abc import Iterable

from tracelens_ext.tracelens_calls import INSTEAD

_RANKS = "tracelens-ext fleet FOLDER -o RESULTS, or report FOLDER"
#: Underscores stand for hyphens too.
_HERE = {
    "collective_analysis": "--collective-analysis of report",
    "detailed_analysis": "tracelens-ext ranks RESULTS, after fleet",
    "disable_coll_analysis": "--no-collective-analysis of report",
    "duration_ratio": "tracelens-ext kernels TRACE --top N",
    "enable_kernel_summary": "--kernel-summary of report",
    "gpu_arch_json_path": "--device-peaks FILE of report or roofline",
    "include_overlap_info": "leave it out; the GPU timeline tells what is exposed",
    "include_unlinked_kernels": "leave it out; they count (--exclude-unlinked-kernels)",
    "num_kernels": "tracelens-ext kernels TRACE --top N",
    "output_csv_dir": "--csv-dir FOLDER of report",
    "output_csvs_dir": "--csv-dir FOLDER of report",
    "output_dir": "--output FOLDER of report",
    "output_xlsx_path": "--output FILE.xlsx of report",
    "profile_json_path": "tracelens-ext report TRACE",
    "profile_path": "tracelens-ext report TRACE",
    "topk_roofline_ops": "tracelens-ext roofline TRACE --top N",
    "trace_dir": _RANKS,
    "trace_files": _RANKS,
    "trace_glob": _RANKS,
    "trace_pattern": _RANKS,
    "use_multiprocessing": "--jobs N",
    "visualize": "--html FILE of report",
    "world_size": "leave it out; the traces tell it",
}


def hint(option: str, known: Iterable[str]) -> str:
    """What to write in place of an option that there is not; empty if nothing is known.

    Args:
        option: as the user wrote it.
        known: the options of the command `report`.
    """
    name = option.lstrip("-").replace("-", "_")
    ours = f"--{name.replace('_', '-')}"
    if name not in _HERE and ours in known and ours != option:
        return f"{ours} of report"
    return _HERE.get(name) or INSTEAD.get(name, "")
