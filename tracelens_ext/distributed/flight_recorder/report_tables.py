"""The tables that show the analysis of a job's dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracelens_ext.distributed.flight_recorder.dumps import FlightCall, FlightDump
from tracelens_ext.distributed.flight_recorder.groups import FlightGroup
from tracelens_ext.distributed.flight_recorder.job_dumps import JobDumps, StuckCall
from tracelens_ext.distributed.verdicts import verdict_table
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

#: The names of the tables, in the order in which they are shown.
TABLES: Final = ("verdicts", "stuck_calls", "rank_progress", "last_calls")
#: How many calls the table `last_calls` has of each rank.
_LAST_CALLS: Final = 5
_STUCK_COLUMNS: Final = {
    "state": "str",
    "process_group": "str",
    "description": "str",
    "collective": "str",
    "sequence": "int64",
    "ranks": "int64",
    "entered_ranks": "str",
    "completed_ranks": "str",
    "missing_ranks": "str",
    "sizes": "str",
    "frames": "str",
}
_PROGRESS_COLUMNS: Final = {
    "rank": "int64",
    "process_group": "str",
    "description": "str",
    "last_entered": "int64",
    "last_completed": "int64",
    "behind": "int64",
    "collective": "str",
    "state": "str",
    "frames": "str",
}
_LAST_CALL_COLUMNS: Final = {
    "rank": "int64",
    "process_group": "str",
    "collective": "str",
    "sequence": "int64",
    "state": "str",
    "sizes": "str",
    "dtype": "str",
    "before_last_ms": "float64",
    "frames": "str",
}


def job_report_tables(job: JobDumps) -> dict[str, pd.DataFrame]:
    """Return the tables that `TABLES` names, for a job whose dumps were analyzed."""
    return {
        "verdicts": verdict_table(job.verdicts),
        "stuck_calls": _stuck_call_table(job),
        "rank_progress": _progress_table(job),
        "last_calls": _last_call_table(job),
    }


def _table(rows: list[dict[str, object]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return rows as a table whose columns have the given types, also if there are no rows."""
    return pd.DataFrame(rows, columns=list(columns)).astype(dict(columns))


def _stuck_call_table(job: JobDumps) -> pd.DataFrame:
    """Return the calls that did not complete, or that ranks did not make alike."""
    rows = [_stuck_call_row(call) for call in job.stuck_calls]
    return _table(rows, _STUCK_COLUMNS)


def _stuck_call_row(call: StuckCall) -> dict[str, object]:
    return {
        "state": str(call.state),
        "process_group": call.group.key.name,
        "description": call.group.key.description,
        "collective": call.operation,
        "sequence": call.sequence,
        "ranks": len(call.group.key.ranks),
        "entered_ranks": _comma_separated(call.entered_ranks),
        "completed_ranks": _comma_separated(call.completed_ranks),
        "missing_ranks": _comma_separated(call.absent_ranks),
        "sizes": call.sizes,
        "frames": "; ".join(call.frames),
    }


def _comma_separated(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _progress_table(job: JobDumps) -> pd.DataFrame:
    """Return how far each rank has come in each process group, the furthest behind first."""
    rows = []
    for group in job.groups:
        last_sequence_of_rank = {
            rank: max(calls) for rank, calls in group.collectives.items() if calls
        }
        furthest_sequence = max(last_sequence_of_rank.values(), default=0)
        for rank, last_sequence in last_sequence_of_rank.items():
            row = _progress_row(
                group=group,
                rank=rank,
                last_sequence=last_sequence,
                furthest_sequence=furthest_sequence,
            )
            rows.append(row)
    table = _table(rows, _PROGRESS_COLUMNS)
    order = ["behind", "process_group", "rank"]
    return table.sort_values(order, ascending=[False, True, True], ignore_index=True)


def _progress_row(
    group: FlightGroup, rank: int, last_sequence: int, furthest_sequence: int
) -> dict[str, object]:
    """Return how far a rank has come in a group, compared with the rank that is furthest."""
    calls_by_sequence = group.collectives[rank]
    completed_sequences = [
        sequence
        for sequence, calls in calls_by_sequence.items()
        if all(call.is_completed for call in calls)
    ]
    last_call = calls_by_sequence[last_sequence][-1]
    return {
        "rank": rank,
        "process_group": group.key.name,
        "description": group.key.description,
        "last_entered": last_sequence,
        "last_completed": max(completed_sequences, default=-1),
        "behind": furthest_sequence - last_sequence,
        "collective": last_call.operation,
        "state": last_call.state,
        "frames": "; ".join(last_call.frames),
    }


def _last_call_table(job: JobDumps) -> pd.DataFrame:
    """Return the last calls of each rank, oldest first."""
    rows: list[dict[str, object]] = []
    dumps = sorted(job.dumps, key=lambda dump: dump.rank)
    for dump in dumps:
        last_calls = dump.calls[-_LAST_CALLS:]
        rows += [_last_call_row(dump, call) for call in last_calls]
    return _table(rows, _LAST_CALL_COLUMNS)


def _last_call_row(dump: FlightDump, call: FlightCall) -> dict[str, object]:
    return {
        "rank": dump.rank,
        "process_group": call.group.name,
        "collective": call.operation,
        "sequence": call.sequence,
        "state": call.state,
        "sizes": call.sizes_text,
        "dtype": ", ".join(dict.fromkeys(call.dtypes)),
        "before_last_ms": (dump.last_call_ns - call.created_ns) / NS_PER_MS,
        "frames": "; ".join(call.frames),
    }
