"""Reports of Nsight Systems are read without `nsys`; damaged ones are refused or salvaged."""

from __future__ import annotations

import gzip
import io
import json
import random
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.nsys_report_maker import (
    GLOBAL_PID,
    GLOBAL_TID,
    PID,
    Message,
    block,
    call,
    copy,
    gpu_work,
    kernel,
    memset,
    nvtx,
    report,
    steps,
    varint,
)
from tracelens_ext.cli import run
from tracelens_ext.errors import (
    TraceCutOffError,
    TraceError,
    TraceFormatError,
    TraceTooLargeError,
)
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.readers.nsys import lz4_block
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import ArgColumn, Device, EventKind
from tracelens_ext.trace.linking import link

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

PAIRS = Path(__file__).resolve().parents[3] / "shared" / "nsys_rep"
REAL = sorted(PAIRS.glob("*.nsys-rep"))
SALVAGE = ReadingOptions(allow_truncated=True)
KERNEL = 0
LAUNCH = 1
COPYING = 2
NAMES = ["void gemm<float>(int)", "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"]


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_content(content: bytes, reading: ReadingOptions | None = None) -> Trace:
        path = tmp_path / "run.nsys-rep"
        path.write_bytes(content)
        return read_trace(path, cache=False, reading=reading or ReadingOptions())

    return read_content


def assert_same(first: Trace, second: Trace, *, but: tuple[str, ...] = ()) -> None:
    """Check that traces are equal in everything except the file they were read from."""
    for field in fields(first):
        if field.name in ("provenance", "metadata", "args", *but):
            continue
        ours = getattr(first, field.name)
        theirs = getattr(second, field.name)
        if isinstance(ours, ArgColumn):
            assert ours.values.tolist() == theirs.values.tolist()
        elif isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
        else:
            assert ours == theirs, field.name
    assert first.args.keys() == second.args.keys()
    for name, column in first.args.items():
        np.testing.assert_array_equal(column.rows, second.args[name].rows, err_msg=name)
        np.testing.assert_array_equal(
            column.values, second.args[name].values, err_msg=name
        )
        assert column.texts == second.args[name].texts
    assert first.provenance.dropped == second.provenance.dropped
    assert first.provenance.present == second.provenance.present


# Reading.


def test_kernels_copies_and_calls(read: Any) -> None:
    trace = read(
        report(
            [
                call(LAUNCH, 100, 50, 1),
                call(COPYING, 160, 50, 2, call_class=1),
                kernel(KERNEL, 300, 40, 1),
                copy(1, 4096, 400, 10, 2),
                memset(512, 500, 5, 3),
            ],
            strings=NAMES,
        )
    )
    assert trace.count_of(EventKind.RUNTIME) == 1
    assert trace.count_of(EventKind.DRIVER) == 1
    (gemm,) = trace.rows_of(EventKind.KERNEL).tolist()
    assert trace.names[trace.name[gemm]] == "void gemm<float>(int)"
    assert (trace.ts[gemm], trace.dur[gemm]) == (200, 40)
    assert trace.base_ns == 100
    assert trace.arg("grid").at(np.array([gemm])).tolist() == [24]
    assert trace.arg("shared memory").at(np.array([gemm])).tolist() == [11]
    names = {trace.names[code] for code in trace.name.tolist()}
    assert names == {
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "void gemm<float>(int)",
        "[CUDA memcpy Host-to-Device]",
        "[CUDA memset]",
    }
    assert trace.arg("bytes").values.tolist() == [4096, 512]
    assert sorted(link(trace).tolist()) == [-1, 0, 1]
    assert (PID, "GPU 0 stream 7") in trace.threads
    assert trace.provenance.notes == ()


