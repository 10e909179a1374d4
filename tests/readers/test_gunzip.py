"""gzip streams give the same text for all sizes of reads, and every byte before damage."""

from __future__ import annotations

import gzip
import io
import random
import sys
import zlib

import pytest

from tracelens_ext.readers.ahead import Gunzip

#: Neither constant nor random, so that the stream has blocks of several types.
TEXT = b"".join(
    random.Random(place // 5000).randbytes(8) + b"trace event " * (place % 7)
    for place in range(0, 60_000, 3)
)
ZIPPED = gzip.compress(TEXT)


@pytest.fixture(params=["isal", "zlib", "thorough"])
def thorough(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a test with each library that unpacks streams."""
    if request.param == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    return bool(request.param == "thorough")


def unpacked(
    data: bytes, size: int = 1 << 18, *, thorough: bool
) -> tuple[bytes, Exception | None]:
    """Return the unpacked text, and the error at its end; reading again raises it again."""
    stream = Gunzip(io.BufferedReader(io.BytesIO(data)), thorough=thorough)
    ends: tuple[type[Exception], ...] = (EOFError, *stream.errors)
    text = b""
    try:
        while piece := stream.read(size):
            assert len(piece) <= size
            text += piece
    except ends as error:
        with pytest.raises(type(error)):
            stream.read(size)
        return text, error
    return text, None


@pytest.mark.parametrize("size", [100, 12_345, 1 << 18, 1 << 24])
def test_any_text_is_unpacked(size: int, thorough: bool) -> None:
    assert unpacked(ZIPPED, size, thorough=thorough) == (TEXT, None)


def test_members_and_padding_are_skipped_correctly(thorough: bool) -> None:
    for data, text in (
        (ZIPPED + gzip.compress(b"and more"), TEXT + b"and more"),
        (
            ZIPPED + bytes(300_000) + gzip.compress(b"and more") + bytes(3),
            TEXT + b"and more",
        ),
        (gzip.compress(b"") + gzip.compress(b"x"), b"x"),
        (gzip.compress(b""), b""),
    ):
        assert unpacked(data, thorough=thorough) == (text, None)


def test_a_stream_that_is_cut_off_anywhere(thorough: bool) -> None:
    so_far = 0
    for length in [
        *range(2, 40),
        *range(40, len(ZIPPED), 997),
        *range(len(ZIPPED) - 9, len(ZIPPED)),
    ]:
        text, error = unpacked(ZIPPED[:length], thorough=thorough)
        assert isinstance(error, EOFError), length
        assert TEXT.startswith(text)
        assert len(text) >= so_far
        so_far = len(text)
    assert so_far == len(TEXT)


def test_the_text_does_not_depend_on_the_sizes_requested(thorough: bool) -> None:
    cut = ZIPPED[: len(ZIPPED) // 2]
    text, _ = unpacked(cut, thorough=thorough)
    for size in (1000, 4097, 1 << 20):
        assert unpacked(cut, size, thorough=thorough)[0] == text


def test_damage_is_an_error(thorough: bool) -> None:
    for place in range(10, len(ZIPPED), 499):
        damaged = ZIPPED[:place] + bytes([ZIPPED[place] ^ 0xFF]) + ZIPPED[place + 1 :]
        assert unpacked(damaged, thorough=thorough)[1] is not None


def test_thorough_returns_every_byte_before_the_damage() -> None:
    """Thorough reading returns as much as zlib does when it is fed byte by byte."""
    for place in range(len(ZIPPED) // 2, len(ZIPPED) - 8, 4999):
        damaged = ZIPPED[:place] + b"\xff\x00\xff\x00" * 4 + ZIPPED[place + 16 :]
        stream = zlib.decompressobj(wbits=31)
        expected = b""
        try:
            for at in range(len(damaged)):
                expected += stream.decompress(damaged[at : at + 1])
        except zlib.error:
            pass
        text, error = unpacked(damaged, thorough=True)
        assert error is not None
        assert text == expected


def test_data_after_the_stream_that_is_not_gzip_is_an_error(thorough: bool) -> None:
    text, error = unpacked(ZIPPED + b"something else", thorough=thorough)
    assert text == TEXT
    assert isinstance(error, gzip.BadGzipFile)
