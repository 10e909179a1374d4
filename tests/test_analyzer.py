"""The face of the library: what it takes, what it answers, what it refuses."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tracelens_ext
from tests.support.make_trace import LAYOUTS, TraceMaker, cuda_graph_example
from tracelens_ext import TreePerfAnalyzer, read_trace
from tracelens_ext.analysis.timeline.overview import advice, overview
from tracelens_ext.cli.messages import show_problems
from tracelens_ext.compare.comparison import compare, measure
from tracelens_ext.errors import (
    MergedRanksError,
    RuleError,
    TraceError,
    TracelensError,
    TraceNotFoundError,
    UsageError,
)
from tracelens_ext.perf_report import build_perf_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd

    from tracelens_ext.trace import Trace

NVJET = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"
EXAMPLE = [
    ("graph", "GEMM", NVJET, 1, 0.22, 220.0),
    ("graph", "Flash Attention Forward", "kernel_mha", 1, 0.15, 150.0),
    (
        "graph",
        "Memory Ops",
        "void tensorrt_llm::common::scaleMatrix<...>",
        1,
        0.08,
        80.0,
    ),
]


def summary(analyzer: TreePerfAnalyzer) -> list[tuple[Any, ...]]:
    columns = [
        "cpu_op",
        "kernel_category",
        "kernel_name",
        "count",
        "total_time_ms",
        "avg_time_us",
    ]
    frame = analyzer.get_df_kernel_summary()
    return list(frame[columns].itertuples(index=False, name=None))


# What it takes.


@pytest.fixture(params=LAYOUTS)
def text(request: pytest.FixtureRequest) -> str:
    return LAYOUTS[request.param](cuda_graph_example())


def test_a_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    for source in (path, str(path)):
        assert (
            summary(TreePerfAnalyzer(source, use_kernel_name_categories=True))
            == EXAMPLE
        )
        again = TreePerfAnalyzer.from_file(source, use_kernel_name_categories=True)
        assert summary(again) == EXAMPLE
    assert summary(
        TreePerfAnalyzer.from_file(
            profile_filepath=path, use_kernel_name_categories=True
        )
    )


def test_a_gzipped_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert summary(TreePerfAnalyzer(path, use_kernel_name_categories=True)) == EXAMPLE
    with path.open("rb") as file:
        assert (
            summary(TreePerfAnalyzer(file, use_kernel_name_categories=True)) == EXAMPLE
        )
    with gzip.open(path, "rt", encoding="utf-8") as unpacked:
        assert (
            summary(TreePerfAnalyzer(unpacked, use_kernel_name_categories=True))
            == EXAMPLE
        )


def test_an_open_file(text: str) -> None:
    for source in (io.StringIO(text), io.BytesIO(text.encode())):
        assert (
            summary(TreePerfAnalyzer(source, use_kernel_name_categories=True))
            == EXAMPLE
        )


def test_a_bare_list_in_a_file() -> None:
    source = io.StringIO(json.dumps(cuda_graph_example()["traceEvents"]))
    assert summary(TreePerfAnalyzer(source, use_kernel_name_categories=True)) == EXAMPLE


def test_a_document_and_a_trace() -> None:
    document = cuda_graph_example()
    assert (
        summary(TreePerfAnalyzer(document, use_kernel_name_categories=True)) == EXAMPLE
    )
    trace = read_trace(document)
    analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
    assert analyzer.trace is trace
    assert summary(analyzer) == EXAMPLE


def test_progress(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(cuda_graph_example()), encoding="utf-8")
    seen: list[tuple[int, int | None]] = []
    TreePerfAnalyzer(path, progress=lambda done, size: seen.append((done, size)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


# The flag, and what switches it on.


def columns_of_all_tables(analyzer: TreePerfAnalyzer) -> set[str]:
    frames = [
        analyzer.get_df_kernel_summary(),
        analyzer.get_df_kernels(launcher_detail=True),
        analyzer.get_df_gpu_timeline(),
        analyzer.get_df_cpu_ops(),
    ]
    return {column for frame in frames for column in frame.columns}


def test_without_the_flag_there_is_no_category_anywhere() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example())
    assert not analyzer.use_kernel_name_categories
    assert not any("categor" in column for column in columns_of_all_tables(analyzer))
    assert analyzer.coverage.uncategorized_percent is None
    assert not any(
        "categor" in label
        for label, _ in overview(analyzer.gpu_events, analyzer.coverage)
    )
    with pytest.raises(
        UsageError, match=r"TreePerfAnalyzer\(.*use_kernel_name_categories=True\)"
    ):
        analyzer.get_df_kernel_category_summary()


def test_with_the_flag() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    assert "kernel_category" in analyzer.get_df_kernel_summary()
    assert "kernel_category" in analyzer.get_df_kernels()
    assert analyzer.get_df_kernel_category_summary()["count"].tolist() == [1, 1, 1]


def test_rules_win_and_switch_categories_on(tmp_path: Path) -> None:
    rules = tmp_path / "my.toml"
    rules.write_text(
        '[[rule]]\ncategory = "Mine"\npattern = "^kernel_m"\n', encoding="utf-8"
    )
    analyzer = TreePerfAnalyzer(cuda_graph_example(), rules=[rules])
    assert {row[2]: row[1] for row in summary(analyzer)} == {
        NVJET: "GEMM",
        "kernel_mha": "Mine",
        "void tensorrt_llm::common::scaleMatrix<...>": "Memory Ops",
    }


def test_a_categorizer_is_asked_first_and_switches_categories_on() -> None:
    def only_scaling(table: pd.DataFrame) -> list[str | None]:
        return ["Scaling" if "scale" in name else None for name in table["kernel_name"]]

    analyzer = TreePerfAnalyzer(cuda_graph_example(), categorizer=only_scaling)
    assert [row[1] for row in summary(analyzer)] == [
        "GEMM",
        "Flash Attention Forward",
        "Scaling",
    ]


def test_rules_that_are_no_good_are_refused_before_the_trace_is_read(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "my.toml"
    rules.write_text("[[rule]]\n", encoding="utf-8")
    with pytest.raises(RuleError):
        TreePerfAnalyzer(tmp_path / "nowhere.json", rules=[rules])
    with pytest.raises(UsageError):
        TreePerfAnalyzer(tmp_path / "nowhere.json", categorizer="nobody")


# Unlinked events.


def half_linked() -> TraceMaker:
    maker = TraceMaker()
    maker.launched(NVJET, 100, 30, correlation=1, at=5)
    maker.kernel("started_before_the_profiler", 0, 10, correlation=2)
    return maker


def test_unlinked_events_count_unless_told_otherwise() -> None:
    document = half_linked().document()
    for analyzer, busy in (
        (TreePerfAnalyzer(document), 0.04),
        (TreePerfAnalyzer(document, include_unlinked_kernels=True), 0.04),
        (TreePerfAnalyzer(document, include_unlinked_kernels=False), 0.03),
    ):
        times = analyzer.get_df_gpu_timeline().set_index("type")["time ms"]
        assert times["busy_time"] == busy
        # in the tables either way
        assert analyzer.get_df_kernel_summary()["count"].sum() == 2
    told = TreePerfAnalyzer(half_linked().document(), include_unlinked_kernels=False)
    assert any(
        "do not count in the timeline" in note
        for note in advice(told.work, told.coverage)
    )


def test_coverage() -> None:
    analyzer = TreePerfAnalyzer(
        half_linked().document(), use_kernel_name_categories=True
    )
    covered = analyzer.coverage
    assert (covered.events, covered.total_ns) == (2, 40_000)
    assert (covered.unlinked_events, covered.unlinked_percent) == (1, 25)
    assert covered.uncategorized_percent == 25
    assert (covered.uncategorized_names, covered.names) == (1, 2)
    assert covered.largest_uncategorized == (("started_before_the_profiler", 25),)


def test_coverage_of_nothing() -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 5)
    for with_categories in (False, True):
        analyzer = TreePerfAnalyzer(
            maker.document(), use_kernel_name_categories=with_categories
        )
        covered = analyzer.coverage
        assert (covered.events, covered.total_ns, covered.unlinked_percent) == (0, 0, 0)
        assert covered.largest_uncategorized == ()


# What the first sheet says.


def facts_of(trace: TraceMaker | Trace, **members: Any) -> dict[str, object]:
    source = trace.document(**members) if isinstance(trace, TraceMaker) else trace
    analyzer = TreePerfAnalyzer(source, use_kernel_name_categories=True)
    return dict(overview(analyzer.gpu_events, analyzer.coverage))


def test_overview() -> None:
    maker = half_linked()
    maker.op("aten::add", 0, 5)
    maker.op("no duration", 0, -1)
    maker.kernel("on another device", 120, 60, device=1)
    facts = facts_of(
        maker,
        deviceProperties=[{"id": 0, "name": "NVIDIA H100"}, {"id": 7, "name": "idle"}],
        distributedInfo={"rank": 3, "world_size": 8},
    )
    assert facts["Trace"] == "<dict>"
    assert facts["Duration (ms)"] == 0.18
    assert facts["Devices"] == "0: NVIDIA H100, GPU 1"
    assert facts["Rank"] == "3 of 8"
    assert facts["Events"] == 6
    assert facts["Events dropped"] == "1 no usable duration (dur)"
    assert facts["CPU operations"] == 1
    assert facts["GPU events"] == 3
    assert facts["GPU events unlinked"] == 2
    assert facts["GPU time unlinked (%)"] == 70
    assert facts["GPU time uncategorized (%)"] == 70
    assert facts["Kernel names uncategorized"] == "2 of 3"


def test_overview_of_little() -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 5)
    facts = facts_of(maker)
    assert facts["Devices"] == "none"
    assert facts["Events dropped"] == "none"
    assert "Rank" not in facts


def notes_of(maker: TraceMaker) -> list[str]:
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    return advice(analyzer.gpu_events, analyzer.coverage)


def test_advice() -> None:
    notes = notes_of(half_linked())
    assert any(
        "1 of 2 GPU events (25.0 % of GPU time) have no launch" in note
        for note in notes
    )
    assert any(
        "No rule matches started_before_the_profiler, which takes 25.0 %" in note
        for note in notes
    )
    assert any("has no CPU operations" in note for note in notes)
    without_gpu = TraceMaker()
    without_gpu.op("aten::add", 0, 5)
    assert any("has no GPU events" in note for note in notes_of(without_gpu))
    fine = TraceMaker()
    fine.op("aten::mm", 0, 20)
    fine.launched(NVJET, 100, 30, correlation=1, at=5)
    assert notes_of(fine) == []


# What it refuses.


def refusals(tmp_path: Path) -> Iterator[tuple[type[TraceError], Any]]:
    yield TraceNotFoundError, tmp_path / "nowhere.json"
    yield TraceError, io.BytesIO(b"")
    yield TraceError, io.BytesIO(b"[{")
    yield TraceError, {"traceEvents": []}
    merged = TraceMaker()
    for process in (1, 2):
        merged.call("cudaLaunchKernel", 0, correlation=1, process=process)
    merged.kernel("k", 5, 5, correlation=1)
    yield MergedRanksError, merged.document()


def test_errors_are_one_line_with_a_remedy(tmp_path: Path) -> None:
    for error, source in refusals(tmp_path):
        with pytest.raises(error) as caught:
            TreePerfAnalyzer(source)
        assert isinstance(caught.value, TracelensError)
        assert caught.value.exit_code == 1
        assert str(caught.value).count("\n") == 0
        assert str(caught.value).endswith(f"; {caught.value.remedy}")
    assert UsageError.exit_code == 2


# The package.


def test_a_part_that_failed_is_among_the_problems_and_in_the_notes_of_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example())
    analyzer.failures.record("The table kernels", ZeroDivisionError("division by zero"))
    sentence = (
        "The table kernels could not be computed: ZeroDivisionError: division by zero; "
        "please report this"
    )
    assert analyzer.problems == [sentence]
    assert sentence in build_perf_report(analyzer).notes
    show_problems(analyzer.problems)
    assert capsys.readouterr().err == f"tracelens-ext: {sentence}\n"


def test_every_public_name_is_there() -> None:
    for name in tracelens_ext.__all__:
        assert getattr(tracelens_ext, name) is not None
    assert set(tracelens_ext.__all__) <= set(dir(tracelens_ext))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tracelens_ext.nothing
    assert (
        importlib.import_module("tracelens_ext.analyzer").TreePerfAnalyzer
        is TreePerfAnalyzer
    )


@pytest.mark.process
def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, tracelens_ext; "
        "print(*(m for m in ('pandas', 'xlsxwriter', 'numpy', 'rich') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


# What a notebook shows.


def test_a_notebook_says_what_the_analyzer_holds(tmp_path: Path) -> None:
    path = tmp_path / "<b>.json"
    path.write_text(json.dumps(cuda_graph_example()), encoding="utf-8")
    analyzer = TreePerfAnalyzer(path, use_kernel_name_categories=True)
    assert repr(analyzer) == (
        f"<TreePerfAnalyzer of {str(path)!r}: 3 GPU events, 1 device, 1 CPU operation,"
        " kernel categories; tables: get_df_…()>"
    )
    page = analyzer._repr_html_()
    assert "&lt;b&gt;.json" in page
    assert "<b>.json" not in page
    assert "GPU time unlinked (%)" in page
    assert "get_df_kernel_summary(), " in page


def test_no_repr_is_longer_than_a_few_lines_and_html_escapes_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repr of a dataclass of arrays once had 430,932 characters."""
    name = "<script>alert(1)</script>" * 40
    maker = TraceMaker()
    for at in range(5):
        maker.op(name, 2000 * at + 50, 960)
        maker.launched(
            name, 2000 * at + 1000, 1000, correlation=at + 1, at=2000 * at + 995
        )
    path = tmp_path / f"{'long' * 50}.json"
    path.write_text(json.dumps(maker.document()), encoding="utf-8")
    analyzer = TreePerfAnalyzer(path, use_kernel_name_categories=True)
    comparison = compare([measure(analyzer.gpu_events), measure(analyzer.gpu_events)])
    shown = [
        analyzer.tree,
        analyzer.findings(),
        comparison,
        analyzer.show(),
    ]
    for each in [analyzer, analyzer.trace, *shown]:
        assert len(repr(each)) <= 500
        assert "\n" not in repr(each)
    # `show` is a page where there is one
    monkeypatch.setitem(sys.modules, "plotly", None)
    for each in shown:
        page = each._repr_html_()  # type: ignore[attr-defined]
        assert "<table" in page
        assert "<script" not in page
    told = analyzer.show()._repr_html_()
    assert "pip install &#x27;tracelens-ext[html]&#x27;" in told
    assert "Verdict: Findings explain" in told
    assert "count (GPU events)" in told
