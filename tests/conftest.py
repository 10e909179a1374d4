"""What all tests share: which of them run here, the same random examples every time, fixtures."""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import signal
import sys
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.simulated_job import write_demo_trace
from tracelens_ext.findings import recording_doubts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.report_html_browser import Browser
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.readers.cache.store import TraceCache

os.environ["TRACELENS_EXT_NO_CACHE"] = "1"  # no test leaves traces in the user's cache
# an unexpected error fails the test that meets it
os.environ["TRACELENS_EXT_DEBUG"] = "1"

settings.register_profile(
    "same every time",
    derandomize=True,
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("same every time")
# `make test` asks for these; what it leaves out, `make test-all` tries.
settings.register_profile("few examples", settings(), max_examples=15)

HAS_TORCH = (
    importlib.util.find_spec("torch") is not None
    or "TRACELENS_EXT_TORCH_PYTHON" in os.environ
)
SHARED = Path(__file__).resolve().parents[2] / "shared"

#: What tests with a mark do; `make test` leaves them to `make test-all`.
_MARKS = {
    "process": "start processes",
    "real_data": "read ../shared",
    "slow": "take seconds",
}
_PROCESSES_START = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_FILES_OPEN = {"open", "sqlite3.connect"}

#: What the running test has done, in the keys of `_MARKS`.
_done: set[str] = set()

#: How many tests were left out, by the reason.
_left_out: Counter[str] = Counter()


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: notices what only a marked test may do."""
    if event in _PROCESSES_START:
        _done.add("process")
    elif event in _FILES_OPEN and f"{SHARED}{os.sep}" in str(arguments[0]):
        _done.add("real_data")


def _start(self: BaseProcess, start: Any = BaseProcess.start) -> None:
    _done.add("process")
    start(self)


platform.processor()  # starts a process when it is first asked, as distributed does
sys.addaudithook(_notice)
BaseProcess.start = _start  # type: ignore[method-assign]  # tells no audit hook


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _done.clear()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    for mark in sorted(_done):
        if item.get_closest_marker(mark) is None:
            pytest.fail(f"tests that {_MARKS[mark]} carry pytest.mark.{mark}")


def _missing(item: pytest.Item) -> str | None:
    """What a test needs and this machine does not have."""
    if item.get_closest_marker("real_data") is not None and not SHARED.is_dir():
        return "that need ../shared"
    if item.get_closest_marker("torch") is not None and not HAS_TORCH:
        return "that need PyTorch"
    for mark in item.iter_markers("skipif"):
        if mark.args[0]:
            reason: str = mark.kwargs["reason"]
            need = reason.removeprefix("needs ")
            return f"({reason})" if need == reason else f"that need {need}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what this machine cannot run, before `-m` leaves out what was not asked for."""
    left_out = [item for item in items if _missing(item) is not None]
    items[:] = [item for item in items if _missing(item) is None]
    config.hook.pytest_deselected(items=left_out)
    most = settings().max_examples
    for item in items:  # those too that ask for a number of their own
        test = getattr(item, "function", None)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if test is not None and own is not None and own.max_examples > most:
            fewer = settings(own, max_examples=most)
            test._hypothesis_internal_use_settings = fewer


def pytest_collection_finish() -> None:
    """What collecting has made stays, and is not looked through again for what can be freed."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        reason = _missing(item)
        if reason is None and item.config.getoption("markexpr"):
            marks = (
                mark for mark in _MARKS if item.get_closest_marker(mark) is not None
            )
            reason = next(
                (f"that {_MARKS[mark]} (make test-all)" for mark in marks), None
            )
        if reason is not None:
            _left_out[reason] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hand the counts to the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended. Each has counted the same tests, so the counts of one are enough."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        counts = ", ".join(
            f"{count} {reason}" for reason, count in _left_out.most_common()
        )
        terminalreporter.write_line(f"tests left out: {counts}")


@pytest.fixture(scope="session")
def demo_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo as the command writes it. Tests share it: who changes it copies it before."""
    from tracelens_ext.cli.demo_recordings import copy_recording

    path = tmp_path_factory.mktemp("demo") / "trace.json.gz"
    copy_recording("nvidia", path)
    return path


@pytest.fixture(scope="session")
def short_demo_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of the demo. Tests share it: who changes it copies it before."""
    return write_demo_trace(
        tmp_path_factory.mktemp("short_demo") / "run.json.gz", steps=1
    )


@pytest.fixture(scope="session")
def analyzed_demo(demo_trace: Path) -> TreePerfAnalyzer:
    """The demo, analysed once: for tests that only ask it."""
    from tracelens_ext.analyzer import TreePerfAnalyzer

    return TreePerfAnalyzer(demo_trace, use_kernel_name_categories=True)


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of few tables, no findings: for tests of where a report goes, not what is in it."""
    make_few_tables(monkeypatch)


def make_few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens_ext.builtin_tables import ordered_tables
    from tracelens_ext.findings.finding import Findings

    few = {
        "gpu_timeline",
        "gpu_counters",
        "iterations",
        "iteration_statistics",
        "gpu_time_by_category",
        "kernels",
        "kernels_by_category",
        "kernel_categories",
    }
    tables = [table for table in ordered_tables() if table.name in few]
    assert len(tables) == len(few)
    monkeypatch.setattr("tracelens_ext.builtin_tables.ordered_tables", lambda: tables)
    none = Findings(0.0)
    monkeypatch.setattr(
        "tracelens_ext.findings.engine.find_findings", lambda *_, **__: none
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns without end are stopped sooner than users would want it."""
    monkeypatch.setattr("tracelens_ext.categorize.matcher._SEARCH_SECONDS", 0.1)
    monkeypatch.setattr("tracelens_ext.categorize.matcher._FIRST_SECONDS", 0.2)


@pytest.fixture
def notes() -> list[str]:
    """What the cache has told."""
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> TraceCache:
    """A cache of a test's own, in which every trace is worth keeping."""
    from tracelens_ext.readers.cache.store import TraceCache

    return TraceCache(tmp_path / "cache", worth_keeping=0, tell=notes.append)


@pytest.fixture(scope="module")
def signals_heard() -> Iterator[None]:
    """Signals end what a test starts, even where they are ignored: under nohup, in a background."""
    before = {}
    for name in ("SIGINT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            before[number] = signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of pages, which are skipped where there is none."""
    from tests.support.report_html_browser import chromium, running_browser

    program = chromium()
    assert program is not None
    with running_browser(program) as running:
        yield running


@pytest.fixture(autouse=True)
def _few_events_are_enough(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces of tests are short: a few events stand for many, unless a test says otherwise."""
    if "too_little" in request.keywords:
        return
    monkeypatch.setattr(recording_doubts, "FEWEST_EVENTS", 0)
    monkeypatch.setattr(recording_doubts, "LEAST_WORK_NS", 0)
