"""Names of calls, copies and operations in recordings of Nsight Systems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.readers.emitted_operations import emitted_op
from tracelens_ext.readers.nsys.export_schema import api_name, memcpy_name
from tracelens_ext.trace.linking import is_graph_launch


@pytest.mark.parametrize(
    ("exported", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo_v2"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync_v2"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
        ("cublasGemmEx", "cublasGemmEx"),
        ("_v7000", "_v7000"),
        ("", ""),
    ],
)
def test_versions_of_the_interface_are_removed_from_names(
    exported: str, name: str
) -> None:
    assert api_name(exported) == name


def test_a_graph_launch_is_known_as_one() -> None:
    assert is_graph_launch(api_name("cudaGraphLaunch_v10000"))


def test_copies_have_the_names_of_nsys_stats() -> None:
    assert memcpy_name(1) == "[CUDA memcpy Host-to-Device]"
    assert memcpy_name(8, "DtoD") == "[CUDA memcpy Device-to-Device]"
    assert memcpy_name(99, "Sideways") == "[CUDA memcpy Sideways]"
    assert memcpy_name(99) == "[CUDA memcpy kind 99]"
    assert memcpy_name(-1) == "[CUDA memcpy kind -1]"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"aten::empty, op_id = 990346", (b"aten::empty", -1, 990346, b"")),
        (b"aten::mm, seq = 12, op_id = 7", (b"aten::mm", 12, 7, b"")),
        (b"aten::mm, seq = 12", (b"aten::mm", 12, -1, b"")),
        (
            b"aten::mm, seq = 12, op_id = 7, sizes = [[8, 4], [], [-1]], input_op_ids = [(3,0), ]",
            (b"aten::mm", 12, 7, b"[[8, 4], [], [-1]]"),
        ),
        (b"f(a, b), op_id = 1", (b"f(a, b)", -1, 1, b"")),
        (b"Step", None),
        (b"", None),
        (b", op_id = 3", None),
        (b"step, seq = first", None),
        (b"step, op_id = 3 of 5", None),
        (b"step, op_id = 99999999999999999999", None),
    ],
)
def test_texts_of_emit_nvtx_are_decoded(text: bytes, found: object) -> None:
    assert emitted_op(text) == found


@given(
    st.text().filter(
        lambda name: name and ", seq = " not in name and ", op_id = " not in name
    ),
    st.integers(0, 10**17),
    st.none() | st.integers(0, 10**17),
    st.lists(st.lists(st.integers(0, 10**6), max_size=3), max_size=3),
)
def test_any_emitted_operation_is_decoded(
    name: str, op_id: int, sequence: int | None, sizes: list[list[int]]
) -> None:
    text = (
        name
        + ("" if sequence is None else f", seq = {sequence}")
        + f", op_id = {op_id}"
    )
    text += f", sizes = {sizes}" if sizes else ""
    expected_sizes = str(sizes).encode() if sizes else b""
    number = -1 if sequence is None else sequence
    encoded = text.encode("utf-8", "replace")
    assert emitted_op(encoded) == (
        name.encode("utf-8", "replace"),
        number,
        op_id,
        expected_sizes,
    )
