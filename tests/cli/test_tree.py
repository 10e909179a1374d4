"""The call tree with GPU time: merged, cut, folded; checked against a walk up from each kernel."""

from __future__ import annotations

import json
import re
import shlex
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.docs_helpers import code_blocks, page_text
from tests.support.make_trace import TraceMaker, cuda_graph_example
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.operations.merged_tree import MergedTree, merged_tree
from tracelens_ext.analysis.operations.tree_table import folded_stacks
from tracelens_ext.cli import run
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import NONE, EventKind

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "traces"
PathOfNames = tuple[str, ...]


def union(intervals: list[tuple[int, int]]) -> int:
    total = 0
    reach = -1
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


def any_step(name: str) -> str:
    return re.sub(r"^ProfilerStep#\d+$", "ProfilerStep#*", name)


def walked(analyzer: TreePerfAnalyzer) -> dict[PathOfNames, tuple[int, int, int]]:
    """Path of names → (events, GPU events at and below, their busy time); threads left out."""
    trace = analyzer.trace
    tree = analyzer.tree
    events: dict[PathOfNames, set[int]] = {}
    below: dict[PathOfNames, list[int]] = {}
    for row in trace.gpu_rows.tolist():
        line = [row, *tree.ancestors(row)][::-1]
        names = [any_step(trace.name_of(r)) for r in line]
        if tree.parent(row) is None:
            names = ["(unlinked)", *names]
            line = [row, *line]
        for length in range(1, len(names) + 1):
            path = tuple(names[:length])
            events.setdefault(path, set()).add(line[length - 1])
            below.setdefault(path, []).append(row)
    ts = trace.ts
    end = trace.end
    return {
        path: (
            len(events[path]),
            len(rows),
            union([(int(ts[r]), int(end[r])) for r in rows]),
        )
        for path, rows in below.items()
    }


def paths_of(tree: MergedTree) -> list[PathOfNames]:
    """The path of every node; a thread at its head is left out."""
    paths: list[PathOfNames] = []
    for node in range(len(tree)):
        up = int(tree.parent[node])
        above = paths[up] if up != NONE else ()
        heading = (
            tree.kind[node] == EventKind.OTHER and tree.label(node) != "(unlinked)"
        )
        paths.append(above if heading else (*above, any_step(tree.label(node))))
    return paths


def assert_right(analyzer: TreePerfAnalyzer) -> None:
    tree = merged_tree(analyzer.gpu_events)
    expected = walked(analyzer)
    counts: Counter[PathOfNames] = Counter()
    gpu_events: Counter[PathOfNames] = Counter()
    busy: dict[PathOfNames, list[int]] = {}
    for node, path in enumerate(paths_of(tree)):
        if path:
            counts[path] += int(tree.count[node])
            gpu_events[path] += int(tree.gpu_events[node])
            busy.setdefault(path, []).append(int(tree.busy_ns[node]))
    assert set(counts) == set(expected)
    for path, (count, below, time) in expected.items():
        assert (counts[path], gpu_events[path]) == (count, below), path
        if len(busy[path]) == 1:  # of several threads it is the sum of unions
            assert busy[path] == [time], path
    assert int(tree.self_ns.sum()) == int(analyzer.gpu_events.duration.sum())
    check_order(tree)


def check_order(tree: MergedTree) -> None:
    """Parents stand before children, and all that is below a node right behind it."""
    line: list[int] = []
    previous: dict[int, int] = {}
    for node in range(len(tree)):
        depth = int(tree.depth[node])
        parent = int(tree.parent[node])
        assert depth <= len(line)
        line[depth:] = [node]
        assert parent == (line[depth - 1] if depth else NONE)
        if parent != NONE:
            assert tree.busy_ns[node] <= tree.busy_ns[parent]
        assert tree.busy_ns[node] <= previous.get(parent, tree.busy_ns[node])
        previous[parent] = int(tree.busy_ns[node])


def model() -> TraceMaker:
    """Two steps; `mm` twice in each, on two streams that overlap; one kernel unlinked."""
    maker = TraceMaker()
    for step in range(2):
        at = step * 1000
        maker.annotation(f"ProfilerStep#{step + 3}", at, 900)
        maker.op("aten::linear", at + 10, 300)
        for number in range(2):
            correlation = 10 * step + number + 1
            maker.op("aten::mm", at + 20 + 100 * number, 90)
            maker.call(
                "cudaLaunchKernel", at + 30 + 100 * number, correlation=correlation
            )
            start = at + 50 + 60 * number
            maker.kernel("gemm", start, 100, correlation=correlation, stream=7 + number)
        maker.op("aten::cat", at + 500, 100)
        maker.op("aten::idle", at + 610, 20)
        maker.call("cudaLaunchKernel", at + 510, correlation=10 * step + 9)
        maker.kernel("void cat<float>(float*)", at + 520, 40, correlation=10 * step + 9)
    maker.kernel("lost", 5000, 50, correlation=999)
    return maker


