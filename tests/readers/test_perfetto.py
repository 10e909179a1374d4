"""Packets of Perfetto traces, in any order and with any clock, become events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.perfetto_maker import (
    Message,
    begin,
    child_track,
    encoded,
    end,
    thread_track,
    trace,
    varint,
)
from tests.support.trace_properties import accounted_for
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.perfetto.slices import match_ends
from tracelens_ext.readers.xplane.many_messages import PADDING, varints
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

SHARED = Path(__file__).parents[2] / ".." / "shared" / "formats" / "pftrace"


def read(tmp_path: Path, *packets: Any) -> Trace:  # nested lists
    path = tmp_path / "run.pftrace"
    path.write_bytes(trace(*packets))
    found = read_trace(path, cache=False)
    accounted_for(found)
    return found


def slices(found: Trace) -> list[tuple[str, int, int]]:
    """Return name, start and duration of each event."""
    rows = range(len(found))
    return sorted((found.name_of(i), int(found.ts[i]), int(found.dur[i])) for i in rows)


TRACK = thread_track(1, 42, 43, "main")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=20))
def test_an_end_belongs_to_the_last_open_begin_of_its_track(
    packets: list[tuple[bool, int]],
) -> None:
    begins = np.array([b for b, _ in packets], dtype=bool)
    track = np.array([t for _, t in packets], dtype=np.int64)
    expected = [NONE] * len(packets)
    stacks: dict[int, list[int]] = {}
    for place, (is_begin, of) in enumerate(packets):
        if is_begin:
            stacks.setdefault(of, []).append(place)
        elif stacks.get(of):
            expected[stacks[of].pop()] = place
    assert match_ends(begins, track, np.arange(len(packets))).tolist() == expected


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_varints_of_any_size_are_decoded_together(numbers: list[int]) -> None:
    texts = [varint(number) for number in numbers]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = np.append(0, ends)[: len(ends)]
    value, after = varints(np.frombuffer(b"".join(texts) + PADDING, np.uint8), starts)
    assert value.view(np.uint64).tolist() == numbers
    assert after.tolist() == ends.tolist()


def test_begins_of_a_kind_may_all_come_before_their_ends(tmp_path: Path) -> None:
    """PyTorch writes slices neither in order of time nor nested; one of these is empty."""
    outer, inner, empty = (
        begin(t, 1, n, "cpu_op") for t, n in ((10, "a"), (20, "b"), (30, "c"))
    )
    call = begin(12, 1, "cudaLaunchKernel", "cuda_runtime")
    packets = (
        TRACK,
        outer,
        inner,
        empty,
        end(90, 1),
        end(40, 1),
        end(30, 1),
        call,
        end(18, 1),
    )
    assert slices(read(tmp_path, *packets)) == [
        ("a", 0, 80),
        ("b", 10, 20),
        ("c", 20, 0),
        ("cudaLaunchKernel", 2, 6),
    ]


def test_slices_without_begin_or_end_are_counted(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        TRACK,
        end(5, 1),
        begin(10, 1, "a", "cpu_op"),
        end(12, 1),
        begin(20, 1, "b"),
    )
    assert slices(found) == [("a", 0, 2)]
    assert found.provenance.dropped == {
        "slices without an end": 1,
        "slice ends without a beginning": 1,
    }


def test_interned_names_are_valid_until_the_sequence_is_cleared(tmp_path: Path) -> None:
    """Two sequences give the same numbers to different names, and one redefines a number."""

    def interned(sequence: int, name: str) -> Message:
        return [
            (10, sequence),
            (13, 1),
            (12, [(1, [(1, 7), (2, "cpu_op")]), (2, [(1, 5), (2, name)])]),
        ]

    def slice_of(time: int, sequence: int) -> list[Message]:
        event: Message = [(9, 1), (11, sequence), (10, 5), (3, 7)]
        return [
            [(8, time), (10, sequence), (11, event)],
            end(time + 1, sequence, sequence),
        ]

    packets = [thread_track(1, 42, 43, ""), thread_track(2, 42, 44, "")]
    packets += [interned(1, "a"), interned(2, "b"), *slice_of(10, 1), *slice_of(20, 2)]
    packets += [interned(1, "c"), *slice_of(30, 1), *slice_of(40, 2)]
    assert slices(read(tmp_path, *packets)) == [
        ("a", 0, 1),
        ("b", 10, 1),
        ("b", 30, 1),
        ("c", 20, 1),
    ]


def test_times_of_other_clocks_are_converted(tmp_path: Path) -> None:
    """Clock 64 of a sequence counts µs since its last packet, clock 3 is 1 s behind."""
    clocks = [[(1, 6), (2, 10**9)], [(1, 64), (3, 1), (4, 1000)], [(1, 3), (2, 5)]]
    snapshot = [(10, 1), (6, [(1, clock) for clock in clocks])]
    defaults = [(10, 1), (13, 1), (59, [(58, 64), (11, [(11, 1)])])]
    first = [(8, 2), (10, 1), (11, [(9, 1), (23, "a"), (22, "cpu_op")])]
    last = [(8, 3), (10, 1), (11, [(9, 2)])]
    other = [
        [*p, (58, 3)] for p in (begin(7, 2, "b", "cpu_op", sequence=2), end(9, 2, 2))
    ]
    track = thread_track(2, 42, 44, "other")
    found = read(tmp_path, TRACK, track, snapshot, defaults, first, last, *other)
    assert slices(found) == [("a", 1998, 3000), ("b", 0, 2)]
    assert found.base_ns == 10**9 + 2


def test_a_track_within_a_thread_belongs_to_that_thread(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        TRACK,
        child_track(2, 1, "stack"),
        begin(1, 2, "a", "cpu_op"),
        end(2, 2),
    )
    assert found.threads == [(42, 43)]


def test_arguments_are_those_of_json(tmp_path: Path) -> None:
    """Values are numbers, texts and nested lists; an empty message is an empty list."""
    dims: Message = [(12, [(12, [(4, 8)]), (12, [(4, 4)])]), (12, [])]
    more: Message = [(4, [(10, "Input Dims"), *dims])]
    args: dict[str, int | float | str] = {"External id": 3, "Sequence number": "17"}
    packet = begin(1, 1, "aten::mm", "cpu_op", args=args, more=more)
    found = read(tmp_path, TRACK, packet, end(2, 1))
    assert found.external_id.tolist() == [3]
    assert found.arg("Sequence number").values.tolist() == [17]
    texts = found.arg("Input Dims")
    assert [texts.texts[code] for code in texts.values] == ["[[8,4],[]]"]  # type: ignore[index]


def test_kinds_are_inferred_from_tracks_and_arguments(tmp_path: Path) -> None:
    gpu = thread_track(2, 0, 7, "stream 7")
    call = begin(1, 1, "cudaLaunchKernel", args={"cbid": 211, "correlation": 5})
    packets = [TRACK, gpu, call, end(2, 1)]
    packets += [begin(3, 2, "k", args={"grid": "1", "correlation": 5}), end(5, 2)]
    packets += [begin(6, 2, "Memcpy HtoD", args={"bytes": 8}), end(7, 2)]
    packets += [begin(8, 1, "aten::mm", args={"External id": 1}), end(9, 1)]
    packets += [begin(10, 1, "train.py(3): f"), end(11, 1)]
    found = read(tmp_path, *packets)
    kinds = {
        found.name_of(row): EventKind(found.kind[row]).name for row in range(len(found))
    }
    assert kinds == {
        "cudaLaunchKernel": "RUNTIME",
        "k": "KERNEL",
        "Memcpy HtoD": "MEMCPY",
        "aten::mm": "CPU_OP",
        "train.py(3): f": "PYTHON_FUNCTION",
    }


def test_traces_of_rocprofv3_have_their_calls_kernels_and_copies(
    tmp_path: Path,
) -> None:
    queue = [(60, [(1, 2), (5, 9), (2, "COMPUTE AGENT [1] QUEUE [3] (GPU)")])]
    process = [(60, [(1, 9), (3, [(1, 42), (6, "python")])])]
    packets: list[Any] = [process, TRACK, queue]
    packets += [
        begin(1, 1, "hipLaunchKernel", "hip_api", args={"corr_id": 5}),
        end(2, 1),
    ]
    packets += [begin(3, 2, "k", "kernel_dispatch", args={"corr_id": 5}), end(5, 2)]
    analyzer = TreePerfAnalyzer(read(tmp_path, *packets))
    (row,) = analyzer.trace.gpu_rows.tolist()
    assert analyzer.tree.linked.all()
    trace = analyzer.trace
    assert (trace.name_of(row), *trace.device, *trace.stream) == ("k", 1, 3)


def test_render_stages_belong_to_the_call_that_submitted_them(tmp_path: Path) -> None:
    """PyTorch's own fields give the name of a kernel (1000) and the work of a call (3000)."""
    interned = [(24, [(1, 1), (2, "Stream 7")]), (24, [(1, 2), (2, "Kernel")])]
    interned += [(1000, [(1, 4), (3, "void k<float>()")])]
    call = begin(1, 1, "cudaLaunchKernel", "cuda_runtime", more=[(3000, [(1, 77)])])
    extra = [
        (6, [(1, "Collective name"), (2, "allreduce")]),
        (6, [(1, "Group size"), (2, "8")]),
    ]
    stage = [(1, 77), (2, 500), (11, 1), (13, 1), (14, 2), (19, 4), *extra]
    packets = (
        TRACK,
        [(10, 1), (13, 1), (12, interned)],
        call,
        end(2, 1),
        [(8, 5), (10, 1), (53, stage)],
    )
    found = read(tmp_path, *packets)
    analyzer = TreePerfAnalyzer(found)
    assert analyzer.tree.linked.all()
    (row,) = found.gpu_rows.tolist()
    assert (found.name_of(row), int(found.dur[row])) == ("void k<float>()", 500)
    assert (found.device.tolist(), found.stream.tolist()) == ([1], [7])
    texts = found.arg("Group size")
    assert [json.loads(texts.texts[code]) for code in texts.values] == [8]  # type: ignore[index]


