"""Compiled code and Python decode LZ4 blocks and protobuf messages alike, for every input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nsys_report_maker import message, sized, steps, varint
from tracelens_ext.readers.nsys import lz4_block, protobuf
from tracelens_ext.readers.nsys.native import compiled_decoder
from tracelens_ext.readers.nsys.protobuf import (
    DamagedMessageError,
    Message,
    MessagePlan,
)
from tracelens_ext.readers.tables import MISSING

native = compiled_decoder()
needs_native = pytest.mark.skipif(
    native is None, reason="the compiled decoder is not built"
)

_INNER = Message(
    "inner", numbers={1: "a", 2: "b"}, ignored=frozenset({3}), counted=True
)
PLAN = MessagePlan(
    Message(
        "outer",
        numbers={1: "kind", 5: "number"},
        texts={2: "text"},
        messages={3: _INNER, 100: Message("far", numbers={120: "far"}, counted=True)},
        counted=True,
    )
)

# LZ4.


def _token(literals: int, match_length: int) -> int:
    """Return the token of a sequence: both lengths, with 15 for longer ones."""
    return min(literals, 15) << 4 | min(match_length, 15)


@st.composite
def packed_blocks(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return a block of mostly valid sequences, and the size that it claims."""
    packed = bytearray()
    size = 0
    for _ in range(draw(st.integers(0, 6))):
        literals = draw(st.binary(max_size=40))
        length = draw(st.integers(0, 600))
        unpacked_so_far = max(size + len(literals), 1)
        offset = draw(st.integers(1, unpacked_so_far) | st.integers(0, 70_000))
        packed.append(_token(len(literals), length))
        packed += _long(len(literals)) + literals
        packed += (offset % 65_536).to_bytes(2, "little")
        packed += _long(length)
        size += len(literals) + length + 4
    last_literals = draw(st.binary(max_size=20))
    packed.append(_token(len(last_literals), 0))
    packed += _long(len(last_literals)) + last_literals
    size += len(last_literals)
    is_damaged = draw(st.booleans())
    if is_damaged:
        place = draw(st.integers(0, len(packed) - 1))
        packed[place] = draw(st.integers(0, 255))
    error = draw(st.sampled_from((0, 0, 0, 0, 1, -1)))
    return bytes(packed), size + error


def _long(length: int) -> bytes:
    rest = length - 15
    return b"" if rest < 0 else b"\xff" * (rest // 255) + bytes([rest % 255])


@needs_native
@given(packed_blocks() | st.tuples(st.binary(max_size=60), st.integers(-1, 400)))
def test_both_unpackers_give_equal_bytes(given_block: tuple[bytes, int]) -> None:
    packed, size = given_block
    assert native is not None
    assert native.unpack(packed, size) == lz4_block.unpack_in_python(packed, size)


def test_a_match_that_overlaps_itself() -> None:
    packed = b"\x35abc\x03\x00\x10z"
    assert lz4_block.unpack_in_python(packed, 13) == b"abcabcabcabcz"
    # The library wants some bytes behind the last match.
    assert (
        lz4_block.unpack(packed[:-2] + b"\xc0" + b"z" * 12, 24)
        == b"abcabcabcabc" + b"z" * 12
    )


@pytest.mark.parametrize("size", [12, 14, 10**12])
def test_a_block_with_another_size_is_refused(size: int) -> None:
    with pytest.raises(lz4_block.DamagedBlockError):
        lz4_block.unpack(b"\x35abc\x03\x00\x10z", size)


@given(st.binary(max_size=3000))
def test_blocks_of_the_library_are_unpacked(content: bytes) -> None:
    library: Any = pytest.importorskip("lz4.block")
    for data in (content, content * 9):
        packed = library.compress(data, store_size=False)
        assert lz4_block.unpack_in_python(packed, len(data)) == data
        assert lz4_block.unpack(packed, len(data)) == data


# Protobuf.

numbers = st.integers(0, 2**64 - 1) | st.integers(0, 300) | st.integers(-(2**63), -1)
tags = st.sampled_from([1, 2, 3, 4, 5, 7, 100, 126, 127, 128, 300, 5000, 2**29 - 1])


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> bytes:
    """Return a message with fields of all wire types."""
    encoded = b""
    for _ in range(draw(st.integers(0, 5))):
        number = draw(tags)
        wire_type = draw(st.sampled_from([0, 0, 0, 2, 2, 2, 1, 5]))
        encoded += varint(number << 3 | wire_type)
        if wire_type == 0:
            encoded += varint(draw(numbers))
        elif wire_type == 1:
            encoded += draw(st.binary(min_size=8, max_size=8))
        elif wire_type == 5:
            encoded += draw(st.binary(min_size=4, max_size=4))
        elif depth and draw(st.booleans()):
            encoded += sized(draw(messages(depth=depth - 1)))
        else:
            encoded += sized(draw(st.binary(max_size=9)))
    return encoded


@st.composite
def lists(draw: st.DrawFn) -> bytes:
    """Return a list of messages, some of them repeated, with or without damage."""
    content = b""
    for item in draw(st.lists(messages(), max_size=5)):
        repeated = draw(st.sampled_from([1, 1, 40]))
        content += (b"\x0a" + sized(item)) * repeated
    data = bytearray(sized(content))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def outcome(decode: Any, data: bytes) -> Any:
    try:
        values, unknown = decode(data, PLAN)
    except DamagedMessageError:
        return None
    return values.tolist(), unknown


@needs_native
@given(lists() | st.binary(max_size=80))
def test_both_decoders_give_equal_columns(data: bytes) -> None:
    assert outcome(protobuf.decode, data) == outcome(protobuf.decode_in_python, data)


@needs_native
def test_both_decoders_treat_damage_alike() -> None:
    from tracelens_ext.readers.nsys.report_schema import EVENTS

    rng = np.random.default_rng(0)
    start = steps().index(b"\xf0\xff")
    content = steps()[start : start + 2000]
    data = sized(
        b"".join(b"\x0a" + sized(content[n : n + 60]) for n in range(0, 1900, 60))
    )
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] = rng.integers(256)
        answers: list[Any] = []
        for decode in (protobuf.decode, protobuf.decode_in_python):
            try:
                values, unknown = decode(bytes(damaged), EVENTS)
                answers.append((values.tolist(), unknown))
            except DamagedMessageError:
                answers.append(None)
        assert answers[0] == answers[1]