def analyzed(maker: TraceMaker) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document())


def test_a_small_tree() -> None:
    frame = analyzed(model()).get_df_call_tree()
    rows = [
        (
            "  " * r["depth"] + r["name"],
            r["kind"],
            r["count"],
            r["gpu_events"],
            r["busy_time_ms"],
        )
        for r in frame.to_dict("records")
    ]
    assert rows == [
        ("ProfilerStep#*", "annotation", 2, 6, 0.4),
        ("  aten::linear", "cpu_op", 2, 4, 0.32),
        ("    aten::mm", "cpu_op", 4, 4, 0.32),
        ("      cudaLaunchKernel", "launch", 4, 4, 0.32),
        ("        gemm", "kernel", 4, 4, 0.32),
        ("  aten::cat", "cpu_op", 2, 2, 0.08),
        ("    cudaLaunchKernel", "launch", 2, 2, 0.08),
        ("      void cat<float>(float*)", "kernel", 2, 2, 0.08),
        ("(unlinked)", "", 1, 1, 0.05),
        ("  lost", "kernel", 1, 1, 0.05),
    ]
    assert frame["% of GPU busy time"].iloc[0] == pytest.approx(100 * 0.4 / 0.45)


def test_without_merging_every_event_is_a_row() -> None:
    frame = analyzed(model()).get_df_call_tree(merge=False)
    assert (frame["count"] == 1).all()
    names = Counter(frame["name"])
    assert names["ProfilerStep#3"] == names["ProfilerStep#4"] == 1
    assert names["aten::mm"] == names["gemm"] == 4
    assert "aten::idle" not in names


def test_op_takes_the_outermost_matches_from_all_over_the_tree() -> None:
    analyzer = analyzed(model())
    frame = analyzer.get_df_call_tree("aten::(mm|linear)")
    assert frame["name"].tolist() == [
        "aten::linear",
        "aten::mm",
        "cudaLaunchKernel",
        "gemm",
    ]
    assert frame["depth"].tolist() == [0, 1, 2, 3]
    assert frame["busy_time_ms"].iloc[0] == 0.32
    both = analyzer.get_df_call_tree("aten::(mm|cat)")
    assert both["name"][both["depth"] == 0].tolist() == ["aten::mm", "aten::cat"]
    assert len(analyzer.get_df_call_tree("no such op")) == 0
    assert len(analyzer.get_df_call_tree("aten::idle")) == 0, "it launched nothing"


def test_ops_of_one_name_at_several_depths_are_one_root() -> None:
    maker = model()
    maker.op("aten::mm", 3000, 90)
    maker.call("cudaLaunchKernel", 3010, correlation=77)
    maker.kernel("gemm", 3020, 10, correlation=77)
    frame = analyzed(maker).get_df_call_tree("aten::mm")
    assert frame["name"].tolist() == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert frame["count"].tolist() == [5, 5, 5]


def test_threads_are_roots_when_there_are_several() -> None:
    maker = model()
    maker.op("backward", 700, 50, thread=2)
    maker.call("cudaLaunchKernel", 710, correlation=55, thread=2)
    maker.kernel("gemm_backward", 800, 30, correlation=55)
    maker.add(
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 100,
            "tid": 2,
            "args": {"name": "autograd"},
        }
    )
    frame = analyzed(maker).get_df_call_tree()
    assert frame["name"][frame["depth"] == 0].tolist() == [
        "thread 1, process 100",
        "(unlinked)",
        "autograd, process 100",
    ]
    assert_right(analyzed(maker))


def test_a_graph_launch_owns_its_kernels() -> None:
    frame = TreePerfAnalyzer(cuda_graph_example()).get_df_call_tree()
    assert frame["name"].tolist()[:2] == ["aten::something_around", "cudaGraphLaunch"]
    assert frame["gpu_events"].tolist() == [3, 3, 1, 1, 1]
    assert frame["busy_time_ms"].tolist() == [0.45, 0.45, 0.22, 0.15, 0.08]


