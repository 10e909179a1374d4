"""What took time to find out is kept beside a trace, and counts only while it would be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from comparison_helpers import training, write

from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis import judged_gaps, launchers
from tracelens_ext.analysis.gpu_work import GpuWork
from tracelens_ext.analysis.kept import find_anew
from tracelens_ext.readers.cache import TraceCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
def notes() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> TraceCache:
    return TraceCache(tmp_path / "cache", worth_keeping=0, tell=notes.append)


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
    monkeypatch.setattr(
        "tracelens_ext.readers.cache_identity.analysis_version", lambda: "a newer one"
    )
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
    assert "damaged; finding that part again" in notes[0]
    assert finding[0].count == 2
    assert parts(cache) == ["gaps-device", "gaps-stream", "launchers", "trace", "tree"]
    assert [entry.usable for entry in cache.entries()] == [True]


def test_nothing_is_kept_without_a_cache(trace_file: Path, tmp_path: Path) -> None:
    assert TreePerfAnalyzer(trace_file).work.keep is find_anew
    small = TraceCache(tmp_path / "small")  # of which the trace is not worth keeping
    assert TreePerfAnalyzer(trace_file, cache=small).work.keep is find_anew
    analyzer = TreePerfAnalyzer(trace_file)
    assert GpuWork(analyzer.tree, None, include_unlinked=True).keep is find_anew
