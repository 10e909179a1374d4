"""The dumps of a job, and traces of the same job, as one set of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tracelens_ext.distributed.flight_recorder.analysis import TABLES, analyze_dumps
from tracelens_ext.distributed.flight_recorder.dumps import FlightDump, read_dump
from tracelens_ext.errors import TraceError
from tracelens_ext.lazy import pd

#: The verdicts that dumps decide: traces end before the hang, as a rule.
_DECIDED_BY_DUMPS: Final = ("hang", "mismatch", "lost_call", "missing_rank")


class DumpTables(NamedTuple):
    """What the dumps of a job say."""

    tables: dict[str, pd.DataFrame]  #: by the names of `analysis.TABLES`
    notes: list[str]  #: what the reader should know, a sentence each
    problems: list[TraceError]  #: dumps that could not be read


def dump_tables(paths: Sequence[Path]) -> DumpTables:
    """Read the dumps of a job, and analyze them together.

    Raises:
        TraceError: none of them can be read.
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
            other = dump_of_rank[dump.rank].path
            notes.append(
                f"Two dumps are from rank {dump.rank}: {other} is used, {path} is not."
            )
            continue
        dump_of_rank[dump.rank] = dump
    if not dump_of_rank:
        raise problems[0]
    dumps = [dump_of_rank[rank] for rank in sorted(dump_of_rank)]
    notes += _notes(dumps)
    return DumpTables(
        tables=analyze_dumps(dumps),
        notes=notes,
        problems=problems,
    )


def _notes(dumps: Sequence[FlightDump]) -> list[str]:
    """Return what is odd about dumps, a sentence each."""
    notes = []
    unusable = sum(dump.unusable for dump in dumps)
    if unusable:
        notes.append(
            f"{unusable:,} entries of the dumps are not calls, and are left out."
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
    dumps: Mapping[str, pd.DataFrame], of_traces: Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """Return the tables of dumps and those of a fleet's traces as one.

    Verdicts on calls that never ended, and on missing ranks, are those of the dumps; verdicts on
    slow ranks and links are those of the traces. The calls of the dumps get the iteration of the
    traces' call of the same group and sequence number, else of the group's last call there.
    """
    calls = of_traces["collective_calls"]
    stuck = dumps["stuck_calls"].copy()
    iterations = [
        _iteration(
            calls=calls,
            group=str(group),
            sequence=int(sequence),
        )
        for group, sequence in zip(
            stuck["process_group"], stuck["sequence"], strict=True
        )
    ]
    stuck["iteration"] = pd.Series(iterations, index=stuck.index, dtype="str")
    verdicts = dumps["verdicts"].copy()
    of_group = dict(zip(stuck["process_group"], stuck["iteration"], strict=True))
    verdicts["iteration"] = verdicts["process_group"].map(of_group)
    others = of_traces["verdicts"]
    others = others[~others["verdict"].isin(_DECIDED_BY_DUMPS)]
    types = others.dtypes.to_dict()
    if len(others):
        verdicts = pd.concat([verdicts.astype(types), others], ignore_index=True)
    joined = {name: dumps[name] for name in TABLES}
    joined |= {name: table for name, table in of_traces.items() if name != "verdicts"}
    return {**joined, "verdicts": verdicts, "stuck_calls": stuck}


def _iteration(calls: pd.DataFrame, group: str, sequence: int) -> str:
    """Return the iteration of a call in the traces; empty where they have none of its group."""
    of_group = calls[calls["process_group"] == group]
    if not len(of_group):
        return ""
    is_matched = of_group["matched_by"] == "seq"
    same = of_group[is_matched & (of_group["sequence"] == sequence)]
    if len(same):
        return str(same["iteration"].iloc[0])
    return f"after {of_group['iteration'].iloc[-1]}"
