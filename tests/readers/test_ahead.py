"""Threads that read ahead return the bytes of the stream; memory limits what is read at once."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from tracelens_ext import processes
from tracelens_ext.readers import ahead

if TYPE_CHECKING:
    from pathlib import Path


class Broken(io.BytesIO):
    """A stream that raises an error at its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        if not (piece := super().read(size)):
            raise EOFError("cut off")
        return piece


def test_bytes_before_an_error_are_returned_before_it_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "_PIECE_BYTES", 7)
    stream = ahead.ReadAhead(Broken(bytes(range(100))))
    found = b""
    while len(found) < 100:
        found += stream.read(5)
    assert found == bytes(range(100))
    for _ in range(2):
        with pytest.raises(EOFError, match="cut off"):
            stream.read(5)
    stream.close()


def test_traces_read_at_once_are_limited_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(processes, "_CONTAINER_MEMORY", limit)
    found = []
    for text in ("2000000000\n", "1\n", "max\n"):
        limit.write_text(text)
        found.append(
            [processes.traces_at_once(size) for size in (0, 300 * 10**6, 10**15)]
        )
    assert found[:2] == [[5, 2, 1], [1, 1, 1]]
    assert found[2][0] > found[2][1] >= 1
