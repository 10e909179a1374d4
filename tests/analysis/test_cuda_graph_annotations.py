"""PyTorch's annotations of CUDA graph nodes: in arguments of GPU events, and in side files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracelens_ext.analysis.cuda_graphs import annotations as graph_annotations
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.errors import TraceFormatError, TraceTooLargeError
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GRAPH = 7
ATTENTION = {
    "module_fqn": "layers.0.attention",
    "name": "attention::layers.0.attention",
}
HEAD = {"module_fqn": "head"}


def event(
    category: str, name: str, ts: int, dur: int, /, **args: Any
) -> dict[str, Any]:
    """Return a complete event on the host or on stream 7."""
    process = 42
    thread = 42
    if category in {"kernel", "gpu_memcpy"}:
        process = 0
        thread = 7
    event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
    return event | {"ts": ts, "dur": dur, "args": args}


def replays(*launches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a trace with graph launches; each has the additional arguments of its kernels."""
    events = []
    for launch, kernels in enumerate(launches):
        start = 1000 * launch
        correlation = launch + 1
        events.append(
            event("cuda_runtime", "cudaGraphLaunch", start, 5, correlation=correlation)
        )
        for number, additional_args in enumerate(kernels, start=1):
            args = {
                "device": 0,
                "stream": 7,
                "correlation": correlation,
                "graph id": GRAPH,
                "graph node id": GRAPH << 32 | number,
            }
            args |= additional_args
            events.append(event("kernel", f"k{number}", start + 10 * number, 4, **args))
    return {"traceEvents": events}


def modules(analyzer: TreePerfAnalyzer, *, instances: bool = True) -> dict[str, int]:
    """Return the number of GPU events of each module path."""
    table = analyzer.get_df_nn_modules(instances=instances)
    return dict(zip(table["path"], table["kernels"], strict=True))


@pytest.mark.parametrize(
    "annotation",
    [
        ATTENTION,
        {"annotation": json.dumps([{"name": "outer", "module_fqn": "x"}, ATTENTION])},
        {"annotation": [{"module_fqn": "x"}, ATTENTION]},
        {"annotation": json.dumps(ATTENTION)},
    ],
)
def test_kernels_of_a_graph_have_the_modules_of_their_annotation(
    annotation: dict[str, Any],
) -> None:
    """Annotations are keys, or a list whose later entries win, as JSON or as text of JSON."""
    analyzer = TreePerfAnalyzer(replays([annotation, HEAD, {}]))
    assert modules(analyzer) == {"layers/0": 1, "layers/0/attention": 1, "head": 1}
    assert modules(analyzer, instances=False) == {
        "layers": 1,
        "layers/attention": 1,
        "head": 1,
    }
    assert analyzer.tree.by_unknown_graph.tolist() == [False, False, True]


def test_a_name_without_a_module_is_a_range_around_the_kernel() -> None:
    for annotation in (
        {"name": "rope"},
        {"annotation": "rope"},
        {"annotation": '[{"str": "rope"}]'},
    ):
        analyzer = TreePerfAnalyzer(replays([annotation]))
        assert not len(analyzer.get_df_nn_modules())
        (parent,) = analyzer.tree.parent_of_gpu.tolist()
        assert analyzer.trace.name_of(parent) == "rope"


def test_replays_without_annotations_take_those_of_other_replays_of_the_node() -> None:
    """A small node id beside a graph id means the same node as the combined number."""
    small_ids = [{"graph node id": 1}, {"graph node id": 2}]
    analyzer = TreePerfAnalyzer(replays([ATTENTION, HEAD], [{}, {}], small_ids))
    assert modules(analyzer) == {"layers/0": 3, "layers/0/attention": 3, "head": 3}


def side_file(tmp_path: Path, content: object) -> Path:
    """Write a trace of rank 3 and a side file with this content; return the path of the trace."""
    trace = tmp_path / "step_000000000014" / "000003.4711.pt.trace.json"
    trace.parent.mkdir()
    trace.write_text(json.dumps(replays([{}, {}, HEAD])))
    (tmp_path / "kernel_annotations_rank3_fwd.json").write_text(json.dumps(content))
    return trace


def test_the_side_file_annotates_kernels_without_an_annotation_of_their_own(
    tmp_path: Path,
) -> None:
    """Keys are combined node numbers as text; values are lists whose later entries win."""
    nodes = [str(GRAPH << 32 | node_id) for node_id in (1, 2, 3)]
    content = {
        nodes[0]: [{"module_fqn": "x"}, ATTENTION],
        nodes[1]: ["tail"],
        nodes[2]: [ATTENTION],
    }
    trace = side_file(tmp_path, content)
    assert modules(TreePerfAnalyzer(trace)) == {
        "layers/0": 1,
        "layers/0/attention": 1,
        "head": 1,
    }
    other_file = tmp_path / "other.json"
    other_file.write_text(json.dumps({nodes[1]: [HEAD]}))
    reading = ReadingOptions(kernel_annotations=str(other_file))
    assert modules(TreePerfAnalyzer(trace, reading=reading)) == {"head": 2}


@pytest.mark.parametrize("content", [[1], {"x": [{}]}, "text", None])
def test_a_malformed_side_file_is_an_error(tmp_path: Path, content: object) -> None:
    trace = side_file(tmp_path, content)
    with pytest.raises(TraceFormatError, match="annotations"):
        TreePerfAnalyzer(trace)


def test_a_too_large_side_file_is_an_error_about_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = side_file(tmp_path, {"1": [HEAD]})
    monkeypatch.setattr(graph_annotations, "_MAX_FILE_BYTES", 10)
    with pytest.raises(TraceTooLargeError, match=r"is larger than 10 bytes"):
        TreePerfAnalyzer(trace)


def test_unknown_keys_in_a_side_file_are_ignored(tmp_path: Path) -> None:
    trace = side_file(tmp_path, {"1": {"a": [[]]}})
    assert modules(TreePerfAnalyzer(trace)) == {"head": 1}


def test_a_copy_named_memcpy_gets_its_direction_from_its_arguments() -> None:
    copy = {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device"}
    document = {"traceEvents": [event("gpu_memcpy", "Memcpy", 1, 2, bytes=4, **copy)]}
    trace = TreePerfAnalyzer(document).trace
    (row,) = trace.gpu_rows.tolist()
    assert trace.name_of(row) == "Memcpy HtoD (Pageable -> Device)"


def test_sampled_gpu_counters_are_summarized_in_a_table() -> None:
    samples = [
        {
            "ph": "C",
            "name": "SM Active (%)",
            "pid": "GPU 1 Counters",
            "ts": ts,
            "args": {"": value},
        }
        for ts, value in ((1, 10.5), (2, "20.5"), (3, None))
    ]
    document = {"traceEvents": [*samples, event("kernel", "k", 1, 2)]}
    table = TreePerfAnalyzer(document).get_df_gpu_counters()
    assert table.iloc[0].tolist() == [1, "SM Active (%)", 2, 15.5, 10.5, 20.5]
