"""A plugin that uses every hook of tracelens-ext."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext import hookimpl

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext import TreePerfAnalyzer


@hookimpl
def tracelens_rule_packs() -> list[Path]:
    """The rules of this plugin."""
    return [Path(__file__).with_name("rules.toml")]


@hookimpl(priority=-1)
def tracelens_categorize_kernels(table: pd.DataFrame) -> pd.Series[Any]:
    """Kernels that an operation of ours launched and that our rules do not know."""
    ours = table["cpu_op"].str.startswith("example_company::", na=False)
    return ours.map({True: "Example Other", False: None})


@hookimpl
def tracelens_report_sheets(analyzer: TreePerfAnalyzer) -> dict[str, pd.DataFrame]:
    """The ten kernels with the longest total time."""
    kernels = analyzer.get_df_kernel_summary()
    return {"example_longest": kernels.nlargest(10, "total_time_ms")}


@hookimpl
def tracelens_readers() -> list[KernelListReader]:
    """The reader of this plugin's own format."""
    return [KernelListReader()]


class KernelListReader:
    """Lines of `start_us,duration_us,kernel name` under the heading `# kernel list`."""

    name = "kernel list"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the file has our heading."""
        return head.startswith(b"# kernel list")

    def read(self, path: Path) -> dict[str, Any]:
        """The kernels as PyTorch's profiler would write them."""
        rows = [
            line.split(",", 2)
            for line in path.read_text(encoding="utf-8").splitlines()[1:]
        ]
        events = [
            {
                "ph": "X",
                "cat": "kernel",
                "pid": 0,
                "tid": 7,
                "ts": float(start),
                "dur": float(duration),
                "name": name,
                "args": {"device": 0, "stream": 7},
            }
            for start, duration, name in rows
        ]
        return {"traceEvents": events}
