"""The calls and verdicts of simulated jobs are those that the simulation knows to be true."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from tests.support.fleet_helpers import needs_fleet
from tests.support.fleet_maker import Fleet, Simulation
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.distributed.clocks import fit_clocks
from tracelens_ext.distributed.extract import rank_tables
from tracelens_ext.distributed.matching import number_calls, with_matching_columns
from tracelens_ext.distributed.process_groups import (
    communication_about,
    configured_groups,
)
from tracelens_ext.distributed.rank_numbers import RankSource, TraceRanks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_fleet


class Store:
    """A result store in memory: the parts of ranks, and the tables over all ranks."""

    is_local = False

    def __init__(self) -> None:
        self.frames: dict[str, pd.DataFrame] = {}

    def get_table(self, name: str) -> Any:
        import pyarrow as pa

        return pa.Table.from_pandas(self.frames[name], preserve_index=False)

    def put_table(self, name: str, frame: pd.DataFrame) -> None:
        self.frames[name] = frame


def simulated_job(
    folder: Path, fleet: Fleet
) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Simulate a job; return the truth about it, and the tables over its ranks."""
    from tracelens_ext.distributed.collective_analysis import match_ranks

    Simulation(fleet).write(folder)
    store = Store()
    done = {}
    for path in sorted(folder.glob("rank*")):
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
        info = document["distributedInfo"]
        gpu_events = TreePerfAnalyzer(path, use_kernel_name_categories=True).gpu_events
        tables = rank_tables(
            gpu_events, TraceRanks(info["rank"], RankSource.METADATA, {})
        )
        for name, frame in tables.items():
            store.put_table(f"{name}/{path.stem}", frame)
        groups = configured_groups(gpu_events.trace.metadata)
        world_size = info["world_size"]
        done[path.stem] = {
            "communication": communication_about(
                groups, tables, [info["rank"]], world_size
            ),
            "world_size": world_size,
            "rows": {name: len(frame) for name, frame in tables.items()},
        }
    result = match_ranks(None, store, done, failed_ranks=(), ranks_per_node=None)  # type: ignore[arg-type]
    assert result.failures == []
    return json.loads((folder / "truth.json").read_text()), store.frames


def call_of_kernels(
    tables: dict[str, pd.DataFrame],
) -> dict[frozenset[tuple[int, int]], Any]:
    """Return the row of each call by its kernels, which rank and duration (ns) identify."""
    waits = tables["collective_waits"]
    duration_ns = (waits["duration_us"] * 1e3).round().astype(int)
    kernels_of_call: dict[int, set[tuple[int, int]]] = {}
    for call, rank, ns in zip(waits["call"], waits["rank"], duration_ns, strict=True):
        kernels_of_call.setdefault(call, set()).add((rank, ns))
    rows = {row.call: row for row in tables["collective_calls"].itertuples()}
    return {frozenset(kernels): rows[call] for call, kernels in kernels_of_call.items()}


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(4, tp=2, pp=1, dp=2, fault="lost_equal"),
        Fleet(6, tp=1, pp=1, dp=4, fault="hang", hang_ms=0),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                Fleet(
                    2,
                    pp=2,
                    dp=2,
                    fault="slow_rank",
                    factor=1.5,
                    drift=True,
                    rccl=True,
                    steps=2,
                ),
                Fleet(1, tp=2, pp=1, dp=4, fault="clean", seq="right", args="record"),
                Fleet(3, tp=2, pp=1, dp=4, fault="slow_link", factor=4.0, seq="wrong"),
                Fleet(5, tp=2, pp=1, dp=4, fault="mismatch", moe=True),
                Fleet(7, tp=2, pp=1, dp=4, fault="moving"),
                Fleet(8, tp=1, pp=1, dp=8, fault="lost_rank", seq="wrong"),
            )
        ),
    ],
    ids=lambda fleet: fleet.fault,
)
def test_calls_and_verdicts_are_those_of_the_job(fleet: Fleet, tmp_path: Path) -> None:
    truth, tables = simulated_job(tmp_path, fleet)
    row_of_kernels = call_of_kernels(tables)
    for call in truth["calls"]:
        kernels = frozenset(
            (int(rank), kernel["dur_ns"]) for rank, kernel in call["ranks"].items()
        )
        if not kernels:
            continue
        row = row_of_kernels[kernels]
        assert (row.state, row.bytes, row.span) == (
            call["state"],
            call["bytes"],
            call["span"],
        )
        assert (row.matched_by == "seq") == (fleet.seq == "right")
        if call["state"] == "complete":
            assert row.transfer_us == pytest.approx(call["in_sync_ns"] / 1e3, rel=1e-12)
            assert row.wait_us == pytest.approx(
                sum(call["waits_ns"].values()) / 1e3, rel=1e-12
            )
            assert row.bus_bandwidth_gb_s == pytest.approx(
                call["bus_bandwidth_gb_s"], rel=1e-12
            )
        else:
            assert pd.isna(row.transfer_us)
            assert row.reason
    fields = ["verdict", "rank", "process_group", "iteration", "cause"]
    table = tables["verdicts"][fields].astype(object)
    verdicts = table.where(table.notna() & (table != ""), None).to_dict("records")
    required = truth["verdicts"]["required"]
    allowed = required + truth["verdicts"]["allowed"]
    assert all(verdict in verdicts for verdict in required), verdicts
    assert all(verdict in allowed for verdict in verdicts), verdicts
    waits = tables["collective_waits"]["wait_us"].sum() / 1e3
    assert tables["wait_root_causes"]["wait_ms"].sum() == pytest.approx(waits, rel=1e-9)