def test_nvtx_with_domains_and_registered_texts(read: Any) -> None:
    events = [
        nvtx(75, -5, None, f7="MINE", f13=3),
        nvtx(59, 100, 200, f7="step", f13=0),
        nvtx(60, 120, 180, f12=0, f13=3, f4=9),
        nvtx(34, 130, None, f7="here", f13=0),
        nvtx(59, 140, None, f7="open", f13=0),
        call(1, 150, 5, 1),
    ]
    trace = read(report(events, strings=["registered", "cudaLaunchKernel_v7000"]))
    rows = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.INSTANT)
    assert [trace.names[code] for code in trace.name[rows].tolist()] == [
        "step",
        "registered",
        "here",
        "open",
    ]
    assert trace.dur[rows].tolist() == [100, 60, 0, 0]
    domain = trace.arg("NVTX domain")
    assert [domain.texts[code] for code in domain.values.tolist()] == ['"MINE"']
    assert "open when the recording ended" in trace.provenance.notes[0]


def test_threads_processes_and_gpus(read: Any) -> None:
    trace = read(steps())
    assert trace.process_names == {PID: "python"}
    assert trace.thread_names == {(PID, PID): "python"}
    a100 = Device(
        0, "NVIDIA A100", 108, 32, 80 << 30, 1_410_000_000, 1_555_000_000_000, 80
    )
    assert trace.devices == (a100,)


@pytest.mark.parametrize(
    ("version", "fields_of_process", "name"),
    [
        ("2022.1.3.3", {5: "python3", 8: "/home/alice", 9: "secret.py"}, "python3"),
        ("2022.1.3.3", {5: "/home/alice/bin/train", 9: "secret"}, "train"),
        ("2022.1.3.3", {5: "../alice/train"}, "train"),
        ("2022.1.3.3", {5: "./build/train"}, "./build/train"),
        ("2022.1.3.3", {5: "C:\\Users\\alice\\train.exe"}, "train.exe"),
        ("2022.1.3.3", {5: "/home/alice/x", 6: "its own name"}, "its own name"),
        ("2021.2.1.58", {6: "nsys-launcher"}, None),
    ],
)
def test_names_of_processes_contain_no_folders(
    version: str, fields_of_process: Message, name: str | None, read: Any
) -> None:
    process: Message = {1: 27, 113: {2: GLOBAL_PID, **fields_of_process}}
    trace = read(report([process, call(LAUNCH, 0, 5)], strings=NAMES, version=version))
    assert trace.process_names.get(PID) == name


def test_graphs_that_were_recorded_whole(read: Any) -> None:
    launch = gpu_work(130, 7, 500, 90, f3=4, f107={1: 11, 2: 12})
    trace = read(report([call(LAUNCH, 0, 5, 4), launch], strings=NAMES))
    (row,) = trace.rows_of(EventKind.KERNEL).tolist()
    assert trace.names[trace.name[row]] == "CUDA graph"
    assert any("recorded as a whole" in note for note in trace.provenance.notes)


def test_warnings_of_the_profiler_without_paths(read: Any) -> None:
    warning = (
        "CUPTI is missing in /home/alice/cuda; see 'C:\\Users\\alice' and /proc/sys/x"
    )
    diagnostics: list[Message] = [
        {1: 49, 110: {2: 1, 3: 2, 4: warning}},
        {1: 49, 110: {2: 1, 3: 1, 4: "for information"}},
    ]
    trace = read(report([call(LAUNCH, 0, 5), *diagnostics], strings=NAMES))
    (note,) = trace.provenance.notes
    assert note == (
        "Nsight Systems reports: CUPTI is missing in (a path) see '(a path)' and /proc/sys/x"
    )


def test_unknown_events_are_counted(read: Any) -> None:
    unknown_body: Message = {1: 152, 200: {1: 5}}
    events: list[Message] = [
        *[unknown_body] * 14,
        call(LAUNCH, 0, 5, 1, call_class=29),
        call(LAUNCH, 0, 5, 1),
        gpu_work(80, 9, 50, 5),
        kernel(KERNEL, 90, 5, 1, f101={1: 0, 27: 77, 300: 1}, f111={1: 1}),
        {1: 41, 106: {1: 5}},
        gpu_work(106, 5, 50, 5, f105={1: 1, 4: 2}),
    ]
    trace = read(report(events, strings=NAMES))
    assert trace.provenance.notes == (
        "14 events of kind 152 were not read",
        "1 call of class 29 was not read",
        "1 operation on memory of kind 9 was not read",
        "1 value of GPU work, field 111 was not read",
        "1 value of kernel, field 27 was not read",
        "1 value of kernel, field 127 or above was not read",
    )
    assert trace.count_of(EventKind.KERNEL) == 1


