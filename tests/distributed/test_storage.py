"""The tables of a fleet's results keep their meaning, whatever names they were written with."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.support.fleet_helpers import needs_fleet
from tracelens_ext.compatibility.earlier_names import VARIABLE
from tracelens_ext.distributed.storage import ResultStore

pytestmark = needs_fleet

CALLS = pd.DataFrame({"call": [0, 1], "transfer_us": [1.5, 2.5]})
FINDINGS = pd.DataFrame(
    {"finding": ["synchronization", "host-bound"], "attributed_ms": [1.0, 2.0]}
)
TABLES = {
    "collective_calls": CALLS,
    "findings/rank0": FINDINGS,
    "collective_kernels/rank0": CALLS,
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("version", ["", "0.1"])
def test_a_table_is_read_with_its_current_names(
    name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore.at(str(tmp_path))
    monkeypatch.setenv(VARIABLE, version)
    store.put_table(name, TABLES[name])
    for reader in ("", "0.1"):
        monkeypatch.setenv(VARIABLE, reader)
        stored = store.get_table(name).to_pandas()
        pd.testing.assert_frame_equal(stored, TABLES[name], check_dtype=False)
        last = TABLES[name].columns[-1]
        assert store.get_table(name, [last]).column_names == [last]
    store.remove_table(name)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_have_the_earlier_names_if_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.1")
    store = ResultStore.at(str(tmp_path))
    for name, table in TABLES.items():
        store.put_table(name, table)
    calls = pd.read_parquet(tmp_path / "collective_sync.parquet")
    assert list(calls) == ["call", "in_sync_us"]
    findings = pd.read_parquet(tmp_path / "findings" / "rank0.parquet")
    assert findings.to_dict("list") == {
        "finding": ["synchronisation", "host-bound"],
        "claimed_ms": [1.0, 2.0],
    }
    assert (tmp_path / "collective_calls" / "rank0.parquet").exists()
