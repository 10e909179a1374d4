"""What PyTorch's annotations of CUDA graphs say of kernels, wherever they were written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.errors import TraceFormatError
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
    """A complete event, on the host or on stream 7."""
    place = (0, 7) if category in {"kernel", "gpu_memcpy"} else (42, 42)
    event = {"ph": "X", "cat": category, "name": name, "pid": place[0], "tid": place[1]}
    return event | {"ts": ts, "dur": dur, "args": args}


def replays(*args_of_kernels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A replay of a graph of so many kernels for each sequence of their arguments."""
    events = []
    for number, kernels in enumerate(args_of_kernels):
        at = 1000 * number
        events.append(
            event("cuda_runtime", "cudaGraphLaunch", at, 5, correlation=number + 1)
        )
        for place, args in enumerate(kernels):
            ids = {
                "device": 0,
                "stream": 7,
                "correlation": number + 1,
                "graph id": GRAPH,
            }
            args = ids | {"graph node id": GRAPH << 32 | place + 1} | args
            events.append(
                event("kernel", f"k{place}", at + 10 * (place + 1), 4, **args)
            )
    return {"traceEvents": events}


def modules(analyzer: TreePerfAnalyzer, *, instances: bool = True) -> dict[str, int]:
    """GPU events by path of modules."""
    table = analyzer.get_df_nn_modules(instances=instances)
    return dict(zip(table["path"], table["kernels"], strict=True))


@pytest.mark.parametrize(
    "said",
    [
        ATTENTION,
        {"annotation": json.dumps([{"name": "outer", "module_fqn": "x"}, ATTENTION])},
        {"annotation": [{"module_fqn": "x"}, ATTENTION]},
        {"annotation": json.dumps(ATTENTION)},
    ],
)
def test_kernels_of_a_graph_have_the_modules_of_their_annotation(
    said: dict[str, Any],
) -> None:
    """As keys, as a list, of which later entries win, as JSON or as text of it."""
    analyzer = TreePerfAnalyzer(replays([said, HEAD, {}]))
    assert modules(analyzer) == {"layers/0": 1, "layers/0/attention": 1, "head": 1}
    assert modules(analyzer, instances=False) == {
        "layers": 1,
        "layers/attention": 1,
        "head": 1,
    }
    assert analyzer.tree.by_unknown_graph.tolist() == [False, False, True]


def test_a_name_without_a_module_is_a_range_around_the_kernel() -> None:
    for said in (
        {"name": "rope"},
        {"annotation": "rope"},
        {"annotation": '[{"str": "rope"}]'},
    ):
        analyzer = TreePerfAnalyzer(replays([said]))
        assert not len(analyzer.get_df_nn_modules())
        (parent,) = analyzer.tree.parent_of_gpu.tolist()
        assert analyzer.trace.name_of(parent) == "rope"


def test_replays_without_annotations_have_those_of_their_nodes() -> None:
    """The lower half of a node's number with the graph is the same as the whole."""
    lower = [{"graph node id": 1}, {"graph node id": 2}]
    analyzer = TreePerfAnalyzer(replays([ATTENTION, HEAD], [{}, {}], lower))
    assert modules(analyzer) == {"layers/0": 3, "layers/0/attention": 3, "head": 3}


def side_file(tmp_path: Path, content: object) -> Path:
    """A trace of rank 3 without annotations, and a file beside it; the trace's path."""
    trace = tmp_path / "step_000000000014" / "000003.4711.pt.trace.json"
    trace.parent.mkdir()
    trace.write_text(json.dumps(replays([{}, {}, HEAD])))
    (tmp_path / "kernel_annotations_rank3_fwd.json").write_text(json.dumps(content))
    return trace


def test_the_side_file_tells_what_kernels_do_not_say_themselves(tmp_path: Path) -> None:
    """Keys are whole numbers of nodes as text, values lists, of which later entries win."""
    node = [str(GRAPH << 32 | place) for place in (1, 2, 3)]
    content = {
        node[0]: [{"module_fqn": "x"}, ATTENTION],
        node[1]: ["tail"],
        node[2]: [ATTENTION],
    }
    trace = side_file(tmp_path, content)
    assert modules(TreePerfAnalyzer(trace)) == {
        "layers/0": 1,
        "layers/0/attention": 1,
        "head": 1,
    }
    other = tmp_path / "other.json"
    other.write_text(json.dumps({node[1]: [HEAD]}))
    reading = ReadingOptions(kernel_annotations=str(other))
    assert modules(TreePerfAnalyzer(trace, reading=reading)) == {"head": 2}


@pytest.mark.parametrize(
    "content", [[1], {"x": [{}]}, "text", {"1": {"a": [[]]}}, None]
)
def test_a_side_file_that_is_none_is_refused_in_a_line(
    tmp_path: Path, content: object
) -> None:
    trace = side_file(tmp_path, content)
    if content == {"1": {"a": [[]]}}:  # a dict that tells nothing
        assert TreePerfAnalyzer(trace)
        return
    with pytest.raises(TraceFormatError, match="annotations"):
        TreePerfAnalyzer(trace)


def test_copies_of_one_name_are_called_by_their_direction() -> None:
    copy = {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device"}
    document = {"traceEvents": [event("gpu_memcpy", "Memcpy", 1, 2, bytes=4, **copy)]}
    (row,) = (trace := TreePerfAnalyzer(document).trace).gpu_rows.tolist()
    assert trace.name_of(row) == "Memcpy HtoD (Pageable -> Device)"


def test_counters_of_gpus_become_a_table() -> None:
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
