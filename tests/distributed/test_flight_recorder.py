"""Dumps of the flight recorder: the rank and the call that are to blame, and nothing else."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import flight_maker
from tests.support.fleet_helpers import needs_fleet
from tests.support.fleet_maker import Fleet, Simulation
from tests.support.flight_maker import VERSIONS, FlightJob, healthy
from tracelens_ext.cli import run
from tracelens_ext.distributed.flight_recorder.analysis import analyze_dumps
from tracelens_ext.distributed.flight_recorder.dumps import (
    dumps_in,
    may_be_dump,
    read_dump,
)
from tracelens_ext.errors import TraceError, TraceFormatError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

versions = pytest.mark.parametrize(
    "version",
    [
        pytest.param(
            version, marks=() if version in ("2.0", "2.10") else pytest.mark.slow
        )
        for version in VERSIONS
    ],
)
forms = pytest.mark.parametrize("form", ["pickle", "json"])


def analyzed(folder: Path) -> dict[str, pd.DataFrame]:
    return analyze_dumps([read_dump(path) for path in dumps_in(folder)])


def verdicts(folder: Path) -> list[tuple[Any, ...]]:
    table = analyzed(folder)["verdicts"].astype(object)
    rows = table.where(table.notna(), None)[["verdict", "rank", "process_group"]]
    return list(rows.itertuples(index=False, name=None))


@forms
@versions
def test_a_healthy_job_has_no_verdicts(version: str, form: str, tmp_path: Path) -> None:
    tables = analyzed(healthy(version).write(tmp_path, form=form))
    assert len(tables["verdicts"]) == 0
    assert len(tables["stuck_calls"]) == 0
    assert set(tables["rank_progress"]["behind"]) == {0}
    assert tables["last_calls"]["rank"].value_counts().to_dict() == dict.fromkeys(
        range(4), 5
    )


@forms
@versions
def test_a_rank_that_never_enters_a_call(
    version: str, form: str, tmp_path: Path
) -> None:
    folder = flight_maker.hang(version).write(tmp_path, form=form)
    assert verdicts(folder) == [("hang", 2, "2"), ("hang", 2, "0")]
    stuck = analyzed(folder)["stuck_calls"].set_index("process_group").loc["0"]
    assert (stuck["collective"], stuck["sequence"]) == ("all_reduce", 6)
    assert stuck["missing_ranks"] == "2, 3"
    evidence = " ".join(analyzed(folder)["verdicts"]["evidence"])
    assert "all_reduce, call 6 of process group 0 (default_pg)" in evidence
    assert "step at /home/user/train.py:32" in evidence


@forms
@versions
def test_a_rank_without_a_dump(version: str, form: str, tmp_path: Path) -> None:
    job = healthy(version)
    for rank in range(3):
        job.call(rank, "all_reduce", state="started")
    folder = job.write(tmp_path, form=form, without=3)
    assert verdicts(folder) == [("missing_rank", 3, "0")]
    (evidence,) = analyzed(folder)["verdicts"]["evidence"]
    assert "all_reduce, call 6 of process group 0 (default_pg) waits for it" in evidence


@forms
@versions
def test_a_rank_with_different_sizes(version: str, form: str, tmp_path: Path) -> None:
    folder = flight_maker.size_mismatch(version).write(tmp_path, form=form)
    assert verdicts(folder) == [("mismatch", 1, "0")]
    (evidence,) = analyzed(folder)["verdicts"]["evidence"]
    assert "call 6" in evidence
    assert "has the sizes [[512]] to [[512]] where others have [[1024]]" in evidence


@versions
def test_a_rank_with_a_different_type(version: str, tmp_path: Path) -> None:
    folder = flight_maker.type_mismatch(version).write(tmp_path)
    assert verdicts(folder) == [("mismatch", 3, "0")]
    (evidence,) = analyzed(folder)["verdicts"]["evidence"]
    assert "has the type Float where others have BFloat16" in evidence


@forms
@versions
def test_a_rank_with_a_different_order_of_calls(
    version: str, form: str, tmp_path: Path
) -> None:
    folder = flight_maker.out_of_order(version).write(tmp_path, form=form)
    assert verdicts(folder) == [("mismatch", 2, "0")]
    (evidence,) = analyzed(folder)["verdicts"]["evidence"]
    assert "call 6" in evidence
    assert "rank 2 makes its calls in a different order: it calls broadcast" in evidence


def test_a_rank_with_a_different_order_of_two_groups(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [0, 1, 2]), "1": ("all", [0, 1, 2])}
    job = FlightJob(world=3, groups=groups)
    job.call(0, group="0", state="started")
    job.call(1, group="0", state="started")
    job.call(2, group="1", state="started")
    folder = job.write(tmp_path)
    assert verdicts(folder) == [("mismatch", 2, "0")]
    (evidence,) = analyzed(folder)["verdicts"]["evidence"]
    assert "makes its calls in a different order" in evidence


def test_replicas_show_which_of_two_ranks_has_the_wrong_order(tmp_path: Path) -> None:
    """Ranks 0 and 1 enter two calls in opposite orders; ranks 2 and 3 do as rank 1."""
    groups = {"0": ("default_pg", [0, 1, 2, 3])}
    groups |= {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])}
    job = FlightJob(groups=groups)
    job.call(0, group="0", state="started")
    job.call(1, group="1", state="started")
    for rank in (2, 3):
        job.call(rank, group="2")
        job.call(rank, group="0", state="started")
    assert verdicts(job.write(tmp_path)) == [("mismatch", 0, "1")]


def test_a_rank_that_waits_for_a_rank_without_a_dump_is_not_blamed(
    tmp_path: Path,
) -> None:
    """Rank 2 waits for rank 3, which has no dump; ranks 0 and 1 wait for both."""
    job = healthy()
    job.call(2, "_all_gather_base", group="2", size=64, output=128, state="started")
    for rank in (0, 1):
        job.call(rank, state="started")
    folder = job.write(tmp_path, without=3)
    assert verdicts(folder) == [("missing_rank", 3, "2")]


def test_the_json_of_a_rank_without_calls_has_no_entries(tmp_path: Path) -> None:
    job = FlightJob()
    for rank in range(3):
        job.call(rank, state="started")
    folder = job.write(tmp_path, form="json")
    path = folder / "nccl_trace_rank_3.json"
    document = json.loads(path.read_text("utf-8"))
    del document["entries"]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert verdicts(folder) == [("hang", 3, "0")]


def test_a_rank_that_waits_in_another_call_is_not_blamed(tmp_path: Path) -> None:
    """Rank 3 is absent in the default group, because it waits for rank 2 in group 2."""
    table = analyzed(flight_maker.hang().write(tmp_path))["verdicts"]
    assert set(table["rank"]) == {2}
    assert table["process_group"].tolist() == ["2", "0"], "the cause comes first"


def test_a_call_that_all_entered_and_that_did_not_end(tmp_path: Path) -> None:
    job = healthy()
    job.all_call(state="started")
    assert verdicts(job.write(tmp_path)) == [("hang", None, "0")]


def test_a_gpu_that_has_not_started_a_call(tmp_path: Path) -> None:
    job = healthy()
    for rank in range(4):
        job.call(rank, state="scheduled" if rank == 1 else "started")
    assert verdicts(job.write(tmp_path)) == [("hang", 1, "0")]


def test_a_send_without_a_receive(tmp_path: Path) -> None:
    job = healthy()
    job.call(0, "send 0->1", p2p=True, state="started")
    folder = job.write(tmp_path)
    assert verdicts(folder) == [("hang", 1, "0")]
    (evidence,) = analyzed(folder)["verdicts"]["evidence"]
    assert "send from 0 to 1, call 6" in evidence


def test_a_receive_of_another_size(tmp_path: Path) -> None:
    job = healthy()
    job.call(2, "send 2->3", p2p=True, state="started", size=100)
    job.call(3, "recv 3<-2", p2p=True, state="started", size=50)
    assert verdicts(job.write(tmp_path)) == [("mismatch", 3, "0")]


def test_a_rank_with_an_older_dump_is_not_blamed(tmp_path: Path) -> None:
    """Rank 3 was dumped before calls 6 to 8, of which 6 and 7 have ended since."""
    job = healthy()
    for rank in range(3):
        job.call(rank)
        job.call(rank)
        job.call(rank, state="started")
    assert all(row[1] != 3 for row in verdicts(job.write(tmp_path)))


def test_all_to_all_may_have_any_sizes(tmp_path: Path) -> None:
    job = FlightJob(world=2)
    job.call(0, "all_to_all", size=30, output=20)
    job.call(1, "all_to_all", size=10, output=20)
    assert verdicts(job.write(tmp_path)) == []
    job.call(0, "all_to_all", size=30, output=20, state="started")
    job.call(1, "all_to_all", size=10, output=21, state="started")
    assert verdicts(job.write(tmp_path)) == [("mismatch", None, "0")]


def test_groups_with_the_same_name_are_distinguished_by_their_ranks(
    tmp_path: Path,
) -> None:
    """Names count within a rank: here group 1 is of ranks 0 and 1, and of 2 and 3."""
    job = FlightJob()
    for rank in range(4):
        job.call(rank)
    documents = []
    for rank in range(4):
        document = job.dump(rank)
        ranks = [0, 1] if rank < 2 else [2, 3]
        document["pg_config"]["1"] = {"name": "1", "desc": "tp", "ranks": str(ranks)}
        size = 10 if rank < 2 else 20
        entry = document["entries"][0] | {"process_group": ("1", "tp")}
        entry |= {"input_sizes": [[size]], "output_sizes": [[size]]}
        document["entries"] = [*document["entries"], entry]
        documents.append(document)
    for rank, document in enumerate(documents):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(document))
    assert verdicts(tmp_path) == []


# Hostile and damaged files.


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo ran > /tmp/never",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    content = {"version": "2.10", "pg_config": {}, "entries": [_Runs()]}
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(TraceFormatError, match="only plain data is read") as caught:
        read_dump(path)
    assert "is not a flight recorder dump" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        {"entries": 5},
        {"entries": [5, None, {}, {"profiling_name": "nccl:x"}]},
        {"entries": [{"profiling_name": "x:y", "collective_seq_id": -3}]},
        {"entries": [{"profiling_name": "nccl:y", "collective_seq_id": 2**80}]},
        {"entries": [{"profiling_name": [], "process_group": {}, "frames": 7}]},
        {"entries": [], "pg_config": [1, {"ranks": {}}], "rank": "x", "version": []},
    ],
)
def test_members_of_other_types_count_as_missing(
    content: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "trace_rank_3"
    path.write_bytes(pickle.dumps(content))
    dump = read_dump(path)
    assert dump.rank == 3
    assert dump.calls == ()
    assert len(analyze_dumps([dump])["verdicts"]) == 0


def test_nested_containers_are_not_converted_to_text(tmp_path: Path) -> None:
    """Tuples that hold the one before them twice: a text of the last would never end."""
    name: tuple[object, ...] = ()
    for _ in range(60):
        name = (name, name)
    entry = {"profiling_name": name, "collective_seq_id": 1}
    path = tmp_path / "trace_rank_3"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [entry]}))
    assert read_dump(path).calls == ()


def test_a_dump_without_a_rank_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps(healthy("2.0").dump(0)))
    with pytest.raises(TraceFormatError, match="does not record its rank"):
        read_dump(path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"a": 1}', b"\x80\x04]", b"[" * 100_000, b"\x80\x04N."]
)
def test_other_files_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_dump(path)
    assert "\n" not in str(caught.value)
    assert not may_be_dump(path)


@given(cut=st.integers(0, 20_000), byte=st.integers(0, 255))
def test_a_damaged_dump_gives_a_result_or_an_error(
    cut: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(pickle.dumps(flight_maker.hang().dump(0)))
    content[cut % len(content)] = byte
    path = tmp_path_factory.mktemp("dump") / "trace_rank_0"
    path.write_bytes(content)
    try:
        analyze_dumps([read_dump(path)])
    except TraceError as error:
        assert "\n" not in str(error)


def test_a_trace_is_not_taken_for_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [], "entries": 1, "version": 2}))
    assert not may_be_dump(path)
    assert dumps_in(tmp_path) == []


# The command, and traces of the same job.


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run(["ranks", str(folder), *more]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_command_shows_verdicts_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = flight_maker.hang().write(tmp_path / "hang")
    assert shown(folder, capsys).startswith("Hang: rank 2, process group 2: it never")
    healthy().write(tmp_path / "ok")
    assert shown(tmp_path / "ok", capsys).startswith("No hung calls, mismatched calls")
    document = json.loads(shown(folder, capsys, "--json"))
    assert [row["rank"] for row in document["tables"]["verdicts"]] == [2, 2]
    assert document["facts"]["Dumps"] == 4
    pattern = tmp_path / "hang" / "nccl_trace_rank_[013]"
    assert "Missing rank: rank 2" in shown(pattern, capsys)


def test_the_other_dumps_are_analyzed_if_one_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = healthy().write(tmp_path)
    path = folder / "nccl_trace_rank_1"
    path.write_bytes(path.read_bytes()[:-100])
    assert run(["ranks", str(folder)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("Missing rank: rank 1")
    assert captured.err.count("\n") == 1
    assert "the pickle ends prematurely" in captured.err


@pytest.mark.parametrize("command", ["kernels", "report"])
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_other_commands_name_the_one_that_reads_dumps(
    command: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = healthy().write(tmp_path, form=form)
    path = min(folder.iterdir())
    assert run([command, str(path)]) == 1
    message = capsys.readouterr().err
    assert "is a dump of PyTorch's flight recorder" in message
    assert "tracelens-ext ranks" in message


def test_folders_without_dumps_and_traces_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ranks", str(tmp_path)]) == 1
    assert "contains neither results of fleet nor dumps" in capsys.readouterr().err
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    assert run(["ranks", str(tmp_path / "rank0.json")]) == 1
    assert "tracelens-ext fleet" in capsys.readouterr().err


@needs_fleet
@pytest.mark.slow
def test_results_of_traces_are_joined_with_those_of_dumps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traces end after iteration 7; rank 1 is slow in them, and rank 2 hangs after them."""
    Simulation(Fleet(fault="slow_rank", dp=2, tp=2, steps=3, layers=1)).write(tmp_path)
    (tmp_path / "truth.json").unlink()
    job = FlightJob(groups={"1": ("mesh_tp", [0, 1]), "2": ("mesh_tp", [2, 3])})
    job.all_call("allreduce", group="1")
    job.call(3, "allreduce", group="2", state="started")
    job.write(tmp_path)
    document = json.loads(shown(tmp_path, capsys, "--json"))
    tables = document["tables"]
    first = tables["verdicts"][0]
    assert (first["verdict"], first["rank"]) == ("hang", 2)
    assert {row["verdict"] for row in tables["verdicts"]} == {"hang", "slow_rank"}
    assert tables["stuck_calls"][0]["iteration"] == "after 7"
    assert tables["verdicts"][0]["iteration"] == "after 7"
    assert "collective_calls" in tables