def test_a_recording_without_cuda_is_refused_as_its_export_is(read: Any) -> None:
    events: list[Message] = [
        nvtx(59, 0, 5, f7="x"),
        call(0, 0, 5, call_class=27),
        {1: 31, 104: {1: 1}},
    ]
    with pytest.raises(
        TraceFormatError, match="NVTX_EVENTS and OSRT_API and COMPOSITE_EVENTS"
    ):
        read(report(events, strings=["malloc"]))


def test_ids_of_missing_strings_give_events_without_names(read: Any) -> None:
    trace = read(report([call(7, 0, 5, 1), kernel(-1, 10, 5, 1)], strings=NAMES))
    assert {trace.names[code] for code in trace.name.tolist()} == {"(no name)"}


def test_events_of_several_blocks_keep_their_order(read: Any) -> None:
    blocks = [[call(LAUNCH, 10 * n, 5, n)] for n in range(5)]
    trace = read(report(*blocks, strings=NAMES))
    assert trace.correlation.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "name", ["run.nsys-rep", "run.qdrep", "RUN.NSYS-REP", "other.bin"]
)
def test_a_report_is_recognized_by_name_or_content(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(steps())
    trace = read_trace(path)
    assert trace.provenance.format == "Nsight Systems report"
    assert trace.provenance.bytes_read == path.stat().st_size


def test_a_report_that_is_gzipped_or_open(tmp_path: Path, read: Any) -> None:
    packed = tmp_path / "run.nsys-rep.gz"
    packed.write_bytes(gzip.compress(steps()))
    whole = read(steps())
    assert_same(read_trace(packed), whole)
    assert_same(read_trace(io.BytesIO(steps())), whole)


def test_progress_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(steps())
    told: list[tuple[int, int | None]] = []
    read_trace(path, progress=lambda done, size: told.append((done, size)), cache=False)
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


def test_no_program_is_run(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("subprocess.run", None)
    assert len(read(steps())) == 28


def test_python_alone_reads_the_same(
    monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    compiled = read(steps())
    monkeypatch.setenv("TRACELENS_EXT_PURE_PYTHON", "1")
    monkeypatch.setitem(__import__("sys").modules, "lz4", None)
    monkeypatch.setitem(__import__("sys").modules, "lz4.block", None)
    assert lz4_block._fastest_unpacker() is lz4_block.unpack_in_python
    assert_same(read(steps()), compiled)


def test_a_cached_trace_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(steps())
    cache = TraceCache(tmp_path / "cache", worth_keeping=0)
    first = read_trace(path, cache=cache)
    assert cache.entries()
    assert_same(read_trace(path, cache=cache), first)


# Refusals.


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old) >= 1
    return content.replace(old, new)


WHOLE = steps()
HUGE = varint(200) + varint(10**15) + b"x" * 200
REFUSED = {
    "no report": (
        b"version https://git-lfs.github.com/spec/v1\n",
        "does not begin with",
    ),
    "cut off": (WHOLE[:-1], "without its list of sections"),
    "cut off early": (WHOLE[:40], "without its list of sections"),
    "only its first line": (
        WHOLE[: WHOLE.index(b"\n") + 1],
        "without its list of sections",
    ),
    "a footer outside": (
        WHOLE[:-16] + b"\xff" * 8 + WHOLE[-8:],
        "list of sections is not in",
    ),
    "a footer that is none": (WHOLE[:-16] + bytes(8) + WHOLE[-8:], "list of sections"),
    "no events": (
        changed(WHOLE, b"Raw Sampling Data", b"Raw Sampling Dust"),
        "no section of",
    ),
    "other events": (report(raw_mark=b"QDTEXT01"), "stored in an unknown format"),
    "other compression": (
        report(compression="zstd"),
        "compressed in an unknown format",
    ),
    "too few events": (
        report(counts={1: 5}),
        "it contains 0 events, but its header says 5",
    ),
    "too few strings": (
        report(counts={3: 5}),
        "it contains 0 strings, but its header says 5",
    ),
    "too few threads": (
        report(counts={5: 5}),
        "it contains 0 threads, but its header says 5",
    ),
    "something behind": (report(layouts=block(b"") + b"?"), "after its last part"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_report_is_refused_in_one_line(name: str, read: Any) -> None:
    content, problem = REFUSED[name]
    with pytest.raises(TraceFormatError) as caught:
        read(content)
    assert problem in caught.value.problem
    assert "--nsys PROGRAM" in caught.value.remedy
    assert str(caught.value).count("\n") == 0


def test_layouts_of_nvtx_are_skipped(read: Any) -> None:
    assert (
        len(read(report([call(LAUNCH, 0, 5)], strings=NAMES, layouts=block(b"abc"))))
        == 1
    )


def test_a_block_with_an_impossible_size_is_refused(read: Any) -> None:
    content, starts = three_blocks()
    damaged = content[: starts[1]] + HUGE + content[starts[1] + len(HUGE) :]
    with pytest.raises(TraceCutOffError, match="cannot have its stated length"):
        read(damaged)
    with pytest.raises(lz4_block.DamagedBlockError):
        lz4_block.unpack(b"x" * 10, 2551)


def test_a_report_that_unpacks_to_too_many_bytes_is_refused(read: Any) -> None:
    with pytest.raises(TraceTooLargeError, match="--max-bytes"):
        read(steps(), ReadingOptions(max_bytes=len(steps()) - 1))
    # An event of a kind that is not needed, 10 MB long, which packs to 40 kB.
    rest = 10_000_000
    body = varint(109 << 3 | 2) + varint(rest)
    event = varint(1 << 3) + varint(28) + body
    beginning = b"\x0a" + varint(len(event) + rest) + event
    beginning = varint(len(beginning) + rest) + beginning + b"a"
    length = rest - 1 - 12 - 4 - 15
    packed = bytes([15 << 4 | 15, len(beginning) - 15]) + beginning + b"\x01\x00"
    packed += b"\xff" * (length // 255) + bytes([length % 255]) + b"\xc0" + b"a" * 12
    size = len(beginning) + rest - 1
    blown_up = report(
        [call(LAUNCH, 0, 5)],
        strings=NAMES,
        packed=varint(len(packed)) + varint(size) + packed,
        counts={1: 2},
    )
    assert len(read(blown_up)) == 1
    with pytest.raises(
        TraceTooLargeError, match=r"unpacks to more than 1 MB.*--max-bytes"
    ):
        read(blown_up, ReadingOptions(max_bytes=10**6))


def test_a_long_run_of_a_byte_is_unpacked() -> None:
    blown_up = b"\x1f" + b"a" + b"\x01\x00" + b"\xff" * 40_000 + b"\x00"
    size = 1 + 4 + 15 + 255 * 40_000
    assert lz4_block.unpack_in_python(blown_up, size) == b"a" * size


def test_an_event_with_a_repeated_nested_message_is_damaged(read: Any) -> None:
    twice: Message = {1: 48, 108: [{1: 5}, {1: 6}]}
    with pytest.raises(TraceCutOffError, match="a block of events is damaged"):
        read(report([twice]))


def test_an_event_without_a_kind_is_damaged(read: Any) -> None:
    with pytest.raises(TraceCutOffError, match="one without a kind"):
        read(report([call(LAUNCH, 0, 5), {}], strings=NAMES))


# Salvaging.


def three_blocks() -> tuple[bytes, list[int]]:
    """Return a report with three blocks of events, and the offset of each block."""
    blocks = [
        [call(LAUNCH, 100 * n + 10 * i, 5, i) for i in range(30)] for n in range(3)
    ]
    content = report(*blocks, strings=NAMES)
    starts = []
    position = 0
    for _ in blocks:
        position = content.index(b"\xf0\xff", position + 1)
        starts.append(position - 4)
    return content, starts


def test_the_error_names_the_byte_and_what_can_be_done(read: Any) -> None:
    content, starts = three_blocks()
    damaged = bytearray(content)
    damaged[starts[2] + 40 : starts[2] + 60] = b"\xff" * 20
    with pytest.raises(TraceCutOffError) as caught:
        read(bytes(damaged))
    assert f"(byte {starts[2]:,}: a block of events is damaged)" in caught.value.problem
    assert "--allow-truncated" in caught.value.remedy


def test_events_before_a_damaged_block_are_salvaged(read: Any) -> None:
    content, starts = three_blocks()
    damaged = bytearray(content)
    damaged[starts[2] + 40 : starts[2] + 60] = b"\xff" * 20
    trace = read(bytes(damaged), SALVAGE)
    assert len(trace) == 60
    assert {trace.names[code] for code in trace.name.tolist()} == {"cudaLaunchKernel"}
    assert trace.provenance.salvaged
    assert "60 events before it are here" in trace.provenance.notes[0]


def test_events_of_a_report_whose_end_is_lost_are_salvaged_without_names(
    read: Any,
) -> None:
    content, starts = three_blocks()
    cut = content[: starts[2] + 10]
    with pytest.raises(
        TraceCutOffError, match=f"byte {len(cut):,}: the file ends there"
    ):
        read(cut)
    trace = read(cut, SALVAGE)
    assert len(trace) == 60
    assert {trace.names[code] for code in trace.name.tolist()} == {"(no name)"}
    assert "the names of kernels and calls" in trace.provenance.notes[0]


def test_all_of_a_report_that_lost_its_footer_only_is_salvaged(read: Any) -> None:
    trace = read(WHOLE[:-20], SALVAGE)
    assert_same(trace, read(WHOLE), but=("process_names",))
    assert trace.provenance.salvaged


def test_a_report_without_events_before_the_damage_is_refused(read: Any) -> None:
    with pytest.raises(TraceCutOffError, match="no event precedes the damage"):
        read(WHOLE[:60], SALVAGE)


# Privacy.

SECRETS = {
    "ENVIRONMENT_SECRET": 101,
    "HOST_SECRET": 105,
    "USER_SECRET": 106,
    "COMMAND_SECRET": 125,
    "OUTPUT_SECRET": 103,
}


def with_secrets() -> bytes:
    private: dict[int, Any] = {number: text for text, number in SECRETS.items()}
    other: Message = {
        1: 27,
        113: {2: GLOBAL_PID + (1 << 24), 6: "OTHER_PROCESS_SECRET"},
    }
    own: Message = {
        1: 27,
        113: {
            2: GLOBAL_PID,
            5: "/home/PATH_SECRET/python",
            8: "/FOLDER_SECRET",
            9: "ARG_SECRET",
        },
    }
    said: Message = {1: 49, 110: {3: 3, 4: "no file /home/DIAGNOSTIC_SECRET/x"}}
    events = [call(LAUNCH, 0, 5, 1), kernel(KERNEL, 10, 5, 1), own, other, said]
    strings = [*NAMES, "/home/STRING_SECRET/lib.so"]
    other_thread = {2: 3, 3: 1, 4: GLOBAL_TID + (1 << 24)}
    return report(events, strings=strings, threads=[other_thread], private=private)


def test_nothing_private_is_in_any_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = with_secrets()
    assert content.count(b"SECRET") >= 15
    source = tmp_path / "run.nsys-rep"
    source.write_bytes(content)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    cache = TraceCache(outputs / "cache", worth_keeping=0)
    trace = read_trace(source, cache=cache)
    assert trace.process_names == {PID: "python"}
    (outputs / "trace.txt").write_text(repr(trace) + repr(vars(trace)))
    for command in (
        [
            "report",
            str(source),
            "-o",
            str(outputs / "r.json"),
            "--tables",
            "all",
            "--no-cache",
        ],
        ["export", str(source), "-o", str(outputs / "small.json"), "--no-cache"],
        ["export", str(source), "-o", str(outputs / "small.db"), "--no-cache"],
        ["kernels", str(source), "--notes", "--no-cache"],
        ["tree", str(source), "--json", "--no-cache"],
        ["findings", str(source), "--json", "--no-cache"],
    ):
        assert run(command) == 0
    for cut in (len(content) // 2, len(content) - 3):
        source.write_bytes(content[:cut])
        for options in ([], ["--allow-truncated"]):
            run(["kernels", str(source), "--notes", "--no-cache", *options])
    told = capfd.readouterr()
    (outputs / "told.txt").write_text(told.out + told.err)
    for path in filter(Path.is_file, outputs.rglob("*")):
        assert b"SECRET" not in path.read_bytes(), path.name


# Commands.


def test_class_statistics_of_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(steps())
    assert run(["nsys", "stats", str(path), "--iteration-range", "Step", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert "gemm" in json.dumps(tables)
    configuration = {
        "inputs": [
            {
                "format": "nsys-rep",
                "title": "A",
                "nsys_report": {
                    "path": "run.nsys-rep",
                    "with_nvtx": True,
                    "with_mem": True,
                },
                "analysis_args": {
                    "num_of_iters": 4,
                    "num_of_gpus": 1,
                    "nvtx_tag_of_iter": "Step",
                },
            }
        ],
        "kernel_to_class_map": {"gemm": "GEMM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    assert (
        run(["nsys", "stats", "--config", str(tmp_path / "config.json"), "--json"]) == 0
    )


def test_a_folder_of_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.nsys-rep", "b.qdrep"):
        (tmp_path / name).write_bytes(steps())
    output = tmp_path / "out"
    arguments = ["report", str(tmp_path), "-o", str(output), "-q", "--format", "json"]
    assert run(arguments) == 0, capsys.readouterr().err
    assert len([*output.glob("*.json")]) == 2


def test_formats_say_that_nothing_else_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["formats"]) == 0
    listed = capsys.readouterr().out
    assert "Nsight Systems report" in listed
    assert "is needed to read it" not in listed


# Hostile reports.


def mutants(content: bytes, count: int, seed: int) -> list[bytes]:
    """Yield copies with bytes changed, zeroed, removed, repeated, or cut off."""
    numbers = random.Random(seed)
    made = []
    for _ in range(count):
        damaged = bytearray(content)
        start = numbers.randrange(len(content))
        length = numbers.randrange(1, 40)
        how = numbers.randrange(5)
        if how == 0:
            damaged[start] = numbers.randrange(256)
        elif how == 1:
            damaged[start : start + length] = bytes(length)
        elif how == 2:
            del damaged[start : start + length]
        elif how == 3:
            damaged[start:start] = damaged[start : start + length]
        else:
            del damaged[start:]
        made.append(bytes(damaged))
    return made


def outcome(content: bytes, path: Path, reading: ReadingOptions) -> Trace | str:
    path.write_bytes(content)
    try:
        return read_trace(path, cache=False, reading=reading)
    except TraceError as error:
        return str(error)


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 12), pytest.param(1, 100, marks=pytest.mark.slow)]
)
def test_damaged_reports_are_read_or_refused_alike_by_both_decoders(
    seed: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = three_blocks()[0] if seed == 0 else steps()
    path = tmp_path / "run.nsys-rep"
    for mutant in mutants(content, count, seed):
        for reading in (ReadingOptions(), SALVAGE):
            started = time.perf_counter()
            compiled = outcome(mutant, path, reading)
            assert time.perf_counter() - started < 5
            with monkeypatch.context() as patch:
                patch.setenv("TRACELENS_EXT_PURE_PYTHON", "1")
                pure = outcome(mutant, path, reading)
            if isinstance(compiled, str) or isinstance(pure, str):
                assert compiled == pure
            else:
                assert_same(compiled, pure)
                assert compiled.provenance.notes == pure.provenance.notes


# Recorded reports.


@pytest.mark.real_data
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_a_report_gives_the_trace_of_its_export(path: Path) -> None:
    export = path.with_suffix(".sqlite")
    if path.stem == "v2023.1":
        for source in (path, export):
            with pytest.raises(TraceFormatError, match="without CUDA events"):
                read_trace(source, cache=False)
        return
    ours = read_trace(path, cache=False)
    theirs = read_trace(export, cache=False)
    # The export has the whole path of a program.
    assert_same(ours, theirs, but=("process_names",))
    for process, name in theirs.process_names.items():
        absolute = name.startswith("/")
        expected = Path(name).name if absolute else name
        assert ours.process_names[process] == expected
    assert not [note for note in ours.provenance.notes if "not read" in note]
