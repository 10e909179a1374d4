"""Planes, lines, events and programs of JAX profiles become events and operations."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers.test_cache import assert_same
from tests.support.make_trace import rows_read, short_demo
from tests.support.xplane_maker import (
    BF16,
    F32,
    TUPLE,
    U8,
    XplaneMaker,
    computation,
    field,
    instruction,
    several,
    shape,
    training,
    varint,
    xplane_of,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.distributed.rank_numbers import rank_in_name
from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.roofline.hlo import works_of
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import NONE, EventKind, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace_files import trace_names, traces_in

training_content = cache(lambda: training().content)
REAL = Path("../shared/jax")
CONV = REAL / "conv_mi300.xplane.pb"


def named(trace: Trace, name: str) -> list[int]:
    return [row for row in range(len(trace)) if trace.name_of(row) == name]


def operations(trace: Trace) -> list[str]:
    """Return the operation of each GPU event, in order of start."""
    codes, labels = CallTree(trace).cpu_op_label_of_gpu
    order = np.argsort(trace.ts[trace.gpu_rows], kind="stable")
    return [labels[code] for code in codes[order].tolist()]


def above(trace: Trace, row: int) -> list[str]:
    return [trace.name_of(each) for each in CallTree(trace).ancestors(row)]


def said(trace: Trace, operation: str) -> dict[str, str]:
    """Return the arguments of an operation from the HLO."""
    row = next(
        row for row in named(trace, operation) if trace.kind[row] == EventKind.CPU_OP
    )
    column = trace.args["Concrete Inputs"]
    assert column.texts is not None
    texts = json.loads(column.texts[int(column.at(np.array([row]))[0])])
    return dict(text.split("=", 1) for text in texts)


# Events.


def test_a_training_run_is_read_completely() -> None:
    trace = training().read()
    kinds = Counter(EventKind(kind).name for kind in trace.kind.tolist())
    assert kinds == {
        "USER_ANNOTATION": 4 + 4,  # and the scopes
        "PYTHON_FUNCTION": 2,
        "DRIVER": 8,
        "KERNEL": 6,
        "MEMCPY": 2,
        "GPU_ANNOTATION": 2,
        "CPU_OP": 4,
    }
    assert trace.provenance.dropped == {}
    assert trace.metadata["hostnames"] == ["worker-3"]
    (device,) = trace.devices
    assert (device.ordinal, device.units, device.warp) == (0, 132, 32)
    assert set(trace.device.tolist()) == {0}
    assert set(trace.stream.tolist()) == {7}
    assert trace.arg("bytes").values.tolist() == [512, 512]
    (first,) = named(trace, "train#0")
    assert trace.thread_names[trace.threads[trace.thread[first]]] == "main"
    assert operations(trace) == 2 * [
        "dot.1",
        *2 * ["loop_tanh_fusion"],
        "cuMemcpyDtoHAsync",
    ]


def test_the_tree_above_a_kernel_has_its_scope() -> None:
    trace = training().read()
    kernel = named(trace, "loop_tanh_fusion_1")[0]
    assert above(trace, kernel) == [
        "cuLaunchKernel",
        "loop_tanh_fusion",
        "jit(step)/tanh",
        "Execute",
        "train#0",
    ]


def test_tables_are_those_of_the_same_run_in_pytorchs_format() -> None:
    document = short_demo()
    ours = TreePerfAnalyzer(read_trace(io.BytesIO(xplane_of(document).content)))
    theirs = TreePerfAnalyzer(document)
    assert ours.tree.linked.sum() == theirs.tree.linked.sum() > 100
    for analyzer in (ours, theirs):
        assert analyzer.trace.gpu_rows.size
    assert ours.get_df_gpu_timeline().equals(theirs.get_df_gpu_timeline())
    assert ours.get_df_kernel_statistics().equals(theirs.get_df_kernel_statistics())


def test_the_json_for_viewers_gives_the_same_trace_without_programs() -> None:
    maker = training()
    of_profile = maker.read()
    of_json = read_trace(io.BytesIO(maker.for_viewers))
    rows = [rows_read(of_profile), rows_read(of_json)]
    for row in itertools.chain(*rows):
        row.pop("thread")
        for argument in ("Input Dims", "Input type", "Concrete Inputs"):
            row.pop(argument, None)
    assert rows[0] == rows[1]
    assert of_json.provenance.metadata_events > 0
    assert of_json.provenance.dropped == {}


def test_unusual_events_of_the_json_lose_no_other_event() -> None:
    document = json.loads(training().for_viewers)
    events = document["traceEvents"]
    odd = [
        5,
        {"ph": "X", "pid": [], "tid": 1, "name": 5, "ts": "x", "dur": {}, "args": [1]},
        {"ph": "X", "pid": 701, "tid": 1, "name": "a", "ts": 1e300, "dur": 1},
        {
            "ph": "X",
            "pid": 701,
            "tid": 1,
            "name": "b",
            "ts": 12.0,
            "args": {"step_num": [1]},
        },
        {"ph": "B", "pid": 701, "tid": 1, "name": "c", "ts": 12.0},
    ]
    document["traceEvents"] = [*events, *odd]
    trace = read_trace(io.BytesIO(json.dumps(document).encode()))
    assert len(trace) == len(training().read()) + 1
    assert trace.provenance.dropped == {
        "not a JSON object": 1,
        "not complete (ph is not X)": 1,
        "no usable start time (ts)": 2,
    }


def test_metadata_may_come_after_the_events() -> None:
    maker = training()
    last = read_trace(io.BytesIO(maker.written(metadata_last=True)))
    assert rows_read(last) == rows_read(maker.read())


def test_a_profile_may_be_gzipped_called_anything_and_cached(tmp_path: Path) -> None:
    content = training().content
    path = tmp_path / "profile.bin"
    path.write_bytes(gzip.compress(content))
    cache = TraceCache(tmp_path / "cache", worth_keeping=0)
    first = read_trace(path, cache=cache)
    assert_same(read_trace(path, cache=cache), first)
    assert first.conventions.framework == "JAX"
    assert first.programs


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "fusion.1"]),
            st.integers(0, 10**12),
            st.integers(0, 10**9),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_gpu_events_and_sums_are_those_of_the_file(
    events: list[tuple[Any, ...]],
) -> None:
    maker = XplaneMaker()
    expected = Counter[tuple[str, int]]()
    for number, (name, start, duration, device, linked) in enumerate(events, start=1):
        ids = {"correlation_id": number} if linked else {}
        # Each on a stream of its own, where nothing can have an impossible end.
        stream = (number, f"Stream #{number}(Kernel)")
        maker.event(name, start, duration, f"/device:GPU:{device}", stream, **ids)
        if linked:
            expected[name, device] += duration
            maker.event("cuLaunchKernel", start, 1, **ids)
    trace = maker.read()
    found = Counter[tuple[str, int]]()
    for row, device in zip(trace.gpu_rows.tolist(), trace.device.tolist(), strict=True):
        found[trace.name_of(row), device] += int(trace.dur[row])
    assert found == expected
    assert CallTree(trace).linked.all()


def test_rounding_picoseconds_keeps_the_nesting() -> None:
    maker = XplaneMaker()
    outer = maker.event("outer", 5_000, 10)
    inner = maker.event("inner", 5_000, 10)
    outer.offset_ps += 900
    inner.offset_ps += 950
    outer.duration_ps = 10_150
    inner.duration_ps = 10_100
    trace = maker.read()
    assert above(trace, named(trace, "inner")[0]) == ["outer"]
    assert trace.dur.tolist() == [11, 11]


def test_ids_of_several_devices_are_told_apart() -> None:
    maker = XplaneMaker()
    for device in range(3):
        start = 1_000 * device + 5_000
        line = device + 1, f"thread {device}"
        maker.launched(
            f"k{device}",
            start,
            10,
            at=start - 50,
            correlation=9,
            device=device,
            line=line,
        )
    trace = maker.read()
    tree = CallTree(trace)
    launches = trace.thread[tree.launch_of_gpu].tolist()
    assert len(set(launches)) == 3
    assert tree.linked.all()


def test_a_launch_that_names_a_device_without_that_id_is_still_found() -> None:
    maker = XplaneMaker()
    maker.launched("a", 5_000, 10, at=4_000, correlation=9, device=0)
    maker.launched("b", 5_000, 10, at=4_100, correlation=9, device=1)
    maker.event("cuLaunchKernel", 4_200, 10, correlation_id=3, device_id=0)
    maker.gpu("c", 5_500, 10, 1, correlation_id=3)
    assert CallTree(maker.read()).linked.all()


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_calls_that_name_no_device_take_turns(calls: int) -> None:
    maker = XplaneMaker()
    for number in range(calls):
        maker.event("cuLaunchKernel", 4_000 + 20 * number, 10, correlation_id=9)
    for device in range(3):
        maker.gpu("k", 5_000 + device, 10, device, correlation_id=9)
    tree = CallTree(maker.read())
    assert tree.linked.tolist() == [device < calls for device in range(3)]
    launches = tree.launch_of_gpu[tree.linked]
    assert len(np.unique(launches)) == min(calls, 3)


def test_calls_may_be_on_a_plane_of_their_own() -> None:
    maker = XplaneMaker()
    maker.event(
        "cuLaunchKernel", 4_000, 10, "/host:CUPTI", (1, "main"), correlation_id=5
    )
    maker.launched("k", 5_000, 10, at=4_002, correlation=5)
    trace = maker.read()
    assert CallTree(trace).linked.all()
    assert trace.metadata["hostnames"] == ["worker-3"]


# Operations.


def _calls(*kernels: tuple[str, str]) -> list[tuple[str, int]]:
    """Return name and GPU events of the operations that are made for (operation, kernel)."""
    maker = XplaneMaker()
    for i, (operation, name) in enumerate(kernels):
        maker.launched(
            name,
            100 * i + 9_000,
            10,
            at=100 * i + 2_000,
            correlation=i + 1,
            hlo_op=operation,
        )
    trace = maker.read()
    tree = CallTree(trace)
    rows = trace.rows_of(EventKind.CPU_OP).tolist()
    return [(trace.name_of(row), len(tree.gpu_events(row))) for row in rows]


def test_launches_of_one_instruction_are_a_call_until_its_first_kernel_comes_again() -> (
    None
):
    conv = [("conv.1", "im2col"), ("conv.1", "gemm"), ("conv.1", "gemm")]
    assert _calls(*conv, ("add", "add"), *conv, *conv) == [
        ("conv.1", 3),
        ("add", 1),
        ("conv.1", 3),
        ("conv.1", 3),
    ]
    assert _calls(*[("loop", "k")] * 3) == [("loop", 1)] * 3


def test_the_launch_of_a_graph_is_of_no_single_operation() -> None:
    maker = XplaneMaker()
    maker.event("cuGraphLaunch", 4_000, 50, correlation_id=8)
    for i in range(3):
        maker.gpu(f"k{i}", 5_000 + 20 * i, 10, correlation_id=8, hlo_op=f"op{i}")
    trace = maker.read()
    assert operations(trace) == ["graph"] * 3
    assert trace.count_of(EventKind.CPU_OP) == 0


def test_operations_of_the_host_are_operations() -> None:
    maker = training()
    maker.event(
        "dot.1", 50_000, 100, hlo_op="dot.1", hlo_module="jit_step", program_id=5
    )
    trace = maker.read()
    row = next(
        row for row in named(trace, "dot.1") if not CallTree(trace).gpu_events(row)
    )
    assert trace.kind[row] == EventKind.CPU_OP
    assert trace.arg("Input Dims").at(np.array([row]))[0] != NONE


# Programs.


def _of_program(name: str, *computations: Any, **members: Any) -> dict[str, str]:
    """Return the description of an instruction of a program."""
    maker = XplaneMaker()
    maker.program("jit_f(3)", *computations, **members)
    maker.launched("k", 5_000, 10, at=4_000, correlation=1, hlo_op=name, program_id=3)
    trace = maker.read()
    return said(trace, name) | counted(trace, name)


def counted(trace: Trace, operation: str) -> dict[str, str]:
    """Return the work of an operation as far as the HLO determines it."""
    row = next(
        row for row in named(trace, operation) if trace.kind[row] == EventKind.CPU_OP
    )
    _, works = works_of(trace, np.array([row]))
    if not works:
        return {}
    (work,) = works
    sizes = {
        "sizes": "x".join(map(str, work.sizes)),
        "type": work.kind,
        "product": work.product,
    }
    told = {"flops": str(work.flops), "bytes": str(work.bytes)}
    return told | {name: text for name, text in sizes.items() if text}


def test_arguments_are_shapes_types_and_the_source_line() -> None:
    trace = training().read()
    assert said(trace, "dot.1") == {
        "opcode": "dot",
        "result": "f32[8,16]",
        "source": "train.py:12",
    }
    assert counted(trace, "dot.1") == {
        "flops": str(2 * 8 * 16 * 32),
        "bytes": str(4 * (8 * 32 + 32 * 16 + 8 * 16)),
        "product": "dot",
        "type": "f32",
        "sizes": "1x8x16x32",
    }
    assert counted(trace, "loop_tanh_fusion")["flops"] == str(8 * 16)
    assert [t for t in trace.args["Input Dims"].texts or [] if t.startswith("[[")] == [
        "[[8,32],[32,16]]",
        "[[8,16]]",
    ]


def test_the_source_may_be_a_frame_of_the_stack() -> None:
    frames = {
        "file_names": [b"a.py", b"model.py"],
        "file_locations": [
            {"file_name_id": 1, "line": 5},
            {"file_name_id": 2, "line": 7},
        ],
        "stack_frames": [{"file_location_id": 1}, {"file_location_id": 2}],
    }
    for number, source in ((2, "model.py:7"), (9, None), (0, None)):
        root = instruction(
            1, "f", "copy", shape(F32, 2), metadata={"stack_frame_id": number}
        )
        assert (
            _of_program("f", computation(1, root), stack_frames=frames).get("source")
            == source
        )


def _convolution(target: str, result: Any, *operands: Any) -> dict[str, str]:
    parameters = [
        instruction(i + 1, f"p{i}", "parameter", s) for i, s in enumerate(operands)
    ]
    each = instruction(
        9,
        "conv",
        "custom-call",
        several(result, shape(U8, 10**9)),
        range(1, len(operands) + 1),
        custom_call_target=target.encode(),
        convolution={"kernel_output_feature": 0},
        window={
            "dimensions": [
                {"size": 3, "stride": 2, "padding_low": 1, "window_dilation": 1}
            ]
            * 2
        },
    )
    return _of_program("conv", computation(1, *parameters, each))


def test_convolutions_of_cudnn_count_input_channels_and_no_workspace() -> None:
    x = shape(BF16, 2, 16, 8, 8)
    weight = shape(BF16, 32, 16, 3, 3)
    y = shape(BF16, 2, 32, 4, 4)
    flops = str(2 * (2 * 32 * 4 * 4) * 16 * 3 * 3)
    forward = _convolution("__cudnn$convForward", y, x, weight)
    assert (forward["flops"], forward["product"]) == (flops, "convolution")
    assert (forward["stride"], forward["padding"]) == ("2x2", "1x1")
    elements = 2 * 16 * 8 * 8 + 32 * 16 * 3 * 3 + 2 * 32 * 4 * 4
    assert forward["bytes"] == str(2 * elements)
    for target, result, operands in (
        ("__cudnn$convBackwardInput", x, (y, weight)),
        ("__cudnn$convBackwardFilter", weight, (x, y)),
    ):
        backward = _convolution(target, result, *operands)
        assert (backward["flops"], backward["product"]) == (
            flops,
            "convolution of gradients",
        )


def _library(target: str, config: Any, result: Any, *operands: Any) -> dict[str, str]:
    parameters = [
        instruction(i + 1, f"p{i}", "parameter", s) for i, s in enumerate(operands)
    ]
    each = instruction(
        9,
        "call",
        "custom-call",
        result,
        range(1, len(operands) + 1),
        custom_call_target=target.encode(),
        backend_config=json.dumps(config).encode(),
    )
    return _of_program("call", computation(1, *parameters, each))


def test_products_of_libraries_are_in_their_configuration() -> None:
    dot = {"lhs_contracting_dimensions": ["1"], "lhs_batch_dimensions": ["0"]}
    config = {"gemm_backend_config": {"dot_dimension_numbers": dot}}
    operands = shape(BF16, 4, 32, 8), shape(BF16, 4, 32, 16)
    made = _library("__cublas$lt$matmul", config, shape(BF16, 4, 8, 16), *operands)
    assert (made["flops"], made["sizes"]) == (str(2 * 4 * 8 * 16 * 32), "4x8x16x32")
    heads = {"dimensions": ["2", "4", "128", "256"]}
    products = {"lhs_contracting_dimensions": ["3"]}
    config = {
        "cudnn_fmha_backend_config": {
            "intermediate_tensor_shape": heads,
            "bmm1_dot_dimension_numbers": products,
        }
    }
    query = shape(BF16, 2, 128, 4, 64)
    each = 2 * 2 * 4 * 128 * 256 * 64
    for target, count in (
        ("__cudnn$fmhaSoftmax", 2),
        ("__cudnn$fmhaSoftmaxBackward", 5),
    ):
        assert _library(target, config, query, query, query)["flops"] == str(
            count * each
        )


@pytest.mark.parametrize(
    "config", [None, 5, [], {"gemm_backend_config": [1]}, {"a": "b"}]
)
@pytest.mark.parametrize(
    "target", ["__cublas$gemm", "__cudnn$fmhaSoftmax", "triton_kernel_call"]
)
def test_an_unknown_call_has_no_work(target: str, config: Any) -> None:
    made = _library(
        target, config, shape(F32, 4, 4), shape(F32, 4, 4), shape(F32, 4, 4)
    )
    assert made == {"opcode": "custom-call", "target": target, "result": "f32[4,4]"}


def test_fusions_read_slices_and_write_updates() -> None:
    table = shape(F32, 1000, 8)
    row = shape(F32, 1, 8)
    index = shape(4)
    fused = computation(
        1,
        instruction(10, "table", "parameter", table),
        instruction(11, "i", "parameter", index),
        instruction(12, "row", "parameter", row),
        instruction(13, "slice", "dynamic-slice", row, [10, 11]),
        instruction(14, "sum", "add", row, [13, 12]),
        instruction(15, "update", "dynamic-update-slice", table, [10, 14, 11]),
    )
    entry = computation(
        2,
        *(
            instruction(i, f"p{i}", "parameter", s)
            for i, s in enumerate((table, index, row), 1)
        ),
        instruction(
            4, "fusion", "fusion", table, [1, 2, 3], called_computation_ids=[1]
        ),
    )
    made = _of_program("fusion", fused, entry)
    assert made["flops"] == "8"
    assert made["bytes"] == str(3 * 32 + 4)


def test_recursive_programs_and_missing_ids_do_not_crash() -> None:
    loop = instruction(
        1, "f", "fusion", shape(F32, 2), [77, 1], called_computation_ids=[1]
    )
    assert "flops" not in _of_program("f", computation(1, loop))
    lost = instruction(
        1, "f", "fusion", shape(F32, 2), [77], called_computation_ids=[9]
    )
    assert "flops" not in _of_program("f", computation(1, lost))
    odd = instruction(
        1, "f", "dot", shape(TUPLE), [5], dot={"lhs_contracting": [-4, 99]}
    )
    assert _of_program("f", computation(1, odd))["flops"] == "0"


@pytest.mark.parametrize("dimensions", [64, 65, 100_000])
def test_arrays_of_absurd_sizes_do_not_crash(dimensions: int) -> None:
    each = shape(F32, *[2**62] * dimensions)
    work = instruction(
        1,
        "f",
        "reduce-window",
        each,
        [1],
        window={"dimensions": [{"size": 2**62}] * dimensions},
    )
    assert "flops" in _of_program("f", computation(1, work))


def test_repeatedly_called_computations_are_counted_once() -> None:
    leaf = computation(1, instruction(1, "a", "add", shape(F32, 2)))
    levels = [leaf]
    for level in range(2, 16):
        calls = [
            instruction(
                100 * level + i,
                f"f{level}.{i}",
                "fusion",
                shape(F32, 2),
                called_computation_ids=[level - 1],
            )
            for i in range(50)
        ]
        levels.append(computation(level, *calls))
    assert _of_program("f15.0", *levels)["flops"] == str(2 * 50**13)


def test_a_damaged_program_loses_only_its_arguments() -> None:
    maker = training()
    maker.plane("/host:metadata").programs["jit_step(5)"] = b"\x0a\xff\xff"
    trace = maker.read()
    assert operations(trace)[0] == "dot.1"
    assert not trace.arg("Input Dims").texts
    (note,) = trace.provenance.notes
    assert (
        note
        == "The HLO of jit_step(5) is damaged, so their operations have no arguments."
    )


def test_the_roofline_models_products_and_fusions() -> None:
    frame = TreePerfAnalyzer(training().read()).get_df_roofline().set_index("op_name")
    assert frame.loc["dot.1", "family"] == "GEMM"
    assert frame.loc["dot.1", "flops"] == 2 * 8 * 16 * 32
    assert frame.loc["loop_tanh_fusion", "family"] == "XLA"
    assert frame.loc["loop_tanh_fusion", "engine"] == "vector"


# Categories.


def test_the_rules_for_jax_are_used_unless_others_are_chosen() -> None:
    maker = training()
    maker.launched("nccl_conv_", 90_000, 5, at=80_000, correlation=999)
    trace = maker.read()
    expected = {"jax": "Conv", None: "Conv", "vllm:llama": "nccl_and_custom_ar"}
    for categorizer, category in expected.items():
        analyzer = TreePerfAnalyzer(
            trace, use_kernel_name_categories=True, categorizer=categorizer
        )
        frame = analyzer.get_df_kernels()
        found = dict(zip(frame["kernel_name"], frame["kernel_category"], strict=True))
        assert found["nccl_conv_"] == category
        known = found["loop_tanh_fusion_0"] == "Fused Elementwise (compiler-generated)"
        assert known == (categorizer is None)


# Files.


def test_a_folder_prefers_the_profile_to_its_json(tmp_path: Path) -> None:
    names = ["a.xplane.pb", "a.trace.json.gz", "b.trace.json.gz", "c.json"]
    assert trace_names(names) == ["a.xplane.pb", "b.trace.json.gz", "c.json"]
    folder = tmp_path / "plugins" / "profile" / "2026_01_02"
    folder.mkdir(parents=True)
    for host in range(2):
        (folder / f"host-{host}.xplane.pb").write_bytes(training().content)
    assert [path.name for path in traces_in(tmp_path)] == [
        "host-0.xplane.pb",
        "host-1.xplane.pb",
    ]
    assert [rank_in_name(str(path)) for path in traces_in(tmp_path)] == [0, 1]


def test_without_protobuf_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [
        n for n in sys.modules if n.startswith("tracelens_ext.readers.xplane.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("tracelens_ext.readers.xplane.reader", raising=False)
    content = training_content()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(
        TraceFormatError, match=r"needs protobuf.*pip install 'tracelens-ext\[jax\]"
    ):
        read_trace(io.BytesIO(content))


# Damage.


def result_of(content: bytes, *, allow_truncated: bool = False) -> Trace | TraceError:
    try:
        return read_trace(
            io.BytesIO(content), reading=ReadingOptions(allow_truncated=allow_truncated)
        )
    except TraceError as error:
        assert "\n" not in str(error)
        return error


def test_a_cut_file_is_refused_and_whole_planes_are_salvaged() -> None:
    maker = training()
    content = maker.content
    whole = len(maker.read())
    seen = set()
    for end in range(40, len(content) - 12, 7):
        assert isinstance(result_of(content[:end]), TraceCutOffError)
        saved = result_of(content[:end], allow_truncated=True)
        if isinstance(saved, Trace):
            assert len(saved) <= whole
            assert saved.provenance.notes[0].startswith(
                "Salvaged (the profile ends prematurely"
            )
            seen.add(len(saved))
    assert seen


@pytest.mark.parametrize(
    "tail",
    [
        varint(1 << 3 | 2) + varint(1 << 30),  # 1 GB that is not there
        varint(1 << 3 | 2) + b"\xff" * 11,  # a number of more than 64 bits
        varint(9 << 3 | 3) * 10_000,  # groups within groups
        varint(7 << 3 | 6) + b"abc",  # a wire type that does not exist
        field(1, field(3, b"\x22\x05\x08")),  # an event that ends within its line
        field(1, field(3, varint(4 << 3 | 3) * 5_000)),
        field(1, field(5, field(2, b"\x12\xff"))),
        field(1, b"\x0b" * 1_000),
    ],
)
def test_damage_is_reported_and_complete_planes_are_salvaged(tail: bytes) -> None:
    content = training_content()
    assert isinstance(result_of(content + tail), TraceFormatError)
    saved = result_of(content + tail, allow_truncated=True)
    assert isinstance(saved, Trace)
    assert len(saved) == len(training().read())


def test_deeply_nested_messages_do_not_crash() -> None:
    deep = b""
    for _ in range(5_000):
        deep = field(4, deep)
    maker = training()
    maker.plane("/host:metadata").programs["jit_step(5)"] = field(
        1, field(3, field(2, field(3, deep)))
    )
    assert len(maker.read())


def test_ids_without_metadata_lose_no_event() -> None:
    maker = XplaneMaker()
    maker.launched("k", 5_000, 10, at=4_000, correlation=2**64 - 1)
    event = maker.gpu("other", 6_000, 10, correlation_id=3, hlo_op="x")
    event.metadata_id = 999
    event.stats[1].ref_value = 777
    event.stats.add(metadata_id=555, uint64_value=1)
    aggregated = maker.event("often", 0, 5)
    aggregated.num_occurrences = 12
    early = maker.event("early", 0, 5)
    # a century before, for a century
    early.offset_ps = -(2**63)
    early.duration_ps = 2**63 - 1
    trace = maker.read()
    assert named(trace, "(no name)")
    assert trace.provenance.dropped == {
        "no usable start time (ts)": 1,
        "no usable duration (dur)": 1,
    }
    assert CallTree(trace).linked.sum() == 1


@given(st.data())
def test_changed_bytes_give_a_trace_or_an_error(data: st.DataObject) -> None:
    content = bytearray(training_content())
    for place in data.draw(
        st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)
    ):
        content[place] = data.draw(st.integers(0, 255))
    for allow_truncated in (False, True):
        found = result_of(bytes(content), allow_truncated=allow_truncated)
        if isinstance(found, Trace):
            made = found.provenance
            assert made.present == len(found) + made.metadata_events + sum(
                made.dropped.values()
            )
            TreePerfAnalyzer(found).get_df_roofline()


# Recorded profiles.


@pytest.mark.real_data
def test_sums_of_a_recorded_profile_equal_the_reference() -> None:
    trace = read_trace(CONV)
    tree = CallTree(trace)
    codes, labels = tree.cpu_op_label_of_gpu
    found: dict[tuple[str, str, str], list[int]] = {}
    for place, row in enumerate(trace.gpu_rows.tolist()):
        process, _ = trace.threads[trace.thread[row]]
        line = trace.thread_names[trace.threads[trace.thread[row]]]
        found.setdefault((str(process), line, trace.name_of(row)), []).append(
            int(trace.dur[row])
        )
        assert labels[codes[place]] in ("hipMemcpyDtoDAsync", *_operations())
    with (REAL / "reference_gpu_events.csv").open() as file:
        expected = {
            (row["plane"], row["line"], row["name"]): tuple(
                int(row[key]) for key in ("count", "total_ns", "min_ns", "max_ns")
            )
            for row in csv.DictReader(file)
        }
    assert {k: (len(v), sum(v), min(v), max(v)) for k, v in found.items()} == expected
    assert tree.linked.all()


def _operations() -> set[str]:
    with (REAL / "reference_gpu_events.csv").open() as file:
        return {row["hlo_op"] for row in csv.DictReader(file)} - {""}


@pytest.mark.real_data
def test_the_convolution_of_a_recorded_profile_counts_its_channels() -> None:
    analyzer = TreePerfAnalyzer(CONV)
    frame = analyzer.get_df_roofline().set_index("op_name")
    conv = frame.loc["cudnn-conv.1.0"]
    assert (conv["family"], conv["flops"], conv["count"]) == (
        "CONV_fwd",
        36_609_720_320,
        5,
    )
    assert frame.loc["input_transpose_fusion", "count"] == 5
    sources = [
        t for t in analyzer.trace.args["Concrete Inputs"].texts or [] if "source=" in t
    ]
    assert any(
        "source=/workspace/conv-jax/jax_conv_profiling.py:77" in text
        for text in sources
    )


@pytest.mark.real_data
def test_a_report_of_a_recorded_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert run(["report", str(CONV), "-o", str(path), "--gaps"]) == 0
    tables = json.loads(path.read_text())["tables"]
    assert not tables.get("unlinked_kernels")
    assert {row["kernel_category"] for row in tables["gpu_time_by_category"]} == {
        "Memory Ops",
        "GEMM",
        "Convolution",
    }
    capsys.readouterr()
    assert run(["kernels", str(CONV), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["kernel_full_names"]
    assert sum(row["count"] for row in rows) == 78
    assert (
        round(sum(row["total_time_us"] for row in rows) * 1000) == 3_586_493 + 889_028
    )