def test_no_gpu_events() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    tree = merged_tree(analyzed(maker).gpu_events)
    assert len(tree) == 0
    assert list(folded_stacks(tree)) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.booleans()
        ),
        min_size=1,
        max_size=25,
    )
)
def test_any_tree(launches: list[tuple[int, int, int, bool]]) -> None:
    maker = TraceMaker()
    for number, (thread, depth, kernel, linked) in enumerate(launches):
        at = number * 100
        for level in range(depth):
            maker.op(
                f"op{(number + level) % 3}", at + level, 80 - 2 * level, thread=thread
            )
        if linked:
            maker.call(
                "cudaLaunchKernel", at + 10, correlation=number + 1, thread=thread
            )
        start = at + 20 * kernel
        maker.kernel(f"k{kernel}", start, 70, correlation=number + 1, stream=kernel)
    analyzer = analyzed(maker)
    assert_right(analyzer)
    tree = merged_tree(analyzer.gpu_events)
    total = int(analyzer.gpu_events.duration.sum())
    for cut in (
        {},
        {"depth": 1},
        {"depth": 2},
        {"min_percent": 30.0},
        {"min_percent": 100.0},
    ):
        options: dict[str, Any] = cut
        values = [
            int(line.rsplit(" ", 1)[1]) for line in folded_stacks(tree, **options)
        ]
        assert sum(values) == total
    assert_unmerged(analyzer, tree)


def assert_unmerged(analyzer: TreePerfAnalyzer, tree: MergedTree) -> None:
    apart = merged_tree(analyzer.gpu_events, merge=False)
    check_order(apart)
    assert len(apart) >= len(tree)
    summed: Counter[str] = Counter()
    for line in folded_stacks(apart):
        path, value = line.rsplit(" ", 1)
        summed[re.sub(r"ProfilerStep#\d+", "ProfilerStep#*", path)] += int(value)
    merged: Counter[str] = Counter()
    for line in folded_stacks(tree):
        path, value = line.rsplit(" ", 1)
        merged[path.replace("ProfilerStep#0", "ProfilerStep#*")] += int(value)
    assert summed == merged


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "nvidia/nccl",
        "graphs/training_cuda_graph",
        "graphs/vllm_decode_hip_graph",
        "edge/ns_resolution",
        "amd/Qwen_Qwen1.5-0.5B-Chat__1016005",
        "nvidia/gaunernst_bert-small-uncased__1016001",
    ],
)
def test_real_traces(name: str) -> None:
    path = SHARED / f"{name}.json.gz"
    assert_right(TreePerfAnalyzer(path))


def test_names_cannot_break_the_folded_form() -> None:
    maker = TraceMaker()
    maker.op("a;b\nc 12", 0, 50)
    maker.call("cudaLaunchKernel", 1, correlation=1)
    maker.kernel("", 10, 5, correlation=1)
    lines = list(folded_stacks(merged_tree(analyzed(maker).gpu_events)))
    assert lines == ["a:b c_12;cudaLaunchKernel;(no name) 5000"]


# The command.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with a trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(tmp_path / "cache"))
    Path("a.json").write_text(json.dumps(model().document()), encoding="utf-8")


def tree(*arguments: object) -> int:
    return run(["tree", *map(str, arguments)])


@pytest.mark.usefixtures("here")
def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree("a.json") == 0
    assert capsys.readouterr().out.splitlines() == [
        "GPU busy time: 0.450 ms",
        "",
        "busy_time_ms  % of GPU      count  call tree",
        "       0.400     88.9%          2  ProfilerStep#*",
        "       0.320     71.1%          2    aten::linear",
        "       0.320     71.1%          4      aten::mm",
        "       0.320     71.1%          4        cudaLaunchKernel",
        "       0.320     71.1%          4          [gemm]",
        "       0.080     17.8%          2    aten::cat",
        "       0.080     17.8%          2      cudaLaunchKernel",
        "       0.080     17.8%          2        [cat<float>]",
        "       0.050     11.1%          1  (unlinked)",
        "       0.050     11.1%          1    [lost]",
    ]


@pytest.mark.usefixtures("here")
def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree("a.json", "--depth", 2, "--min-percent", 15) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[3:6]] == [
        "ProfilerStep#*",
        "aten::linear",
        "aten::cat",
    ]
    assert lines[7:] == [
        "Left out: 2 below 15 % of the busy time (--min-percent); 5 deeper than 2 levels (--depth)"
    ]


@pytest.mark.usefixtures("here")
def test_folded(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree("a.json", "--folded") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ProfilerStep#*;aten::linear;aten::mm;cudaLaunchKernel;gemm 400000",
        "ProfilerStep#*;aten::cat;cudaLaunchKernel;void cat<float>(float*) 80000",
        "(unlinked);lost 50000",
    ]
    assert tree("a.json", "--folded", "--depth", 2, "--min-percent", 15) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ProfilerStep#*;aten::linear 400000",
        "ProfilerStep#*;aten::cat 80000",
        "(other) 50000",
    ]