@pytest.mark.slow
def test_kernels_without_a_group_are_not_matched_if_there_are_several_groups(
    tmp_path: Path,
) -> None:
    _, tables = simulated_job(
        tmp_path / "two", Fleet(9, tp=2, dp=2, steps=2, args="none")
    )
    calls = tables["collective_calls"]
    assert set(calls["state"]) == {"unmatched"}
    assert calls["reason"].all()
    _, tables = simulated_job(
        tmp_path / "one", Fleet(9, tp=1, dp=4, steps=2, args="none")
    )
    calls = tables["collective_calls"]
    assert set(zip(calls["state"], calls["matched_by"], strict=True)) == {
        ("complete", "unnamed")
    }
    assert calls["transfer_us"].gt(0).all()
    assert calls["bus_bandwidth_gb_s"].isna().all()


def test_a_lost_call_does_not_shift_the_calls_after_it() -> None:
    """Without `Seq` and other iterations only the ends tell which of equal calls is lost."""
    rows = []
    for rank, offset in ((0, 0), (1, 3_000_000)):
        for number in range(6):
            if (rank, number) != (1, 2):
                end = 1_000_000 * number + offset + 500_000
                rows.append(
                    (rank, number, end - 100_000 - 7 * number, 100_000 + 7 * number)
                )
    frame = pd.DataFrame(rows, columns=["rank", "launch", "start", "dur"])
    texts = {"Collective name": "allreduce", "dtype": "Float", "iteration": ""}
    for name, value in (
        texts | {"base": 0, "In msg nelems": 8.0, "Out msg nelems": 8.0}
    ).items():
        frame[name] = value
    for name in ("Seq", "Src Rank", "Dst Rank"):
        frame[name] = float("nan")
    prepared_rows = with_matching_columns(frame, [0, 1])
    number_calls(prepared_rows)
    ranks_of_call = prepared_rows.groupby("call_in_group")["launch"].agg(
        ["nunique", "size"]
    )
    assert ranks_of_call["nunique"].tolist() == [1] * 6
    assert sorted(ranks_of_call["size"]) == [1, 2, 2, 2, 2, 2]
    assert set(prepared_rows["matched_by"]) == {"alignment"}


def test_ranks_that_share_no_call_have_clocks_of_their_own() -> None:
    rows = [
        (call, rank, 1000 * call + 50 * rank, rank // 2)
        for call in range(9)
        for rank in ((0, 1) if call % 2 else (2, 3))
    ]
    frame = pd.DataFrame(rows, columns=["call", "rank", "end", "rank_set"])
    clocks = fit_clocks(frame, np.arange(5))
    assert clocks["component"].tolist() == [0, 0, 2, 2, 4]
    assert clocks["offset_us"].tolist() == pytest.approx([0, 0.05, 0, 0.05, 0])
    assert (clocks["error_us"] <= 5).all()
