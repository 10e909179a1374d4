"""What a report is made under is put back afterwards, whatever happens."""

from __future__ import annotations

import gc

import pandas as pd
import pytest

from tracelens_ext.report.writing import fast_pandas


def settings() -> tuple[bool, object]:
    return gc.isenabled(), pd.get_option("mode.string_storage")


def test_it_is_put_back() -> None:
    before = settings()
    with fast_pandas():
        assert settings() == (False, "python")
        with fast_pandas():
            pass
        assert settings() == (False, "python")
    assert settings() == before


def test_it_is_put_back_after_an_error() -> None:
    before = settings()
    with pytest.raises(ValueError, match="broken"), fast_pandas():
        raise ValueError("broken")
    assert settings() == before


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with fast_pandas():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_tables_hold_the_same_texts() -> None:
    texts = ["gemm", "é", "", "=1+1"]
    with fast_pandas():
        inside = pd.DataFrame({"name": texts})
    assert (
        inside["name"].tolist()
        == pd.DataFrame({"name": texts})["name"].tolist()
        == texts
    )