def test_a_deep_tree_is_streamed_and_its_indentation_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    for i in range(3000):
        maker.op(f"op{i % 5}", i, 10_000 - 2 * i)
    maker.launched("k", 20_000, 5, at=3_100, correlation=1)
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(maker.document()))
    assert tree(path) == 0
    out = capsys.readouterr().out
    assert len(out) < 3002 * 300
    assert "level 3,001: " in out
    found = merged_tree(TreePerfAnalyzer(path).gpu_events)
    tracemalloc.start()
    (line,) = folded_stacks(found)
    # a path for each node were 20 MB
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    assert line.count(";") == 3001
    tracemalloc.stop()


@pytest.mark.usefixtures("here")
def test_printing_ends_and_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tree("a.json") == 0
    whole = capsys.readouterr().out.splitlines()
    monkeypatch.setattr("tracelens_ext.cli.commands.tree._MOST_PRINTED", 200)
    assert tree("a.json") == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert shown == whole[: len(shown)]
    assert last.startswith(f"… and {len(whole) - len(shown)} more lines")


@pytest.mark.usefixtures("here")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree("a.json", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["facts"] == {"Trace": "a.json", "GPU busy time": "0.450 ms"}
    assert document["notes"] == []
    frame = analyzed(model()).get_df_call_tree()
    assert document["tables"]["tree"] == frame.to_dict("records")
    assert tree("a.json", "--json", "--depth", 2, "--min-percent", 15) == 0
    document = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in document["tables"]["tree"]]
    assert names == ["ProfilerStep#*", "aten::linear", "aten::cat"]
    assert document["notes"] == [
        "Left out: 2 below 15 % of the busy time (--min-percent); 5 deeper than 2 levels (--depth)"
    ]
    assert tree("a.json", "--json", "--no-merge", "--op", "aten::mm") == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["tree"]
    assert [row["count"] for row in rows] == [1] * 12


@pytest.mark.usefixtures("here")
def test_what_has_no_name_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    maker = TraceMaker()
    maker.op(" ", 0, 50)
    maker.call("cudaLaunchKernel", 1, correlation=1)
    maker.kernel("", 10, 5, correlation=1)
    Path("a.json").write_text(json.dumps(maker.document()), encoding="utf-8")
    assert tree("a.json") == 0
    lines = [
        line.split("  1  ")[-1] for line in capsys.readouterr().out.splitlines()[3:]
    ]
    assert lines == ["(no name)", "  cudaLaunchKernel", "    [(no name)]"]


def test_a_wrong_expression_is_refused() -> None:
    analyzer = analyzed(model())
    for expression in ("(", "a{99999999999}", "*"):
        with pytest.raises(UsageError, match=r"op '.*' is not a regular expression"):
            analyzer.get_df_call_tree(expression)
    assert len(analyzer.get_df_call_tree(re.compile("aten::mm"))) == 3


@pytest.mark.usefixtures("here")
def test_python_frames(capsys: pytest.CaptureFixture[str]) -> None:
    maker = model()
    maker.frame("train.py(7): step", 0, 3000)
    Path("a.json").write_text(json.dumps(maker.document()), encoding="utf-8")
    assert tree("a.json", "--op", "aten::linear") == 0
    assert "train.py" not in capsys.readouterr().out
    assert tree("a.json", "--python", "--folded") == 0
    assert capsys.readouterr().out.startswith(
        "train.py(7): step;ProfilerStep#*;aten::linear;"
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "("], "is not a regular expression"),
        (["--op", "nothing"], "no operation that matches 'nothing'"),
        (["--json", "--folded"], "give only one of them"),
    ],
)
def test_wrong_use(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tree("a.json", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_names_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    maker = TraceMaker()
    maker.op("evil\x1b[2J", 0, 50)
    maker.call("cudaLaunchKernel", 1, correlation=1)
    maker.kernel("k", 10, 5, correlation=1)
    Path("a.json").write_text(json.dumps(maker.document()), encoding="utf-8")
    for option in ([], ["--folded"]):
        assert tree("a.json", *option) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "evil" in out


def blocks(language: str) -> list[str]:
    text = page_text("explore.md").partition("\n## The call tree\n")[2]
    return code_blocks(text, language)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_page_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "trace.json.gz"]) == 0
    printed = capsys.readouterr().out
    for block in blocks("console"):
        for line in block.splitlines():
            command, _, file = line.removeprefix("$ tracelens-ext ").partition(" > ")
            assert run(shlex.split(command, comments=True)) == 0, command
            out, err = capsys.readouterr()
            assert err == ""
            if file:
                Path(file).write_text(out, encoding="utf-8")
            printed += out
    lines = {line.rstrip() for line in printed.splitlines()}
    for block in blocks("text"):
        for line in block.splitlines():
            assert line.rstrip() in lines or line.strip() == "…", line
    for code in blocks("python"):
        exec(compile(code, "explore.md", "exec"), {})  # noqa: S102  # the page's own
