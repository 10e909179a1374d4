"""The call tree that a page draws."""

from __future__ import annotations

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.call_tree_chart import call_tree


def nodes(maker: TraceMaker) -> list[tuple[str, str, int]]:
    """Return the kind, label and parent of each node of the tree."""
    frame = call_tree(TreePerfAnalyzer(maker.document()).gpu_events)
    rows = frame[["kind", "label", "parent"]].to_numpy().tolist()
    return [(kind, label, parent) for kind, label, parent in rows]


def test_a_kernel_is_below_its_operation() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    maker.launched("gemm", 20, 10, correlation=1, at=5)
    assert nodes(maker) == [("operation", "aten::mm", -1), ("kernel", "gemm", 0)]


def test_a_kernel_launched_outside_of_operations_has_no_parent() -> None:
    maker = TraceMaker()
    maker.launched("gemm", 20, 10, correlation=1, at=5)
    maker.launched("softmax", 40, 5, correlation=2, at=15)
    assert nodes(maker) == [("kernel", "gemm", -1), ("kernel", "softmax", -1)]
