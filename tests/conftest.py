"""What all tests share: property tests that try the same examples every time."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from report_html_browser import Browser

    from tracelens_ext.cache.store import TraceCache

os.environ["TRACELENS_EXT_NO_CACHE"] = "1"  # no test leaves traces in the user's cache

settings.register_profile(
    "same every time",
    derandomize=True,
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("same every time")


@pytest.fixture
def notes() -> list[str]:
    """What the cache has told."""
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> TraceCache:
    """A cache of a test's own, in which every trace is worth keeping."""
    from tracelens_ext.cache.store import TraceCache

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
    from report_html_browser import chromium, running_browser

    program = chromium()
    assert program is not None
    with running_browser(program) as running:
        yield running
