"""The numbers of the chart: inputs, time that is counted once, sums by kernel and by category."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chart_helpers import (
    GEMM,
    NORM,
    an_input,
    analyzed,
    overlapping,
    run_of,
    two_runs,
)
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.engine_chart.runs import (
    ELAPSED,
    NOT_GPU,
    category_table,
    input_table,
    kernel_table,
    measure,
    measure_run,
)
from tracelens_ext.compare.engine_chart.specification import ChartInput, parse_inputs
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.trace.intervals import non_overlapped_time, union_length

DEF_ABC = {
    "DEF": {
        "ABC": {
            "^H|^I": "gemm",
            "J|K": "attn",
            "CUDA mem": "non-gpu-H_D_memops",
            ".*": "misc",
        }
    }
}

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


def naive(spans: list[tuple[int, int]]) -> list[int]:
    """Give each instant to the event that started first of those that cover it."""
    own_time = [0] * len(spans)
    for instant in range(50):
        covering_events = [
            (start, event)
            for event, (start, duration) in enumerate(spans)
            if start <= instant < start + duration
        ]
        if covering_events:
            _, first_event = min(covering_events)
            own_time[first_event] += 1
    return own_time


@given(intervals)
def test_each_instant_belongs_to_the_event_that_covers_it_first(
    spans: list[tuple[int, int]],
) -> None:
    start = np.array([s for s, _ in spans], dtype=np.int64)
    end = start + np.array([d for _, d in spans], dtype=np.int64)
    share = non_overlapped_time(start, end)
    assert share.tolist() == naive(spans)
    assert share.sum() == union_length(start, end)
    assert (share <= end - start).all()


@given(intervals, st.integers(-(2**61), 2**61))
def test_non_overlapped_time_does_not_depend_on_the_date(
    spans: list[tuple[int, int]], shift: int
) -> None:
    start = np.array([s for s, _ in spans], dtype=np.int64)
    end = start + np.array([d for _, d in spans], dtype=np.int64)
    assert (
        non_overlapped_time(start + shift, end + shift)
        == non_overlapped_time(start, end)
    ).all()


def test_time_is_counted_once_and_summed_by_kernel() -> None:
    run = run_of(overlapping())
    times = run.gpu_ns_of_kernel.tolist()
    assert set(zip(run.kernel, run.category, times, strict=True)) == {
        (GEMM, "gemm", 45_000),
        (NORM, "norm", 10_000),
        ("Memset (Device)", "non-gpu-H_D_memops", 3_000),
        ("Memcpy HtoD (Pinned -> Device)", "non-gpu-H_D_memops", 0),
    }
    assert run.instances.tolist() == [2, 1, 1, 1]
    assert (run.gpu_ns, run.elapsed_ns, run.not_gpu_ns) == (58_000, 100_000, 42_000)
    assert run.elapsed_from == "the trace"
    assert run.label == "llama_vllm_run_0"


@pytest.mark.parametrize(
    ("seconds", "elapsed", "source", "warned"),
    [
        ("0", 100_000, "the trace", False),
        ("0.5", 500_000_000, "given", False),
        ("0.000058", 58_000, "given", False),
        ("1e-5", 58_000, "GPU time", True),
    ],
)
def test_the_source_of_the_elapsed_time(
    seconds: str, elapsed: int, source: str, warned: bool
) -> None:
    run = run_of(overlapping(), seconds=seconds)
    assert (run.elapsed_ns, run.elapsed_from) == (elapsed, source)
    assert run.not_gpu_ns == elapsed - run.gpu_ns >= 0
    assert (
        any("less than the GPU time" in warning for warning in run.warnings) == warned
    )


def test_several_gpus_share_one_bar_unless_they_are_split() -> None:
    maker = TraceMaker()
    maker.gpu("kernel", GEMM, 0, 10, device=0)
    maker.gpu("kernel", NORM, 5, 10, device=1)
    gpu_events = analyzed(maker).gpu_events
    whole = measure_run(gpu_events, an_input(), 0)
    assert whole.gpu_ns == whole.elapsed_ns == 15_000
    assert whole.devices == (0, 1)
    assert any("2 GPUs" in note and "--per-device" in note for note in whole.notes)
    runs_of_devices = measure(gpu_events, an_input(), 0, "device")
    assert [run.label for run in runs_of_devices] == [
        "llama_vllm_run_0_gpu0",
        "llama_vllm_run_0_gpu1",
    ]
    assert [run.gpu_ns for run in runs_of_devices] == [10_000, 10_000]
    assert [run.category for run in runs_of_devices] == [["gemm"], ["norm"]]
    assert not any(run.notes for run in runs_of_devices)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy"),
        ("CopyHostToDevice", "gpu_memcpy"),
        ("something odd", "gpu_memcpy"),
        ("Memset (Device)", "gpu_memset"),
        ("[CUDA memcpy Device-to-Host]", "gpu_memcpy"),
    ],
)
def test_maps_for_nsight_names_categorize_copies_and_memsets(
    name: str, kind: str
) -> None:
    maker = TraceMaker()
    maker.gpu(kind, name, 0, 10)
    maker.gpu("kernel", "J", 20, 10)
    maker.gpu("kernel", "nobody knows it", 30, 10)
    run = measure_run(analyzed(maker, DEF_ABC).gpu_events, an_input(), 0)
    found = dict(zip(run.kernel, run.category, strict=True))
    assert found == {name: "non-gpu-H_D_memops", "J": "attn", "nobody knows it": "misc"}


def test_maps_can_distinguish_directions_and_rules_of_the_user_take_precedence(
    tmp_path: Path,
) -> None:
    ways = {
        "DEF": {
            "ABC": {
                "Host-to-Device": "up",
                "Device-to-Host": "down",
                "CUDA mem": "rest",
            }
        }
    }
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\ncategory = "mine"\npattern = "Memset"\n', encoding="utf-8"
    )
    maker = TraceMaker()
    names = [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pinned)",
        "Memcpy PtoP",
    ]
    for place, name in enumerate(names):
        maker.gpu("gpu_memcpy", name, 10 * place, 10 - place)
    maker.gpu("gpu_memset", "Memset (Device)", 40, 2)
    analyzer = TreePerfAnalyzer(maker.document(), categorizer=ways, rules=[rules])
    run = measure_run(analyzer.gpu_events, an_input(), 0)
    assert run.category == ["up", "down", "rest", "mine"]


def test_the_catch_all_of_a_map_categorizes_copies_too() -> None:
    maker = TraceMaker()
    maker.gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10)
    maker.gpu("gpu_memset", "Memset (Device)", 40, 2)
    for mapping, category in (
        ({"gemm": "gemm"}, "others"),
        ({"DEF": {"ABC": {"nvjet": "b", ".*": "misc"}}}, "misc"),
        ({"DEF": {"ABC": {"nvjet": "b"}}}, "(no pattern)"),
    ):
        analyzer = analyzed(maker, mapping)
        assert set(measure_run(analyzer.gpu_events, an_input(), 0).category) == {
            category
        }
        assert set(analyzer.get_df_kernel_summary()["kernel_category"]) == {category}


def test_built_in_rules_categorize_copies_too() -> None:
    run = measure_run(analyzed(overlapping(), "builtin").gpu_events, an_input(), 0)
    assert set(run.category) == {"GEMM", "Normalization", "Memory Ops"}


def test_the_error_without_gpu_events_says_how_to_record_them() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 100)
    with pytest.raises(
        TraceError, match=r"run\.json: contains no GPU event; record it with GPU"
    ):
        run_of(maker)


def test_without_categories_there_is_no_chart() -> None:
    with pytest.raises(UsageError, match="categories"):
        measure_run(
            TreePerfAnalyzer(overlapping().document()).gpu_events, an_input(), 0
        )


def test_the_csv_has_a_row_for_each_kernel_and_one_for_time_without_gpu_work() -> None:
    frame = kernel_table(two_runs())
    assert list(frame.columns) == [
        "Model_Engine",
        "Category",
        "Instances",
        "Name",
        ELAPSED,
    ]
    assert frame["Category"].is_monotonic_increasing
    assert len(frame) == 4 + 1 + 2 + 1
    not_gpu = frame[frame["Category"] == NOT_GPU]
    assert not_gpu["Name"].tolist() == [NOT_GPU, NOT_GPU]
    assert not_gpu["Instances"].tolist() == [1, 1]
    totals = frame.groupby("Model_Engine")[ELAPSED].sum()
    assert totals.index.tolist() == ["llama_vllm_run_0", "llama_vllm_run_1"]
    assert totals.tolist() == pytest.approx([1e-4, 1e-3])


def test_the_pivot_table_compares_categories() -> None:
    runs = two_runs()
    table = category_table(runs)
    assert table.index.tolist() == [
        "elementwise",
        "gemm",
        "norm",
        "non-gpu-H_D_memops",
        NOT_GPU,
    ]
    assert [table[run].to_list()[1] for run in (0, 1)] == pytest.approx([45e-6, 20e-6])
    assert table[1].isna().tolist() == [False, False, True, True, False]
    assert table[0].isna().tolist() == [True, False, False, False, False]
    for place, run in enumerate(runs):
        assert table[place].sum() == pytest.approx(run.elapsed_ns / 1e9)


def test_a_category_may_have_the_name_of_the_time_without_gpu_work() -> None:
    run = measure_run(
        analyzed(overlapping(), {"nvjet": NOT_GPU}).gpu_events, an_input(), 0
    )
    table = category_table([run])
    assert table.index.tolist().count(NOT_GPU) == 2
    assert table[0].sum() == pytest.approx(1e-4)


def test_the_table_of_inputs() -> None:
    frame = input_table(two_runs())
    assert frame["file"].tolist() == ["run.json", "run.json"]
    assert frame["elapsed from"].tolist() == ["the trace", "given"]
    assert frame["GPU (%)"].tolist() == pytest.approx([58.0, 9.0])
    assert frame["GPU events"].tolist() == [5, 2]


@pytest.mark.parametrize(
    ("text", "path", "engine", "model", "ns"),
    [
        (
            "run1.nsys-rep,vllm,llama,306",
            "run1.nsys-rep",
            "vllm",
            "llama",
            306_000_000_000,
        ),
        ("a,b,c.sqlite,vllm,gpt-oss,0", "a,b,c.sqlite", "vllm", "gpt-oss", 0),
        ("x/y.json.gz, vllm , ds , 12.5 ", "x/y.json.gz", "vllm", "ds", 12_500_000_000),
        ("r.json,vllm,llama,1e2", "r.json", "vllm", "llama", 100_000_000_000),
        (" odd name ,vllm,llama,-0", " odd name ", "vllm", "llama", 0),
        ("r.json,vllm,llama,1e-12", "r.json", "vllm", "llama", 1),
    ],
)
def test_specifications(text: str, path: str, engine: str, model: str, ns: int) -> None:
    assert parse_inputs([text]) == [ChartInput(Path(path), engine, model, ns)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected FILE,ENGINE,MODEL,SECONDS"),
        ("run.json", "expected FILE,ENGINE,MODEL,SECONDS"),
        ("run.json,vllm,llama", "expected FILE,ENGINE,MODEL,SECONDS"),
        (",vllm,llama,1", "FILE is empty"),
        ("r.json,,llama,1", "ENGINE is empty"),
        ("r.json,vllm, ,1", "MODEL is empty"),
        ("r.json,vllm,llama,", "'' is not a number of seconds"),
        ("r.json,vllm,llama,nan", "'nan' is not a number of seconds"),
        ("r.json,vllm,llama,inf", "'inf' is not a number of seconds"),
        ("r.json,vllm,llama,1e999", "'1e999' is not a number of seconds"),
        ("r.json,vllm,llama,1e300", "'1e300' is not a number of seconds"),
        ("r.json,vllm,llama,1e10", "'1e10' is not a number of seconds"),
        ("r.json,vllm,llama,-1", "'-1' is not a number of seconds"),
        ("r.json,vllm,llama,5 min", "'5 min' is not a number of seconds"),
    ],
)
def test_wrong_specifications_are_explained(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inputs([text])
    assert words in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_specification_or_a_usage_error(text: str) -> None:
    for bare_files in (False, True):
        try:
            (found,) = parse_inputs([text], bare_files=bare_files)
        except UsageError:
            continue
        assert found.elapsed_ns >= 0
        assert found.label(3).endswith("3")


def test_bare_files_are_accepted_with_one_categorizer_for_all() -> None:
    texts = ["run.json", "a,b.json", "a,b,c,d.json", "r.json,vllm,llama,5"]
    inputs = parse_inputs(texts, bare_files=True)
    assert [str(chart_input.path) for chart_input in inputs] == [
        "run.json",
        "a,b.json",
        "a,b,c,d.json",
        "r.json",
    ]
    labels = [chart_input.label(number) for number, chart_input in enumerate(inputs)]
    assert labels == [
        "run_0",
        "a,b_1",
        "a,b,c,d_2",
        "llama_vllm_r_3",
    ]
    with pytest.raises(UsageError, match="give a file"):
        parse_inputs([""], bare_files=True)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("run.nsys-rep", "run"),
        ("run.SQLITE", "run"),
        ("a.b.json.gz", "a.b"),
        ("x/run.json", "run"),
        ("run.qdrep", "run"),
        ("run.txt", "run.txt"),
        ("run_cuda_gpu_trace.csv", "run_cuda_gpu_trace"),
    ],
)
def test_labels(name: str, stem: str) -> None:
    assert ChartInput(Path(name), "vllm", "ds").label(4) == f"ds_vllm_{stem}_4"
