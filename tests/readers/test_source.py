"""Bytes are read from paths and open files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pytest

from tests.support.make_trace import cuda_graph_example
from tracelens_ext.errors import TraceCutOffError, TraceError, TraceNotFoundError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.source import ByteSource

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = json.dumps(cuda_graph_example())
DATA = TEXT.encode()
ZIPPED = gzip.compress(DATA)


def everything(source: ByteSource, piece: int = 64) -> bytes:
    return b"".join(iter(lambda: source.read(piece), b""))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(ZIPPED)
    return path


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_path_may_be_text_or_a_path_object(
    plain: Path, zipped: Path, piece: int
) -> None:
    for path in (plain, str(plain), zipped, str(zipped)):
        with ByteSource(path) as source:
            assert everything(source, piece) == DATA
            assert source.path == str(path)
            assert source.bytes_read == len(DATA)


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "zipped.json").write_bytes(ZIPPED)
    (tmp_path / "plain.json.gz").write_bytes(DATA)
    for name in ("zipped.json", "plain.json.gz"):
        with ByteSource(tmp_path / name) as source:
            assert everything(source) == DATA


def unzipped(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path))


OPENERS: dict[str, Callable[[Path, Path], IO[bytes] | IO[str]]] = {
    "binary": lambda plain, _: plain.open("rb"),
    "binary, gzipped": lambda _, zipped: zipped.open("rb"),
    "unbuffered": lambda plain, _: plain.open("rb", buffering=0),
    "text": lambda plain, _: plain.open(encoding="utf-8"),
    "gzip.open": lambda _, zipped: unzipped(zipped),
    "gzip.open, text": lambda _, zipped: io.TextIOWrapper(
        unzipped(zipped), encoding="utf-8"
    ),
    "BytesIO": lambda _, __: io.BytesIO(DATA),
    "BytesIO, gzipped": lambda _, __: io.BytesIO(ZIPPED),
    "StringIO": lambda _, __: io.StringIO(TEXT),
}


@pytest.mark.parametrize("how", OPENERS)
def test_open_files_are_read_and_left_open(how: str, plain: Path, zipped: Path) -> None:
    with OPENERS[how](plain, zipped) as file:
        with ByteSource(file) as source:
            assert everything(source) == DATA
        assert not file.closed


@pytest.mark.parametrize("how", OPENERS)
def test_an_open_file_is_a_trace(how: str, plain: Path, zipped: Path) -> None:
    with OPENERS[how](plain, zipped) as file:
        assert len(read_trace(file)) == 5


def test_messages_name_an_open_file(plain: Path) -> None:
    with plain.open("rb") as file, ByteSource(file) as source:
        assert source.path == str(plain)
    assert ByteSource(io.BytesIO(DATA)).path == "<file>"


def test_a_file_opened_here_is_closed_here(plain: Path) -> None:
    read_trace(plain)  # a file left open would warn, and warnings are errors
    with pytest.raises(TraceError):
        read_trace(Path(__file__))


def test_several_gzip_members_are_one_text() -> None:
    half = len(DATA) // 2
    source = ByteSource(
        io.BytesIO(gzip.compress(DATA[:half]) + gzip.compress(DATA[half:]))
    )
    assert everything(source) == DATA


def test_progress_reports_the_bytes_of_the_file_that_were_read(zipped: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    with ByteSource(zipped, lambda done, size: seen.append((done, size))) as source:
        everything(source)
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (len(ZIPPED), len(ZIPPED))
    assert {size for _, size in seen} == {len(ZIPPED)}


def test_progress_of_an_open_file_has_no_size() -> None:
    seen: list[tuple[int, int | None]] = []
    source = ByteSource(io.BytesIO(DATA), lambda done, size: seen.append((done, size)))
    everything(source)
    assert seen[-1] == (len(DATA), None)


# Errors.


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match=r"nowhere\.json: no such file; "):
        ByteSource(tmp_path / "nowhere.json")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match="is a folder; "):
        ByteSource(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceNotFoundError, match="is not a regular file; "):
        ByteSource(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "file/below"])
def test_impossible_file_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TraceNotFoundError):
        ByteSource(tmp_path / name)


@pytest.mark.skipif(
    os.name == "nt" or os.geteuid() == 0, reason="needs a user other than root"
)
def test_an_unreadable_file_is_refused(plain: Path) -> None:
    plain.chmod(0)
    with pytest.raises(
        TraceNotFoundError, match=r"cannot be opened \(Permission denied\); "
    ):
        ByteSource(plain)


def test_an_error_of_the_disk_is_reported() -> None:
    class Broken(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _buffer: object, /) -> int:
            raise OSError(5, "Input/output error")

    with pytest.raises(TraceNotFoundError, match="Input/output error"):
        everything(ByteSource(io.BufferedReader(Broken())))


def test_gzip_cut_off_anywhere_is_an_error() -> None:
    for length in range(2, len(ZIPPED)):
        with pytest.raises(TraceCutOffError, match="gzip stream ends prematurely"):
            everything(ByteSource(io.BytesIO(ZIPPED[:length])))


@pytest.mark.parametrize("length", [1, 5, len(ZIPPED) // 2, len(ZIPPED) - 1])
def test_gzip_cut_off_in_an_open_gzip_file_is_an_error(
    tmp_path: Path, length: int
) -> None:
    (tmp_path / "cut.json.gz").write_bytes(ZIPPED[:length])
    with unzipped(tmp_path / "cut.json.gz") as file, pytest.raises(TraceCutOffError):
        everything(ByteSource(file))


def test_gzip_damaged_anywhere_is_an_error() -> None:
    """With a flipped byte the stream is refused, by its format or by its checksum."""
    for place in range(10, len(ZIPPED)):
        damaged = ZIPPED[:place] + bytes([ZIPPED[place] ^ 0xFF]) + ZIPPED[place + 1 :]
        with pytest.raises(
            TraceCutOffError, match=r"gzip stream (is damaged|ends prema)"
        ):
            everything(ByteSource(io.BytesIO(damaged)))


def test_data_after_the_gzip_stream_is_an_error() -> None:
    assert everything(ByteSource(io.BytesIO(ZIPPED + bytes(100)))) == DATA  # padding
    with pytest.raises(TraceCutOffError, match="gzip stream is damaged"):
        everything(ByteSource(io.BytesIO(ZIPPED + b"something else")))


def test_an_open_text_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(DATA.replace(b"kernel_mha", b"kernel_\xff\xfe"))
    with path.open(encoding="utf-8") as file:
        names = read_trace(file).names
    assert names == read_trace(path).names
    assert any(name.startswith("kernel_\ufffd") for name in names)


def test_an_open_text_file_may_have_lone_surrogates() -> None:
    text = TEXT.replace("kernel_mha", "kernel_\ud800")
    assert any(
        name.startswith("kernel_\ufffd") for name in read_trace(io.StringIO(text)).names
    )
