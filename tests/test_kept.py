"""What took time to find out is kept beside a trace, and counts only while it would be the same."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from comparison_helpers import GEMM, training, write
from make_trace import TraceMaker

import tracelens_ext
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis import launchers
from tracelens_ext.analysis.gaps import classified as judged_gaps
from tracelens_ext.analysis.gpu_work import GpuWork
from tracelens_ext.analysis.kept import find_anew
from tracelens_ext.cache import identity as cache_identity
from tracelens_ext.cache.store import TraceCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

TABLES: list[Callable[[TreePerfAnalyzer], pd.DataFrame]] = [
    TreePerfAnalyzer.get_df_kernel_launchers,
    TreePerfAnalyzer.get_df_kernel_launchers_unique_args,
    TreePerfAnalyzer.get_df_gap_summary,
    TreePerfAnalyzer.get_df_gap_streams,
    TreePerfAnalyzer.get_df_gap_pairs,
    TreePerfAnalyzer.get_df_gaps,
]


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write(tmp_path / "a.json", training(4))


class Finding:
    """Counts how often something is found out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.count = 0
        original = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return original(*arguments)

        monkeypatch.setattr(module, name, counted)


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    return [
        Finding(monkeypatch, launchers, "_find"),
        Finding(monkeypatch, judged_gaps, "find_causes"),
    ]


def tables(analyzer: TreePerfAnalyzer) -> list[pd.DataFrame]:
    return [table(analyzer) for table in TABLES]


def parts(cache: TraceCache) -> list[str]:
    return sorted(path.name.split(".")[1] for path in cache.folder.iterdir())


def assert_same(one: list[pd.DataFrame], other: list[pd.DataFrame]) -> None:
    for left, right in zip(one, other, strict=True):
        assert left.equals(right)
        assert left.dtypes.equals(right.dtypes)


def test_what_is_kept_is_not_found_again(
    trace_file: Path, cache: TraceCache, finding: list[Finding], notes: list[str]
) -> None:
    plain = tables(TreePerfAnalyzer(trace_file))
    assert [each.count for each in finding] == [1, 2], "causes: of the streams and of the device"
    first = tables(TreePerfAnalyzer(trace_file, cache=cache))
    assert [each.count for each in finding] == [2, 4]
    second = tables(TreePerfAnalyzer(trace_file, cache=cache))
    assert [each.count for each in finding] == [2, 4]
    assert_same(plain, first)
    assert_same(first, second)
    assert parts(cache) == ["gaps-device", "gaps-stream", "launchers", "trace", "tree"]
    assert notes == []


def test_a_selection_is_made_of_what_is_kept(
    trace_file: Path, cache: TraceCache, finding: list[Finding]
) -> None:
    from tracelens_ext.analysis.selection import Selection

    chosen = Selection(pstep=6)
    plain = TreePerfAnalyzer(trace_file).get_df_gaps(selection=chosen)
    assert 0 < len(plain) < len(TreePerfAnalyzer(trace_file).get_df_gaps())
    tables(TreePerfAnalyzer(trace_file, cache=cache))
    count = finding[1].count
    assert plain.equals(TreePerfAnalyzer(trace_file, cache=cache).get_df_gaps(selection=chosen))
    assert finding[1].count == count


def test_a_tree_with_python_frames_has_its_own(trace_file: Path, cache: TraceCache) -> None:
    for _ in range(2):
        for python in (False, True):
            analyzer = TreePerfAnalyzer(trace_file, cache=cache, add_python_func=python)
            assert_same(
                tables(TreePerfAnalyzer(trace_file, add_python_func=python)), tables(analyzer)
            )
    assert {"launchers", "launchers-python", "gaps-stream-python"} <= set(parts(cache))


