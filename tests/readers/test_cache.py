"""The cache returns traces unchanged, and removes outdated and damaged entries."""

from __future__ import annotations

import ast
import gzip
import multiprocessing
import os
import time
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens_ext
from tests.support.comparison_helpers import training, write
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer, read_trace
from tracelens_ext.errors import (
    MergedRanksError,
    TraceCutOffError,
    TraceNotFoundError,
    UsageError,
)
from tracelens_ext.readers.cache.file import (
    DamagedFileError,
    read_columns,
    write_columns,
)
from tracelens_ext.readers.cache.folder import READING, cache_folder, cache_limit
from tracelens_ext.readers.cache.store import TraceCache, open_cache
from tracelens_ext.readers.cache.stored_trace import trace_columns
from tracelens_ext.trace import ArgColumn, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write(tmp_path / "a.json", training(3))


def assert_same(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        left = getattr(one, field.name)
        right = getattr(other, field.name)
        if field.name == "args":
            assert list(left) == list(right)
            for name in left:
                assert_equal_arrays(left[name].rows, right[name].rows)
                assert_equal_arrays(left[name].values, right[name].values)
                assert left[name].texts == right[name].texts
        elif isinstance(left, np.ndarray):
            assert_equal_arrays(left, right)
        else:
            assert repr(left) == repr(right), field.name


def assert_equal_arrays(left: Any, right: Any) -> None:
    assert left.dtype == right.dtype
    assert np.array_equal(left, right)
    assert right.flags.writeable


class Reading:
    """Reads a trace, and counts how often it had to be parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tracelens_ext.readers import formats

        self.count = 0
        original = formats.read_file

        def counted(*arguments: Any, **options: Any) -> Trace | None:
            self.count += 1
            return original(*arguments, **options)

        monkeypatch.setattr(formats, "read_file", counted)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


def files(cache: TraceCache) -> list[str]:
    return sorted(path.name.partition(".")[2] for path in cache.folder.iterdir())


def test_the_second_time_nothing_is_parsed(
    trace_file: Path, cache: TraceCache, reading: Reading, notes: list[str]
) -> None:
    first = TreePerfAnalyzer(trace_file, cache=cache)
    second = TreePerfAnalyzer(trace_file, cache=cache)
    assert reading.count == 1
    assert_same(first.trace, second.trace)
    for name, array in first.tree.links.items():
        assert_equal_arrays(array, second.tree.links[name])
    assert files(cache) == ["trace.columns"]
    assert cache.links(second.trace), "nor is anything nested"
    assert notes == []
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_python_frames_make_another_tree(trace_file: Path, cache: TraceCache) -> None:
    for _ in range(2):
        for python in (False, True):
            tree = TreePerfAnalyzer(
                trace_file, cache=cache, add_python_func=python
            ).tree
            assert tree.add_python_func is python


def test_merged_ranks_are_refused_each_time(
    tmp_path: Path, cache: TraceCache, reading: Reading, notes: list[str]
) -> None:
    maker = TraceMaker()
    for process in (1, 2):
        maker.call("cudaLaunchKernel", 10, correlation=1, process=process)
        maker.kernel("k", 20, 5, correlation=1, device=process)
    path = write(tmp_path / "merged.json", maker)
    for _ in range(2):
        with pytest.raises(MergedRanksError):
            TreePerfAnalyzer(path, cache=cache)
    assert reading.count == 1
    assert notes == []


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "nvidia/nccl",
        "graphs/training_cuda_graph",
        "edge/ns_resolution",
        "amd/Qwen_Qwen1.5-0.5B-Chat__1016005",
    ],
)
def test_recorded_traces_are_equal_from_the_cache(
    name: str, cache: TraceCache, reading: Reading, notes: list[str]
) -> None:
    path = SHARED / f"{name}.json.gz"
    first = TreePerfAnalyzer(path, cache=cache, use_kernel_name_categories=True)
    second = TreePerfAnalyzer(path, cache=cache, use_kernel_name_categories=True)
    assert reading.count == 1
    assert notes == []
    assert_same(first.trace, second.trace)
    assert first.get_df_kernel_summary().equals(second.get_df_kernel_summary())
    assert first.get_df_kernels(launcher_detail=True).equals(
        second.get_df_kernels(launcher_detail=True)
    )


def test_library_calls_do_not_cache_unless_asked(
    trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(tmp_path / "users"))
    monkeypatch.setattr("tracelens_ext.readers.cache.store.WORTH_KEEPING", 0)
    read_trace(trace_file)
    TreePerfAnalyzer(trace_file)
    assert not (tmp_path / "users").exists()
    monkeypatch.setenv("TRACELENS_EXT_NO_CACHE", "1")
    assert open_cache(True) is None
    monkeypatch.setenv("TRACELENS_EXT_NO_CACHE", "0")
    asked = open_cache(True)
    assert asked is not None
    assert asked.folder == tmp_path / "users"
    asked.worth_keeping = 0
    read_trace(trace_file, cache=asked)
    assert files(asked) == ["trace.columns"]


def test_small_traces_are_not_cached(trace_file: Path, cache: TraceCache) -> None:
    cache.worth_keeping = trace_file.stat().st_size + 1
    TreePerfAnalyzer(trace_file, cache=cache)
    assert not cache.folder.exists()
    packed = trace_file.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(trace_file.read_bytes()))
    cache.worth_keeping -= 1  # what counts is the text
    read_trace(packed, cache=cache)
    assert len(cache.entries()) == 1


def change_content(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"ProfilerStep#5", b"ProfilerStep#9"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_time(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def change_file(path: Path) -> None:
    before = path.stat()
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    copy.replace(path)


def change_size(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change", [change_content, change_time, change_file, change_size]
)
def test_a_file_that_changed_is_read_again(
    trace_file: Path, cache: TraceCache, reading: Reading, notes: list[str], change: Any
) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    change(trace_file)
    again = TreePerfAnalyzer(trace_file, cache=cache)
    assert reading.count == 2
    assert len(notes) == 1
    assert "has changed since it was cached" in notes[0]
    assert_same(read_trace(trace_file), again.trace)
    TreePerfAnalyzer(trace_file, cache=cache)
    assert reading.count == 3, (
        "the new one is kept (two by the cache, one by the line above)"
    )


def test_a_trace_cached_by_another_version_is_read_again(
    trace_file: Path,
    cache: TraceCache,
    reading: Reading,
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    monkeypatch.setattr(
        "tracelens_ext.readers.cache.store.reader_version", lambda: "newer"
    )
    TreePerfAnalyzer(trace_file, cache=cache)
    assert reading.count == 2
    assert "another version" in notes[0]


def _modules(patterns: Sequence[str]) -> dict[str, Path]:
    package = Path(tracelens_ext.__file__).parent
    found = sorted(path for pattern in patterns for path in package.glob(pattern))
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): path
        for path in found
    }


def _imports(path: Path) -> set[str]:
    """Return the modules of the package that a module imports at run time."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "tracelens_ext"
        ):
            home = (node.module or "").split(".")[1:]
            for name in node.names:
                inner = Path(tracelens_ext.__file__).parent.joinpath(
                    *home, f"{name.name}.py"
                )
                found.add(".".join([*home, name.name] if inner.exists() else home))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_the_reader_version_covers_all_code_that_makes_a_trace() -> None:
    reading = _modules(READING)
    assert len(reading) > 20
    for name, path in reading.items():
        if name.startswith("readers.") or name in {"trace.trace", "trace.call_tree"}:
            folders = Path(tracelens_ext.__file__).parent.glob("readers/*/__init__.py")
            packages = {
                "",
                "hooks",
                "readers",
                "trace",
                *(f"readers.{f.parent.name}" for f in folders),
            }
            assert _imports(path) - set(reading) <= packages, path