def test_values_of_gpu_counters_become_a_table(tmp_path: Path) -> None:
    descriptor = [(1, 9), (2, [(1, [(1, 3), (2, "SM Active (%)")])]), (3, 1)]
    packets: list[Any] = [[(10, 1), (13, 1), (12, [(47, descriptor)])]]
    for time, value in ((5, 10.0), (6, 30.0)):
        packets += [[(8, time), (10, 1), (52, [(4, 9), (2, [(1, 3), (3, value)])])]]
    packets += [TRACK, begin(1, 1, "aten::mm", "cpu_op"), end(2, 1)]
    table = TreePerfAnalyzer(read(tmp_path, *packets)).get_df_gpu_counters()
    assert table.iloc[0].tolist() == [1, "SM Active (%)", 2, 20.0, 10.0, 30.0]


def test_traces_of_android_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="Android") as caught:
        read(
            tmp_path,
            TRACK,
            [(8, 5), (10, 1), (1, [(1, 0)])],
            begin(1, 1, "draw", "gfx"),
            end(2, 1),
        )
    assert len(str(caught.value).splitlines()) == 1


def test_complete_packets_of_a_cut_off_file_can_be_salvaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.pftrace"
    whole = trace(TRACK, begin(1, 1, "a", "cpu_op"), end(3, 1))
    path.write_bytes(whole + encoded([(1, begin(4, 1, "b", "cpu_op"))])[:-3])
    with pytest.raises(TraceCutOffError):
        read_trace(path)
    found = read_trace(path, reading=ReadingOptions(allow_truncated=True))
    accounted_for(found)
    assert slices(found) == [("a", 0, 2)]


def test_bytes_that_look_like_packets_do_not_hang(tmp_path: Path) -> None:
    """Each pair of bytes looks like the beginning of a packet that ends at the next pair."""
    padding = [(99, b"\x0a\x00" * 200_000)]
    assert slices(
        read(tmp_path, TRACK, padding, begin(1, 1, "a", "cpu_op"), end(2, 1))
    ) == [("a", 0, 1)]


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["in_order.pftrace", "by_kind.pftrace.gz"])
def test_a_trace_has_the_tables_of_its_json(name: str) -> None:
    one, other = (TreePerfAnalyzer(SHARED / each) for each in ("same.json.gz", name))
    assert one.get_df_kernels().equals(other.get_df_kernels())
    assert one.get_df_nn_modules().equals(other.get_df_nn_modules())
    assert one.get_df_memory_at_peak().equals(other.get_df_memory_at_peak())