def test_another_version_of_the_analyses_finds_anew_and_keeps_the_trace(
    trace_file: Path,
    cache: TraceCache,
    finding: list[Finding],
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = tables(TreePerfAnalyzer(trace_file, cache=cache))
    monkeypatch.setattr("tracelens_ext.cache.identity.analysis_version", lambda: "a newer one")
    for _ in range(2):
        assert_same(first, tables(TreePerfAnalyzer(trace_file, cache=cache)))
    assert [each.count for each in finding] == [2, 4], "found once more, and kept"
    assert "trace" in parts(cache)
    assert notes == [], "nothing was lost that anybody waits for"


def test_what_depends_on_more_than_the_trace_says_so(trace_file: Path, cache: TraceCache) -> None:
    work = TreePerfAnalyzer(trace_file, cache=cache).work
    asked: list[int] = []

    def find(number: int) -> Callable[[], dict[str, np.ndarray]]:
        def made() -> dict[str, np.ndarray]:
            asked.append(number)
            return {"number": np.array([number])}

        return made

    on, off = np.array([True, False]), np.array([False, True])
    for number, mask in ((1, on), (2, off), (3, off)):
        kept = work.keep("example", find(number), depends_on=[mask])
        assert kept["number"].tolist() == [min(number, 2)]
    assert asked == [1, 2]


def test_communication_is_what_launchers_depend_on(
    trace_file: Path, cache: TraceCache, finding: list[Finding]
) -> None:
    one = TreePerfAnalyzer(trace_file, cache=cache)
    with_communication_left_out = one.get_df_kernel_launchers()
    other = TreePerfAnalyzer(trace_file, cache=cache)
    other.work.__dict__["is_communication"] = np.zeros(len(other.work), dtype=bool)
    assert len(other.get_df_kernel_launchers()) > len(with_communication_left_out)
    assert finding[0].count == 2


def test_damage_is_found_and_mended(
    trace_file: Path, cache: TraceCache, finding: list[Finding], notes: list[str]
) -> None:
    first = tables(TreePerfAnalyzer(trace_file, cache=cache))
    (kept,) = cache.folder.glob("*.launchers.columns")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert_same(first, tables(TreePerfAnalyzer(trace_file, cache=cache)))
    assert len(notes) == 1
    assert notes[0].startswith(str(trace_file))
    assert "damaged; finding that part again" in notes[0]
    assert finding[0].count == 2
    assert parts(cache) == ["gaps-device", "gaps-stream", "launchers", "trace", "tree"]
    assert [entry.usable for entry in cache.entries()] == [True]


def test_what_another_process_read_since_has_none_of_what_was_kept_before(
    tmp_path: Path, cache: TraceCache, notes: list[str]
) -> None:
    around = TraceMaker()
    for number in range(1500):
        around.op(f"aten::op_{number}", 10_000 + number, 1)
    document = training(4).document()
    padding = around.document()["traceEvents"]
    document["traceEvents"] = [*padding, *document["traceEvents"], *padding]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(document))
    before = path.stat()
    ours = TreePerfAnalyzer(path, cache=cache)
    # A change in the middle, of the same size, with the clock put back: only a hash of all tells.
    text = path.read_bytes()
    assert 2**16 < text.index(GEMM.encode()) < len(text) - 2**17
    path.write_bytes(text.replace(b'"dur": 40', b'"dur": 41'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    verifying = replace(cache, verify=True)
    theirs = TreePerfAnalyzer(path, cache=verifying)
    assert not ours.get_df_gaps().equals(TreePerfAnalyzer(path).get_df_gaps())
    tables(ours)  # keeps what it found of the trace that is no longer there
    for analyzer in (theirs, TreePerfAnalyzer(path, cache=replace(cache, verify=True))):
        assert_same(tables(analyzer), tables(TreePerfAnalyzer(path)))
    assert len([note for note in notes if "another content" in note]) == 1


def test_beside_a_trace_that_is_gone_nothing_is_kept(trace_file: Path, cache: TraceCache) -> None:
    analyzer = TreePerfAnalyzer(trace_file, cache=cache)
    cache.clear()
    tables(analyzer)
    assert cache.entries() == []


def test_no_part_drives_out_its_trace(
    trace_file: Path, cache: TraceCache, notes: list[str]
) -> None:
    tables(TreePerfAnalyzer(trace_file, cache=cache))
    (entry,) = cache.entries()
    trace, *others = sorted(entry.files, key=lambda file: ".trace." not in file.name)
    sizes = [file.stat().st_size for file in others]
    whole = trace.stat().st_size
    cache.clear()
    for limit in (
        whole,
        whole + min(sizes) - 1,
        whole + min(sizes),
        *range(entry.size - 130, entry.size),
    ):
        notes.clear()
        full = replace(cache, limit=limit, _told=set())
        tables(TreePerfAnalyzer(trace_file, cache=full))
        kept = parts(cache)
        assert "trace" in kept
        assert len(kept) < 1 + len(others)
        assert sum(file.stat().st_size for file in cache.folder.iterdir()) <= limit
        (note,) = notes
        assert "not all that was found out about it is kept in the cache (over its limit)" in note
        assert "TRACELENS_EXT_CACHE_SIZE" in note
        cache.clear()
    tables(TreePerfAnalyzer(trace_file, cache=replace(cache, limit=entry.size, _told=set())))
    assert len(parts(cache)) == 1 + len(others)
    cache.clear()
    notes.clear()
    TreePerfAnalyzer(trace_file, cache=replace(cache, limit=whole - 1, _told=set()))
    assert parts(cache) == []
    assert "a.json: is not kept in the cache (over its limit)" in notes[0]


@pytest.mark.parametrize("room", [0, 1, 300, 400, 500, 5_000])
def test_a_conversion_is_where_the_cache_says(
    tmp_path: Path, cache: TraceCache, notes: list[str], room: int
) -> None:
    source, made = tmp_path / "x.nsys-rep", tmp_path / "made.sqlite"
    source.write_bytes(b"a report")
    made.write_bytes(bytes(10_000))
    small = replace(cache, limit=10_000 + room)
    kept = small.keep_conversion(source, made)
    assert (kept or made).read_bytes() == bytes(10_000)
    assert (kept is None) == made.exists() == bool(notes)
    assert all("its conversion is not kept in the cache (over its limit)" in note for note in notes)
    if kept is not None:
        assert small.conversion(source) == kept
    if room in (0, 1, 5_000):  # in between it depends on the length of the path
        assert (kept is None) == (room < 2)


def test_a_trace_does_not_drive_out_what_it_was_converted_from(
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


def modules(patterns: Sequence[str]) -> dict[str, Path]:
    package = Path(tracelens_ext.__file__).parent
    found = sorted(path for pattern in patterns for path in package.glob(pattern))
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in found}


def imports(path: Path) -> set[str]:
    """The modules of the package that one of them imports, not only for its types."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tracelens_ext"):
            home = (node.module or "").split(".")[1:]
            for name in node.names:
                inner = Path(tracelens_ext.__file__).parent.joinpath(*home, f"{name.name}.py")
                found.add(".".join([*home, name.name] if inner.exists() else home))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_all_code_that_makes_what_is_kept_is_in_its_version() -> None:
    reading, finding = modules(cache_identity.READING), modules(cache_identity.FINDING)
    assert len(reading) > 20
    assert len(finding) > 20
    # The version of all, texts of refusals, plugins, and packages whose files are listed.
    no_matter = {"", "errors", "hooks", "readers", "readers.kineto", "readers.nsys"}
    for path in reading.values():
        assert imports(path) - set(reading) <= no_matter, path
    # What is communication is among what the launchers say they depend on.
    categorize = {"categorize", "categorize.categorizer"}
    for path in finding.values():
        assert imports(path) - set(finding) - set(reading) <= no_matter | categorize, path


def test_nothing_is_kept_without_a_cache(trace_file: Path, tmp_path: Path) -> None:
    assert TreePerfAnalyzer(trace_file).work.keep is find_anew
    small = TraceCache(tmp_path / "small")  # of which the trace is not worth keeping
    assert TreePerfAnalyzer(trace_file, cache=small).work.keep is find_anew
    analyzer = TreePerfAnalyzer(trace_file)
    assert GpuWork(analyzer.tree, None, include_unlinked=True).keep is find_anew