def test_verify_notices_a_change_in_the_middle_of_a_file(
    tmp_path: Path, cache: TraceCache, reading: Reading, notes: list[str]
) -> None:
    maker = training(3)
    for number in range(3000):
        maker.op(f"aten::op_{number}", 10_000 + number, 1)
    path = write(tmp_path / "long.json", maker)
    assert path.stat().st_size > 4 * 2**16, "the middle is in neither end"
    read_trace(path, cache=cache)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"aten::op_1500", b"aten::po_1500"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "aten::op_1500" in read_trace(path, cache=cache).names, "the price of speed"
    verifying = replace(cache, verify=True)
    assert "aten::po_1500" in read_trace(path, cache=verifying).names
    assert reading.count == 2
    assert "different content" in notes[0]
    read_trace(path, cache=verifying)
    assert reading.count == 2, "verified, and used"


@given(st.data())
def test_a_damaged_entry_is_removed_and_the_file_read_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = write(folder / "a.json", training(1))
    notes: list[str] = []
    cache = TraceCache(folder / "cache", worth_keeping=0, tell=notes.append)
    whole = TreePerfAnalyzer(path, cache=cache)
    entry = data.draw(st.sampled_from(sorted(cache.folder.iterdir())))
    content = bytearray(entry.read_bytes())
    # A share of the length: that itself differs with the folder's name.
    place = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(content))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    entry.write_bytes(content)
    again = TreePerfAnalyzer(path, cache=cache)
    assert_same(whole.trace, again.trace)
    for name, array in whole.tree.links.items():
        assert_equal_arrays(array, again.tree.links[name])
    assert len(notes) <= 1  # none where padding was hit
    assert all("damaged" in note for note in notes)


