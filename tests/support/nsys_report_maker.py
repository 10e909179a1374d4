"""Small reports of Nsight Systems made by hand: `.nsys-rep` as its container is described."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "int | str | bytes | Sequence[Value] | Mapping[int, Value]"
Message = Mapping[int, Value]

MACHINE = 1 << 48


def varint(value: int) -> bytes:
    value %= 1 << 64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def message(fields: Message) -> bytes:
    """Return a protobuf message of numbers, texts, nested messages (mappings) and lists of them."""
    encoded = b""
    for number, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int):
                encoded += varint(number << 3) + varint(each)
            elif isinstance(each, Mapping):
                encoded += varint(number << 3 | 2) + sized(message(each))
            else:
                content = each.encode() if isinstance(each, str) else bytes(each)  # type: ignore[arg-type]
                encoded += varint(number << 3 | 2) + sized(content)
    return encoded


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def block(content: bytes) -> bytes:
    """Return a block of one LZ4 sequence without a match: its length, and the bytes themselves."""
    rest = len(content) - 15
    length = bytes([min(len(content), 15) << 4])
    if rest >= 0:
        length += b"\xff" * (rest // 255) + bytes([rest % 255])
    packed = length + content
    return varint(len(packed)) + varint(len(content)) + packed


def report(
    *blocks: Sequence[Message],
    strings: Sequence[str] = (),
    threads: Sequence[Message] = (),
    last: Message | None = None,
    counts: Message | None = None,
    version: str = "2026.1.1.204-0",
    private: Message | None = None,
    layouts: bytes = b"",
    raw_mark: bytes = b"QDTEXT00",
    compression: str = "lz4",
    packed: bytes = b"",
) -> bytes:
    """A report with blocks of events; `strings` are what ids stand for.

    Args:
        blocks: the events of each.
        strings: the texts that ids stand for.
        threads: {2: id of the name, 3: priority, 4: globalTid}.
        last: the GPUs.
        counts: what the header says instead of the true numbers.
        version: which nsys wrote it.
        private: what is in all parts that are not for analysis.
        layouts: of NVTX payloads, behind the last part.
        raw_mark: how the raw data begins.
        compression: how its blocks are packed.
        packed: blocks that are packed already, behind the others.
    """
    secret = private or {}
    header: dict[int, Value] = {
        1: sum(map(len, blocks)),
        3: len(strings),
        5: len(threads),
        9: "lz4",
    }
    raw = (
        raw_mark + sized(message(secret)) + sized(message({**header, **(counts or {})}))
    )
    for events in blocks:
        raw += block(sized(message({1: [*events]})))
    raw += packed
    offsets: dict[int, Value] = {1: compression, 2: len(raw) - 8}
    raw += block(sized(message({1: [*strings], 2: [secret]})))
    raw += sized(message({1: [*threads]})) + sized(message(last or {}))
    if layouts:
        offsets[3] = len(raw) - 8
    sections = {
        "Analysis Options Data": message(secret),
        "Raw Sampling Data": raw + layouts,
        "Sampling Data Offsets": message(offsets),
        "UI Data": message({**secret, 7: version}),
    }
    content = f"NVIDIA Tegra Profiler Report {version.replace('.', '@')}.\n".encode()
    footer: list[Value] = []
    for name, data in sections.items():
        footer.append({1: name, 2: len(content), 3: len(data)})
        content += data
    return (
        content + message({1: footer}) + struct.pack("<Q", len(content)) + b"U3w[END]"
    )


# Events.

PID = 144
GLOBAL_PID = MACHINE | PID << 24
GLOBAL_TID = GLOBAL_PID | PID


def gpu_work(
    kind: int, activity: int, start: int, duration: int, **more: Value
) -> Message:
    """Return GPU work; `more` are the fields of its body, such as `f101={...}`."""
    body: dict[int, Value] = {
        1: start,
        2: start + duration,
        3: 0,
        4: 0,
        5: 1,
        6: 7,
        7: activity,
    }
    body[8] = GLOBAL_PID
    body |= {int(name.removeprefix("f")): value for name, value in more.items()}
    return {1: kind, 107: body}


def kernel(
    name: int, start: int, duration: int, correlation: int, **more: Value
) -> Message:
    shape: dict[int, Value] = {
        1: name,
        2: name,
        3: name,
        8: name,
        10: 2,
        11: 3,
        12: 4,
        16: 5,
        17: 6,
    }
    return gpu_work(79, 3, start, duration, f3=correlation, **({"f101": shape} | more))


def copy(kind: int, size: int, start: int, duration: int, correlation: int) -> Message:
    return gpu_work(
        80, 1, start, duration, f3=correlation, f102={1: size, 2: kind, 4: 1, 5: 2}
    )


def memset(size: int, start: int, duration: int, correlation: int) -> Message:
    return gpu_work(80, 2, start, duration, f3=correlation, f103={1: size, 2: 0, 4: 2})


def call(
    name: int, start: int, duration: int, correlation: int = 0, call_class: int = 0
) -> Message:
    body: dict[int, Value] = {
        1: start,
        2: start + duration,
        3: correlation,
        6: call_class,
    }
    return {1: 48, 108: {**body, 7: name, 8: 0, 13: GLOBAL_TID}}


def nvtx(kind: int, start: int, end: int | None, **more: Value) -> Message:
    """Return an NVTX event; `more` are other fields of its body, such as `f7="text"`."""
    body: dict[int, Value] = {1: kind, 2: start, 9: GLOBAL_TID}
    if end is not None:
        body[10] = end
    body |= {int(name.removeprefix("f")): value for name, value in more.items()}
    return {1: kind, 102: body}


def steps() -> bytes:
    """A report of four iterations, `Step`, of two kernels and a copy each, of one process."""
    strings = [
        "python",
        "cudaLaunchKernel_v7000",
        "cudaMemcpyAsync_v3020",
        "void gemm<float>(int)",
    ]
    strings.append("relu(float*)")
    events: list[Message] = [{1: 27, 113: {2: GLOBAL_PID, 6: "python"}}]
    for step in range(4):
        start = step * 100_000
        first = 10 * step + 1
        events.append(nvtx(59, start, start + 90_000, f7="Step", f13=0))
        events.append(call(1, start + 1_000, 4_000, first))
        events.append(call(1, start + 6_000, 4_000, first + 1))
        events.append(call(2, start + 11_000, 4_000, first + 2))
        events.append(kernel(3, start + 10_000, 40_000, first))
        events.append(kernel(4, start + 51_000, 10_000, first + 1))
        events.append(copy(1, 1 << 20, start + 62_000, 5_000, first + 2))
    gpu: Message = {
        1: 0,
        2: "NVIDIA A100",
        11: 80 << 30,
        12: 1_555_000_000_000,
        13: 1_410_000_000,
    }
    gpu = {**gpu, 14: 108, 30: 32, 41: 8, 42: 0}
    last: Message = {1: {1: MACHINE, 2: {7: gpu}}}
    threads: list[Message] = [{2: 0, 3: 20, 4: GLOBAL_TID}]
    return report(events, strings=strings, threads=threads, last=last)
