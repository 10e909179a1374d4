"""A part that fails is left out and reported, and nothing else changes."""

from __future__ import annotations

import pytest

from tracelens_ext.errors import UsageError
from tracelens_ext.isolation import DEBUG_VARIABLE, PartFailures


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> PartFailures:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    return PartFailures()


def test_an_unexpected_error_is_recorded_in_one_line(failures: PartFailures) -> None:
    with failures.isolate("The table kernels"):
        raise IndexError("boolean index did not match\nindexed array")
    assert failures.messages == [
        (
            "The table kernels could not be computed: IndexError: boolean index did not match "
            "indexed array; please report this"
        )
    ]


def test_an_error_without_a_message_is_named_by_its_type(
    failures: PartFailures,
) -> None:
    with failures.isolate("The simulation"):
        raise ZeroDivisionError
    assert failures.messages == [
        "The simulation could not be computed: ZeroDivisionError; please report this"
    ]


def test_the_same_failure_is_reported_once(failures: PartFailures) -> None:
    for _ in range(2):
        with failures.isolate("The roofline"):
            raise ValueError("no such device")
    assert len(failures.messages) == 1


def test_errors_that_are_meant_for_the_user_pass(failures: PartFailures) -> None:
    with pytest.raises(UsageError), failures.isolate("The table kernels"):
        raise UsageError("there is no such sort")
    assert failures.messages == []


def test_developers_see_the_error_where_it_happens(
    failures: PartFailures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    with pytest.raises(IndexError), failures.isolate("The table kernels"):
        raise IndexError
