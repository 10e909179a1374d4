"""What is said of a device depends on that device: other devices change nothing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tests.support.random_traces import JobShape, job_shapes, trace_of
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.isolation import DEBUG_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.make_trace import Document, Event

TABLES = (
    "gap_summary",
    "idle_cpu_activity",
    "gap_streams",
    "idle_by_kernel_pair",
    "gap_full_names",
    "gap_histogram",
    "gaps",
    "gaps_longest",
    "kernels",
    "gpu_time_by_category",
    "kernel_categories",
    "kernels_by_category",
    "kernel_summary",
    "kernel_statistics",
    "kernel_full_names",
    "kernel_sources",
    "short_kernel_histogram",
    "short_kernels_summary",
    "unlinked_kernels",
    "gpu_timeline",
    "gpu_counters",
    "queue_length",
    "copy_bandwidth",
    "timeline_bins",
    "timeline_markers",
    "recording",
    "nn_modules",
    "call_tree",
    "tree",
    "ops_summary_by_category",
    "ops_summary",
    "ops_unique_args",
    "cpu_ops",
    "iterations",
    "iteration_statistics",
    "coll_analysis",
)
#: Tables with rows of one device each, or of which every device has a share that is exact.
OF_DEVICES = (
    "gaps",
    "gaps_longest",
    "gap_streams",
    "gpu_timeline",
    "queue_length",
    "timeline_bins",
)
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
#: An example computes every table, some of them several times.
FEW = settings(max_examples=max(settings().max_examples // 5, 3))


def is_gpu_event(event: Event) -> bool:
    return event.get("cat") in GPU_CATEGORIES


def analyzer_of(document: Document) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(
        document, use_kernel_name_categories=True, add_python_func=True
    )


def document_of(shape: JobShape) -> Document:
    """A random trace whose times are whole nanoseconds."""
    document = deepcopy(trace_of(shape))
    for event in document["traceEvents"]:
        event["ts"] = round(event["ts"], 3)
        event["dur"] = round(event.get("dur", 0), 3)
    return document


def with_events(document: Document, events: Iterable[Event]) -> Document:
    return {**document, "traceEvents": list(events)}


def all_tables(analyzer: TreePerfAnalyzer) -> dict[str, pd.DataFrame | None]:
    tables: dict[str, pd.DataFrame | None] = {
        name: analyzer.table(name) for name in TABLES
    }
    tables["launchers"] = analyzer.get_df_kernel_launchers(
        id_cols=True,
        include_kernel_details=True,
        include_call_stack=True,
        include_first_occurrence_time=True,
    )
    tables["kernel_rows"] = analyzer.get_df_kernels(
        launcher_detail=True, cpu_op_detail=True, nn_module_detail=True
    )
    tables["unique_args"] = analyzer.get_df_kernel_launchers_unique_args(
        group_by_num_kernels=True
    )
    tables["module_instances"] = analyzer.get_df_nn_modules(instances=True)
    return tables


@FEW
@given(job_shapes(max_devices=4))
@pytest.mark.parametrize(
    "kept",
    [is_gpu_event, lambda event: not is_gpu_event(event)],
    ids=["kernels only", "host only"],
)
def test_every_table_of_half_a_trace(
    kept: Callable[[Event], bool], shape: JobShape
) -> None:
    document = document_of(shape)
    events = [event for event in document["traceEvents"] if kept(event)]
    assume(events)
    analyzer = analyzer_of(with_events(document, events))
    all_tables(analyzer)
    assert analyzer._repr_html_()


@FEW
@given(job_shapes(max_devices=2), st.data())
def test_every_table_of_one_event(shape: JobShape, data: st.DataObject) -> None:
    document = document_of(shape)
    assume(document["traceEvents"])
    event = data.draw(st.sampled_from(document["traceEvents"]))
    all_tables(analyzer_of(with_events(document, [event])))


def rows_of(table: pd.DataFrame, columns: list[str]) -> list[str]:
    """The rows as texts, in an order that does not depend on the order of the devices."""
    return sorted(
        str(row) for row in table[columns].round(6).itertuples(index=False, name=None)
    )


def of_devices(analyzer: TreePerfAnalyzer, name: str) -> pd.DataFrame:
    options: dict[str, Any] = {"longest": 10**6} if name == "gaps_longest" else {}
    table = analyzer.table(name, **options)
    if table is None:
        return pd.DataFrame()
    if name == "gpu_timeline" and "device" not in table:
        table = table.assign(
            device=analyzer.trace.device[0] if len(analyzer.work) else 0
        )
    return table


def renumbered(document: Document, numbers: dict[int, int]) -> Document:
    document = deepcopy(document)
    for event in filter(is_gpu_event, document["traceEvents"]):
        event["pid"] = event["args"]["device"] = numbers[event["args"]["device"]]
    for device in document["deviceProperties"]:
        device["id"] = numbers[device["id"]]
    return document


@FEW
@given(job_shapes(max_devices=4), st.data())
def test_other_numbers_of_the_devices_change_nothing_else(
    shape: JobShape, data: st.DataObject
) -> None:
    document = document_of(replace(shape, devices=max(shape.devices, 2)))
    assume(document["traceEvents"])
    devices = [device["id"] for device in document["deviceProperties"]]
    numbers = dict(zip(devices, data.draw(st.permutations(devices)), strict=True))
    one = analyzer_of(document)
    other = analyzer_of(renumbered(document, numbers))
    for name in (*OF_DEVICES, "copy_bandwidth", "iterations"):
        expected = of_devices(one, name)
        got = of_devices(other, name)
        columns = [str(column) for column in expected if column != "process"]
        if "device" in columns:
            expected = expected.assign(
                device=[numbers[number] for number in expected["device"]]
            )
        assert rows_of(got, columns) == rows_of(expected, columns), name
    for name in (
        "gap_summary",
        "idle_by_kernel_pair",
        "kernels",
        "kernel_summary",
        "ops_summary",
    ):
        expected = of_devices(one, name)
        columns = [str(column) for column in expected]
        assert rows_of(of_devices(other, name), columns) == rows_of(
            expected, columns
        ), name


def of_second_device(document: Document) -> Document:
    """The same trace on device 1, from other threads, with other ids."""
    document = deepcopy(document)
    for event in document["traceEvents"]:
        args = event["args"]
        for name in ("correlation", "External id"):
            if name in args:
                args[name] += 100_000
        if is_gpu_event(event):
            event["pid"] = args["device"] = 1
        else:
            event["tid"] += 10
    for device in document["deviceProperties"]:
        device["id"] = 1
    return document


def without_iterations(document: Document) -> Document:
    events = document["traceEvents"]
    return with_events(
        document, [e for e in events if e.get("cat") != "user_annotation"]
    )


def merged(first: Document, second: Document) -> Document:
    events = [*first["traceEvents"], *second["traceEvents"]]
    properties = [*first["deviceProperties"], *second["deviceProperties"]]
    return {**first, "traceEvents": events, "deviceProperties": properties}


def aligned(document: Document, anchor: Event) -> Document:
    """The same trace with one more event before all others, so that times are equal."""
    return with_events(document, [anchor, *document["traceEvents"]])


@FEW
@given(job_shapes(max_devices=1), job_shapes(max_devices=1))
def test_two_traces_merged_have_the_rows_of_both(
    first: JobShape, second: JobShape
) -> None:
    anchor = TraceMaker()
    anchor.op("begin", 0, 0.001)
    start = anchor.events[0]
    one = aligned(without_iterations(document_of(first)), start)
    other = aligned(of_second_device(without_iterations(document_of(second))), start)
    apart = [analyzer_of(document) for document in (one, other)]
    assume(all(len(analyzer.work) for analyzer in apart))
    assume(all(analyzer.tree.linked.any() for analyzer in apart))
    together = analyzer_of(merged(one, with_events(other, other["traceEvents"][1:])))
    for name in ("gaps", "gaps_longest", "gap_streams", "gpu_timeline", "queue_length"):
        tables = [of_devices(analyzer, name) for analyzer in apart]
        expected = pd.concat(tables, ignore_index=True)
        columns = [str(column) for column in expected if column != "process"]
        assert rows_of(of_devices(together, name), columns) == rows_of(
            expected, columns
        ), name
    counts = ["scope", "cause", "count", "idle_time_ms", "overlapped_time_ms"]
    summaries = [
        of_devices(analyzer, "gap_summary")[counts] for analyzer in (*apart, together)
    ]
    numbers = [summary.set_index(["scope", "cause"]) for summary in summaries]
    pd.testing.assert_frame_equal(numbers[0] + numbers[1], numbers[2])


@FEW
@given(job_shapes(max_devices=3))
def test_an_idle_device_changes_no_row_of_another(shape: JobShape) -> None:
    document = document_of(shape)
    assume(any(map(is_gpu_event, document["traceEvents"])))
    work = [event for event in document["traceEvents"] if is_gpu_event(event)]
    idle = TraceMaker()
    idle.kernel("one kernel", work[0]["ts"], 0.001, device=9)
    one = analyzer_of(document)
    other = analyzer_of(with_events(document, [*document["traceEvents"], *idle.events]))
    for name in ("gaps", "gaps_longest", "gap_streams", "gpu_timeline", "queue_length"):
        expected = of_devices(one, name)
        got = of_devices(other, name)
        columns = [str(column) for column in expected]
        got = got[got["device"] != 9] if "device" in got else got
        assert rows_of(got, columns) == rows_of(expected, columns), name


def test_the_time_axis_of_a_trace_without_gpu_work_is_empty() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 100)
    table = TreePerfAnalyzer(maker.document()).get_df_timeline_bins()
    assert list(table) == [
        "device",
        "category",
        "bin",
        "start_ms",
        "end_ms",
        "gpu_time_ns",
    ]
    assert not len(table)


def test_marks_of_the_time_axis_without_findings_that_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "0")
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 300)
    maker.launched("k", 10, 50, correlation=1, at=5)
    analyzer = TreePerfAnalyzer(maker.document())

    def fail(*_: object, **__: object) -> None:
        raise IndexError("no such event")

    monkeypatch.setattr(analyzer, "findings", fail)
    marks = analyzer.table("timeline_markers")
    assert marks is not None
    assert marks["name"].tolist() == ["ProfilerStep#1"]
    (problem,) = analyzer.problems
    assert problem == (
        "The findings on the time axis could not be computed: IndexError: no such event; "
        "please report this"
    )
