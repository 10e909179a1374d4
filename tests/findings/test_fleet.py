"""Findings over the ranks of a job: those of many ranks, and those of a single one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.support.fleet_helpers import needs_fleet
from tracelens_ext.distributed.reductions import SPREADS, reductions
from tracelens_ext.isolation import PartFailures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = needs_fleet


class Parts:
    """Parts of a fleet in memory; those of tables that are not given have no rows."""

    def __init__(self, findings: Mapping[str, pd.DataFrame]) -> None:
        self.findings = findings

    def get_table(self, name: str, columns: Sequence[str]) -> object:
        import pyarrow as pa

        folder, _, stem = name.partition("/")
        if folder == "findings":
            return pa.Table.from_pandas(
                self.findings[stem][list(columns)], preserve_index=False
            )
        numbers = {"rank", "device", "sequence", "part"}
        columns_of = {
            c: pa.array([], pa.int64() if c in numbers else None) for c in columns
        }
        return pa.table(columns_of)


def reduced(*ranks: Mapping[str, float]) -> tuple[pd.DataFrame, list[str]]:
    """The table over ranks that save so many ms by each finding, and the notes."""
    parts = {
        f"r{rank}": pd.DataFrame(
            {
                "rank": rank,
                "finding": list(found),
                "attributed_ms": list(found.values()),
            }
        ).astype({"rank": "int64", "finding": "str", "attributed_ms": "float64"})
        for rank, found in enumerate(ranks)
    }
    rows = {source.folder: 0 for source in SPREADS.values()}
    done = {stem: {"rows": rows} for stem in parts}
    failures = PartFailures()
    tables, notes = reductions(Parts(parts), done, failures)  # type: ignore[arg-type]
    assert failures.messages == []
    return tables["finding_across_ranks"].set_index("finding"), notes


def test_findings_of_many_ranks_and_of_a_single_one() -> None:
    table, notes = reduced(
        {"host-bound": 3.0}, {"host-bound": 5.0, "dataloader": 20.0}, {}
    )
    shown = table[["ranks", "mean_ms", "max_ms", "max_rank"]].to_dict("index")
    assert list(shown["host-bound"].values()) == [2, 4.0, 5.0, 1]
    assert table.loc["dataloader", "top_ranks"] == "1 (20.000)"
    assert notes == [
        "Left out because only one rank has it: rank 1 has dataloader (20.0 ms)."
    ]


@pytest.mark.parametrize("ranks", [[{"dataloader": 20.0}], [{}, {}]])
def test_a_single_rank_has_no_note_of_findings_that_others_lack(
    ranks: list[dict[str, float]],
) -> None:
    _, notes = reduced(*ranks)
    assert notes == []
