"""Reads the dumps of a job, and joins their tables with those of traces of the same job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tracelens_ext.distributed.flight_recorder.analysis import analyze_dumps
from tracelens_ext.distributed.flight_recorder.dumps import FlightDump, read_dump
from tracelens_ext.distributed.flight_recorder.report_tables import TABLES
from tracelens_ext.distributed.table_rows import table_rows
from tracelens_ext.errors import TraceError
from tracelens_ext.lazy import pd

#: Verdicts that are taken from the dumps, not from traces, which usually end before the hang.
_DECIDED_BY_DUMPS: Final = ("hang", "mismatch", "lost_call", "missing_rank")


class DumpTables(NamedTuple):
    """The results of analyzing the dumps of a job."""

    tables: dict[str, pd.DataFrame]  #: the tables that `TABLES` names
    notes: list[str]  #: remarks for the user, one sentence each
    problems: list[TraceError]  #: one error for each dump that could not be read


def dump_tables(paths: Sequence[Path]) -> DumpTables:
    """Read the dumps of a job, and analyze them together.

    Raises:
        TraceError: none of the dumps can be read.
    """
    dump_of_rank: dict[int, FlightDump] = {}
    problems = []
    notes = []
    for path in paths:
        try:
            dump = read_dump(path)
        except TraceError as error:
            problems.append(error)
            continue
        if dump.rank in dump_of_rank:
            used_path = dump_of_rank[dump.rank].path
            notes.append(
                f"Two dumps are from rank {dump.rank}: {used_path} is used, {path} is "
                "not."
            )
            continue
        dump_of_rank[dump.rank] = dump
    if not dump_of_rank:
        raise problems[0]
    dumps = [dump_of_rank[rank] for rank in sorted(dump_of_rank)]
    notes += _notes_on_contents(dumps)
    return DumpTables(
        tables=analyze_dumps(dumps),
        notes=notes,
        problems=problems,
    )


def _notes_on_contents(dumps: Sequence[FlightDump]) -> list[str]:
    """Return a sentence about each oddity in the contents of the dumps."""
    notes = []
    unusable_entries = sum(dump.unusable_entries for dump in dumps)
    if unusable_entries:
        notes.append(
            f"{unusable_entries:,} entries of the dumps are not calls, and are left "
            "out."
        )
    versions = sorted({dump.version for dump in dumps if dump.version})
    if len(versions) > 1:
        notes.append(f"The dumps have different versions: {', '.join(versions)}.")
    without_calls = [str(dump.rank) for dump in dumps if not dump.calls]
    if without_calls:
        notes.append(
            f"The dumps of these ranks contain no calls: {', '.join(without_calls)}."
        )
    return notes


def joined_with_traces(
    tables_of_dumps: Mapping[str, pd.DataFrame],
    tables_of_traces: Mapping[str, pd.DataFrame],
) -> dict[str, pd.DataFrame]:
    """Join the tables of the dumps with those of a fleet's traces.

    Verdicts on calls that never ended and on missing ranks come from the dumps; verdicts on slow
    ranks and links come from the traces. The stuck calls of the dumps get an iteration: that of
    the call in the traces with the same process group and sequence number, or else "after" the
    iteration of the last call of that group in the traces.
    """
    stuck_calls = _with_iterations(
        stuck_calls=tables_of_dumps["stuck_calls"],
        traced_calls=tables_of_traces["collective_calls"],
    )
    iteration_of_group = dict(
        zip(stuck_calls["process_group"], stuck_calls["iteration"], strict=True)
    )
    verdicts = tables_of_dumps["verdicts"].copy()
    verdicts["iteration"] = verdicts["process_group"].map(iteration_of_group)
    trace_verdicts = tables_of_traces["verdicts"]
    is_decided_by_dumps = trace_verdicts["verdict"].isin(_DECIDED_BY_DUMPS)
    trace_verdicts = trace_verdicts[~is_decided_by_dumps]
    if len(trace_verdicts):
        column_types = trace_verdicts.dtypes.to_dict()
        verdicts = pd.concat(
            [verdicts.astype(column_types), trace_verdicts], ignore_index=True
        )
    joined = {name: tables_of_dumps[name] for name in TABLES}
    joined.update(tables_of_traces)
    joined["verdicts"] = verdicts
    joined["stuck_calls"] = stuck_calls
    return joined


def _with_iterations(
    stuck_calls: pd.DataFrame, traced_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return the stuck calls of dumps with a column `iteration`, taken from the traces."""
    iterations = []
    for row in table_rows(stuck_calls):
        iteration = _iteration_of_call(
            traced_calls=traced_calls,
            process_group=row.process_group,
            sequence=row.sequence,
        )
        iterations.append(iteration)
    column = pd.Series(iterations, index=stuck_calls.index, dtype="str")
    return stuck_calls.assign(iteration=column)


def _iteration_of_call(
    traced_calls: pd.DataFrame, process_group: str, sequence: int
) -> str:
    """Return the iteration of a call in the traces; empty if they have no call of its group."""
    calls_of_group = traced_calls[traced_calls["process_group"] == process_group]
    if not len(calls_of_group):
        return ""
    has_sequence = calls_of_group["matched_by"] == "seq"
    is_same_call = has_sequence & (calls_of_group["sequence"] == sequence)
    same_calls = calls_of_group[is_same_call]
    if len(same_calls):
        return str(same_calls["iteration"].iloc[0])
    return f"after {calls_of_group['iteration'].iloc[-1]}"