CRAFTED: dict[str, dict[str, Any]] = {
    "a name code out of range": {"name": 10**6},
    "no names": {"names": []},
    "a negative name code": {"name": -1},
    "an unknown kind": {"kind": 255},
    "a negative duration": {"dur": -5},
    "a time before the first event": {"ts": -5},
    "an unknown category": {"category": 10**6},
    "an unknown thread": {"thread": 10**6},
    "a parent that comes later": {"link parent_position": 10**6},
    "a launch that is not there": {"link launch_of_gpu": 10**6},
    "an argument of an event that is not there": {"rows 0": 10**6},
    "times that are truth values": {"ts": True},
    "texts in place of the rows of an argument": {"rows 0": ["x"]},
    "texts in place of links": {"link rows": ["x"]},
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_manipulated_entry_is_treated_as_damaged(
    what: str, trace_file: Path, cache: TraceCache, reading: Reading, notes: list[str]
) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    (file,) = [entry.files[0] for entry in cache.entries()]
    about, columns = read_columns(file)
    assert columns is not None
    for name, value in CRAFTED[what].items():
        column = columns[name]
        if isinstance(value, bool):
            columns[name] = np.full(len(column), value)
        elif isinstance(column, np.ndarray) and not isinstance(value, list):
            column[len(column) // 2] = value
        else:
            columns[name] = value
    write_columns(file, about, columns)
    notes.clear()
    before = reading.count
    TreePerfAnalyzer(trace_file, cache=cache)
    assert reading.count == before + 1
    assert "is damaged" in notes[0]


def test_a_trace_of_a_plugin_is_kept_as_it_is(
    cache: TraceCache, trace_file: Path
) -> None:
    column = ArgColumn(np.array([0, 1]), np.array([0, 1]), ['"a"', '"b"'])
    other = replace(column, texts=['"c"', '"d"'])
    metadata = MappingProxyType({"a": 1})
    given = replace(
        read_trace(trace_file),
        args={"one": column, "another": other},
        metadata=metadata,
    )
    cache.read(trace_file, lambda: given)
    kept = cache.read(trace_file, lambda: pytest.fail("it was not kept"))
    assert [each.texts for each in kept.args.values()] == [column.texts, other.texts]
    assert kept.metadata == {"a": 1}


@pytest.mark.parametrize(
    "key", ["base_ns", "threads", "devices", "metadata", "provenance"]
)
def test_a_manipulated_description_is_treated_as_damaged(
    key: str, trace_file: Path, cache: TraceCache, notes: list[str]
) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    (file,) = [entry.files[0] for entry in cache.entries()]
    about, columns = read_columns(file)
    about["trace"][key] = "x"
    write_columns(file, about, columns or {})
    notes.clear()
    TreePerfAnalyzer(trace_file, cache=cache)
    assert "is damaged" in notes[0]


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes with names")
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_entries_that_are_not_regular_files_do_not_block(
    kind: str, trace_file: Path, tmp_path: Path, cache: TraceCache, notes: list[str]
) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    (file,) = [entry.files[0] for entry in cache.entries()]
    moved = file.rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(moved)
    notes.clear()
    assert len(cache.entries()) == (kind != "folder")
    TreePerfAnalyzer(trace_file, cache=cache)
    assert "is damaged" in notes[0]
    cache.clear()


@pytest.mark.skipif(os.name == "nt", reason="permissions are others there")
def test_a_folder_that_others_may_write_is_not_used(
    cache: TraceCache, notes: list[str]
) -> None:
    cache.folder.mkdir(mode=0o700, exist_ok=True)
    assert open_cache(cache) is cache
    for mode in (0o770, 0o777, 0o1777):
        cache.folder.chmod(mode)
        notes.clear()
        assert open_cache(cache) is None
        assert "others can write to it" in notes[0]


def test_a_failure_to_write_is_a_note(
    trace_file: Path, cache: TraceCache, notes: list[str]
) -> None:
    cache.folder.write_text("in the way")
    trace = read_trace(trace_file, cache=cache)
    assert_same(read_trace(trace_file), trace)
    assert any("is not kept in the cache" in note for note in notes)


def test_metadata_that_json_cannot_restore_is_not_cached(
    tmp_path: Path, cache: TraceCache, notes: list[str]
) -> None:
    whole = read_trace(training(1).document())
    odd = replace(whole, metadata={"key": object()})
    with pytest.raises(TypeError):
        trace_columns(odd)
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert cache.read(path, lambda: odd) is odd
    assert len(notes) == 1
    assert "not kept" in notes[0]


def test_a_trace_that_is_being_written_is_not_kept(
    trace_file: Path, cache: TraceCache
) -> None:
    def parse() -> Trace:
        trace = read_trace(trace_file)
        change_size(trace_file)
        return trace

    cache.read(trace_file, parse)
    assert cache.entries() == []


def test_a_database_that_is_being_written_is_read_again(
    trace_file: Path, cache: TraceCache, reading: Reading
) -> None:
    for _ in range(2):
        read_trace(trace_file, cache=cache)
    assert reading.count == 1
    trace_file.with_name(trace_file.name + "-wal").write_bytes(b"not empty")
    read_trace(trace_file, cache=cache)
    assert reading.count == 2, "the reader says whether it can be read"


def test_errors_are_those_of_the_reader(tmp_path: Path, cache: TraceCache) -> None:
    with pytest.raises(TraceNotFoundError, match="no such file"):
        read_trace(tmp_path / "absent.json", cache=cache)
    with pytest.raises(TraceNotFoundError, match="folder"):
        read_trace(tmp_path, cache=cache)
    cut = tmp_path / "cut.json"
    cut.write_text('{"traceEvents": [')
    with pytest.raises(TraceCutOffError):
        read_trace(cut, cache=cache)
    assert not cache.folder.exists()


def test_the_least_recently_used_trace_is_removed_first(
    tmp_path: Path, cache: TraceCache
) -> None:
    paths = [write(tmp_path / f"{name}.json", training(3)) for name in "abc"]
    for path in paths:
        TreePerfAnalyzer(path, cache=cache)
    sizes = {Path(entry.path).name: entry.size for entry in cache.entries()}
    assert sorted(sizes) == ["a.json", "b.json", "c.json"]
    for age, path in zip((300, 400, 500), paths, strict=True):
        of_trace = next(e for e in cache.entries() if e.path == str(path.resolve()))
        for file in of_trace.files:
            os.utime(file, (time.time() - age,) * 2)
    read_trace(paths[2], cache=cache)  # used again: the last but one is now the oldest
    cache.limit = 3 * max(sizes.values()) + 100
    TreePerfAnalyzer(write(tmp_path / "d.json", training(3)), cache=cache)
    kept = {Path(entry.path).name for entry in cache.entries()}
    assert kept == {"a.json", "c.json", "d.json"}


def test_a_trace_larger_than_the_cache_is_not_kept(
    trace_file: Path, cache: TraceCache
) -> None:
    cache.limit = 100
    TreePerfAnalyzer(trace_file, cache=cache)
    assert cache.entries() == []


@pytest.mark.parametrize("room", [0, 1, 300, 400, 500, 5_000])
def test_a_conversion_is_at_the_path_that_the_cache_returns(
    tmp_path: Path, cache: TraceCache, notes: list[str], room: int
) -> None:
    source = tmp_path / "x.nsys-rep"
    made = tmp_path / "made.sqlite"
    source.write_bytes(b"a report")
    made.write_bytes(bytes(10_000))
    small = replace(cache, limit=10_000 + room)
    kept = small.keep_conversion(source, made)
    assert (kept or made).read_bytes() == bytes(10_000)
    assert (kept is None) == made.exists() == bool(notes)
    assert all(
        "its conversion is not kept in the cache (over its limit)" in note
        for note in notes
    )
    if kept is not None:
        assert small.conversion(source) == kept
    if room in (0, 1, 5_000):  # in between it depends on the length of the path
        assert (kept is None) == (room < 2)


def test_a_trace_does_not_displace_its_own_conversion(
    trace_file: Path, tmp_path: Path, cache: TraceCache, notes: list[str]
) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    (entry,) = cache.entries()
    cache.clear()
    made = tmp_path / "made.sqlite"
    made.write_bytes(bytes(10_000))
    small = replace(cache, limit=10_000 + entry.size - 1)
    assert small.keep_conversion(trace_file, made) is not None
    TreePerfAnalyzer(trace_file, cache=small)
    assert small.conversion(trace_file) is not None
    assert len(notes) == 1


def test_abandoned_temporary_files_are_removed(
    trace_file: Path, cache: TraceCache
) -> None:
    cache.folder.mkdir()
    old = cache.folder / ".x.columns.0.tmp"
    new = cache.folder / ".y.columns.1.tmp"
    mine = cache.folder / "notes.txt"
    for path in (old, new, mine):
        path.write_text("x")
    os.utime(old, (time.time() - 7200,) * 2)
    read_trace(trace_file, cache=cache)
    assert not old.exists()
    assert new.exists(), "another process is writing it"
    cache.clear()
    assert mine.exists(), "nothing but entries is removed"


def test_entries_are_listed_and_cleared(trace_file: Path, cache: TraceCache) -> None:
    TreePerfAnalyzer(trace_file, cache=cache)
    (entry,) = cache.entries()
    assert entry.path == str(trace_file.resolve())
    assert entry.usable
    assert entry.size == sum(path.stat().st_size for path in entry.files)
    change_size(trace_file)
    assert [entry.usable for entry in cache.entries()] == [False]
    trace_file.unlink()
    assert [entry.usable for entry in cache.entries()] == [False]
    assert cache.clear() == (1, entry.size)
    assert cache.entries() == []
    assert cache.clear() == (0, 0)


def test_a_cached_trace_has_the_path_that_the_user_gave(
    trace_file: Path,
    cache: TraceCache,
    monkeypatch: pytest.MonkeyPatch,
    reading: Reading,
) -> None:
    read_trace(trace_file, cache=cache)
    monkeypatch.chdir(trace_file.parent)
    assert read_trace("a.json", cache=cache).provenance.path == "a.json"
    assert reading.count == 1


def _read_over_and_over(path: Path, folder: Path, events: int) -> None:
    for _ in range(20):
        cache = TraceCache(folder, worth_keeping=0)
        assert len(TreePerfAnalyzer(path, cache=cache).trace) == events
        cache.clear()


@pytest.mark.process
def test_two_processes_share_a_cache(trace_file: Path, cache: TraceCache) -> None:
    events = len(read_trace(trace_file))
    context = multiprocessing.get_context("spawn")
    arguments = (trace_file, cache.folder, events)
    others = [
        context.Process(target=_read_over_and_over, args=arguments) for _ in range(2)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    assert [other.exitcode for other in others] == [0, 0]
    assert not list(cache.folder.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 5 * 10**9),
        ("1000", 1000),
        ("5GB", 5 * 10**9),
        ("1.5 gib", 3 * 2**29),
        ("200M", 2 * 10**8),
        ("0", 0),
    ],
)
def test_the_limit_is_read_from_the_environment(
    text: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_EXT_CACHE_SIZE", text)
    assert cache_limit() == size


@pytest.mark.parametrize("text", ["many", "-1", "5XB", "1e9999", "9" * 400 + "T"])
def test_an_invalid_limit_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_EXT_CACHE_SIZE", text)
    with pytest.raises(UsageError, match="5GB"):
        cache_limit()


def test_the_cache_folder_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("TRACELENS_EXT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "tracelens-ext"


DTYPES = [
    np.dtype(name)
    for name in ("i8", ">i8", "u8", "i4", ">i4", "u4", "i2", "u1", "i1", "?")
]


def _numbers(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for columns of a type, with small numbers or any."""
    if dtype.kind == "b":
        values: st.SearchStrategy[Any] = st.booleans()
    else:
        least, most = (
            int(bound) for bound in (np.iinfo(dtype).min, np.iinfo(dtype).max)
        )
        near = st.integers(max(least, -(2**16)), min(most, 2**17))
        values = st.one_of(
            st.integers(least, most), near, st.sampled_from([least, most])
        )
    return st.lists(values, max_size=40).map(lambda given: np.array(given, dtype=dtype))


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=5),
            st.sampled_from(DTYPES).flatmap(_numbers),
        ),
        max_size=6,
    ),
    st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none())),
)
def test_a_file_of_columns_restores_its_columns(
    tmp_path_factory: pytest.TempPathFactory,
    columns: dict[str, Any],
    about: dict[str, Any],
) -> None:
    path = tmp_path_factory.mktemp("columns") / "x"
    assert write_columns(path, about, columns) == path.stat().st_size
    told, found = read_columns(path)
    assert found is not None
    assert told == about
    assert list(found) == list(columns)
    for name, column in columns.items():
        if isinstance(column, list):
            assert found[name] == column
        else:
            assert_equal_arrays(column, found[name])


@pytest.mark.parametrize(
    ("least", "most", "bytes_each"),
    [
        (0, 255, 1),
        (-1, 127, 1),
        (0, 2**16 - 1, 2),
        (-1, 2**15, 4),
        (0, 2**32 - 1, 4),
        (0, 2**32, 8),
    ],
)
def test_numbers_are_stored_in_the_smallest_type(
    tmp_path: Path, least: int, most: int, bytes_each: int
) -> None:
    column = np.array([least, most] * 1000, dtype=np.int64)
    size = write_columns(tmp_path / "x", {}, {"a": column})
    assert bytes_each * len(column) <= size < bytes_each * len(column) + 400
    found = read_columns(tmp_path / "x")[1]
    assert found is not None
    assert_equal_arrays(column, found["a"])


@pytest.mark.parametrize(
    "column", [np.array([object()]), np.array([1.5]), np.zeros((2, 2), dtype=int), [1]]
)
def test_a_file_of_columns_refuses_other_types(tmp_path: Path, column: Any) -> None:
    if isinstance(column, list):
        write_columns(tmp_path / "x", {}, {"a": column})
        with pytest.raises(DamagedFileError):
            read_columns(tmp_path / "x")
    else:
        with pytest.raises(TypeError):
            write_columns(tmp_path / "x", {}, {"a": column})
        assert list(tmp_path.iterdir()) == []