@pytest.mark.parametrize("count", [1, 100])
def test_columns_of_messages(count: int) -> None:
    inner = {1: -1, 2: 2**63, 3: 9, 4: 1}
    item = message({1: 7, 2: "text", 3: inner, 6: 1, 100: {120: 2**56 - 1}})
    data = sized((b"\x0a" + sized(item)) * count)
    for decode in (protobuf.decode, protobuf.decode_in_python):
        decoded = decode(data, PLAN)
        found = {
            name: PLAN.column(decoded, name)[-1]
            for name in ("kind", "number", "a", "b", "far")
        }
        assert found == {
            "kind": 7,
            "number": MISSING,
            "a": -1,
            "b": -(2**63),
            "far": 2**56 - 1,
        }
        starts, lengths = PLAN.spans(decoded, "text")
        assert data[starts[-1] : starts[-1] + lengths[-1]] == b"text"
        assert decoded.unknown == {(0, 6): count, (1, 4): count}


@given(st.lists(numbers, min_size=30, max_size=60))
def test_numbers_of_every_length(values: list[int]) -> None:
    data = sized(b"".join(b"\x0a" + sized(message({5: value})) for value in values))
    decoded = protobuf.decode_in_python(data, PLAN)
    expected = np.array([value % 2**64 for value in values], dtype=np.uint64).view(
        np.int64
    )
    np.testing.assert_array_equal(PLAN.column(decoded, "number"), expected)


@pytest.mark.parametrize("wire_type", [3, 4, 6, 7])
def test_groups_are_refused(wire_type: int) -> None:
    data = sized(b"\x0a" + sized(bytes([1 << 3 | wire_type])))
    for decode in (protobuf.decode, protobuf.decode_in_python):
        with pytest.raises(DamagedMessageError):
            decode(data, PLAN)


def test_nesting_beyond_the_plan_is_not_followed() -> None:
    deep = b""
    for _ in range(5_000):
        deep = b"\x1a" + sized(deep)
    data = sized(b"\x0a" + sized(deep))
    for decode in (protobuf.decode, protobuf.decode_in_python):
        assert decode(data, PLAN).values.shape == (len(PLAN.columns), 1)


@needs_native
def test_a_plan_with_impossible_columns_is_refused() -> None:
    assert native is not None
    for action in (5, 1000, 1001, 2004, -3):
        actions = np.full(128, -1, dtype=np.int16)
        actions[1] = action
        with pytest.raises(ValueError, match="beyond the limits"):
            native.decode(sized(b""), actions.tobytes(), 128, 5, MISSING, 10)
