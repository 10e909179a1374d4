"""The rows of a device in all tables depend on that device only, not on other devices."""

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
#: Tables in which each row belongs to one device.
TABLES_BY_DEVICE = (
    "gaps",
    "gaps_longest",
    "gap_streams",
    "gpu_timeline",
    "queue_length",
    "timeline_bins",
)
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
#: Each example computes every table, which takes long.
FEW_EXAMPLES = settings(max_examples=max(settings().max_examples // 5, 3))


def is_gpu_event(event: Event) -> bool:
    return event.get("cat") in GPU_CATEGORIES


def analyzer_of(document: Document) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(
        document, use_kernel_name_categories=True, add_python_func=True
    )


def document_of(shape: JobShape) -> Document:
    """Make a random trace whose times are whole nanoseconds."""
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


@FEW_EXAMPLES
@given(job_shapes(max_devices=4))
@pytest.mark.parametrize(
    "is_kept",
    [is_gpu_event, lambda event: not is_gpu_event(event)],
    ids=["GPU events only", "host events only"],
)
def test_every_table_of_a_trace_with_only_gpu_or_host_events_is_computed(
    is_kept: Callable[[Event], bool], shape: JobShape
) -> None:
    document = document_of(shape)
    events = [event for event in document["traceEvents"] if is_kept(event)]
    assume(events)
    analyzer = analyzer_of(with_events(document, events))
    all_tables(analyzer)
    assert analyzer._repr_html_()


@FEW_EXAMPLES
@given(job_shapes(max_devices=2), st.data())
def test_every_table_of_a_single_event_is_computed(
    shape: JobShape, data: st.DataObject
) -> None:
    document = document_of(shape)
    assume(document["traceEvents"])
    event = data.draw(st.sampled_from(document["traceEvents"]))
    all_tables(analyzer_of(with_events(document, [event])))


def rows_of(table: pd.DataFrame, columns: list[str]) -> list[str]:
    """Return the rows as texts, in an order that does not depend on the order of the devices."""
    rows = table[columns].round(6).itertuples(index=False, name=None)
    return sorted(str(row) for row in rows)


def complete_table(analyzer: TreePerfAnalyzer, name: str) -> pd.DataFrame:
    """Return all rows of a table, with the device even if there is only one."""
    options: dict[str, Any] = {}
    if name == "gaps_longest":
        options["longest"] = 10**6
    table = analyzer.table(name, **options)
    if table is None:
        return pd.DataFrame()
    if name == "gpu_timeline" and "device" not in table:
        device = 0
        if len(analyzer.gpu_events):
            device = analyzer.trace.device[0]
        table = table.assign(device=device)
    return table


def renumbered(document: Document, numbers: dict[int, int]) -> Document:
    """Return the trace with other numbers of the devices."""
    document = deepcopy(document)
    for event in filter(is_gpu_event, document["traceEvents"]):
        event["pid"] = event["args"]["device"] = numbers[event["args"]["device"]]
    for device in document["deviceProperties"]:
        device["id"] = numbers[device["id"]]
    return document


@FEW_EXAMPLES
@given(job_shapes(max_devices=4), st.data())
def test_the_numbers_of_the_devices_change_nothing_else(
    shape: JobShape, data: st.DataObject
) -> None:
    document = document_of(replace(shape, devices=max(shape.devices, 2)))
    assume(document["traceEvents"])
    devices = [device["id"] for device in document["deviceProperties"]]
    numbers = dict(zip(devices, data.draw(st.permutations(devices)), strict=True))
    original_analyzer = analyzer_of(document)
    renumbered_analyzer = analyzer_of(renumbered(document, numbers))
    for name in (*TABLES_BY_DEVICE, "copy_bandwidth", "iterations"):
        expected = complete_table(original_analyzer, name)
        actual = complete_table(renumbered_analyzer, name)
        columns = [str(column) for column in expected if column != "process"]
        if "device" in columns:
            expected = expected.assign(device=expected["device"].map(numbers))
        assert rows_of(actual, columns) == rows_of(expected, columns), name
    for name in (
        "gap_summary",
        "idle_by_kernel_pair",
        "kernels",
        "kernel_summary",
        "ops_summary",
    ):
        expected = complete_table(original_analyzer, name)
        actual = complete_table(renumbered_analyzer, name)
        columns = [str(column) for column in expected]
        assert rows_of(actual, columns) == rows_of(expected, columns), name


def on_second_device(document: Document) -> Document:
    """Return the same trace on device 1, launched from other threads, with other ids."""
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
    events = [
        event
        for event in document["traceEvents"]
        if event.get("cat") != "user_annotation"
    ]
    return with_events(document, events)


def merged(first: Document, second: Document) -> Document:
    events = [*first["traceEvents"], *second["traceEvents"]]
    properties = [*first["deviceProperties"], *second["deviceProperties"]]
    return {**first, "traceEvents": events, "deviceProperties": properties}


def aligned(document: Document, anchor: Event) -> Document:
    """Return the trace with an event before all others, from which its times are counted."""
    return with_events(document, [anchor, *document["traceEvents"]])


@FEW_EXAMPLES
@given(job_shapes(max_devices=1), job_shapes(max_devices=1))
def test_two_traces_merged_have_the_rows_of_both(
    first: JobShape, second: JobShape
) -> None:
    maker = TraceMaker()
    maker.op("begin", 0, 0.001)
    anchor = maker.events[0]
    first_document = without_iterations(document_of(first))
    second_document = on_second_device(without_iterations(document_of(second)))
    analyzers = [
        analyzer_of(aligned(document, anchor))
        for document in (first_document, second_document)
    ]
    assume(all(len(analyzer.gpu_events) for analyzer in analyzers))
    assume(all(analyzer.tree.linked.any() for analyzer in analyzers))
    merged_document = merged(first_document, second_document)
    merged_analyzer = analyzer_of(aligned(merged_document, anchor))
    for name in ("gaps", "gaps_longest", "gap_streams", "gpu_timeline", "queue_length"):
        tables = [complete_table(analyzer, name) for analyzer in analyzers]
        expected = pd.concat(tables, ignore_index=True)
        actual = complete_table(merged_analyzer, name)
        columns = [str(column) for column in expected if column != "process"]
        assert rows_of(actual, columns) == rows_of(expected, columns), name
    summaries = [idle_by_cause(analyzer) for analyzer in analyzers]
    pd.testing.assert_frame_equal(
        summaries[0] + summaries[1], idle_by_cause(merged_analyzer)
    )


def idle_by_cause(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """Return the columns of `gap_summary` that can be added up."""
    columns = ["scope", "cause", "count", "idle_time_ms", "overlapped_time_ms"]
    summary = complete_table(analyzer, "gap_summary")[columns]
    return summary.set_index(["scope", "cause"])


@FEW_EXAMPLES
@given(job_shapes(max_devices=3))
def test_an_idle_device_changes_no_row_of_another(shape: JobShape) -> None:
    document = document_of(shape)
    assume(any(map(is_gpu_event, document["traceEvents"])))
    gpu_work = [event for event in document["traceEvents"] if is_gpu_event(event)]
    idle_device = TraceMaker()
    idle_device.kernel("only kernel", gpu_work[0]["ts"], 0.001, device=9)
    events = document["traceEvents"] + idle_device.events
    without_idle_device = analyzer_of(document)
    with_idle_device = analyzer_of(with_events(document, events))
    for name in ("gaps", "gaps_longest", "gap_streams", "gpu_timeline", "queue_length"):
        expected = complete_table(without_idle_device, name)
        actual = complete_table(with_idle_device, name)
        columns = [str(column) for column in expected]
        if "device" in actual:
            actual = actual[actual["device"] != 9]
        assert rows_of(actual, columns) == rows_of(expected, columns), name


def test_the_timeline_bins_of_a_trace_without_gpu_work_are_empty() -> None:
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


def test_timeline_markers_have_the_iterations_even_if_the_findings_fail(
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
    markers = analyzer.table("timeline_markers")
    assert markers is not None
    assert markers["name"].tolist() == ["ProfilerStep#1"]
    (problem,) = analyzer.problems
    assert problem == (
        "The findings on the time axis could not be computed: IndexError: no such event; "
        "please report this"
    )
