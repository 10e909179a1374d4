"""Find annotations and operations of a trace that could be its iterations."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.selection import ANNOTATION_KINDS
from tracelens_ext.lazy import pd
from tracelens_ext.trace import EventKind, Int64Array, IntArray
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

#: GPU events; what launches more could be an iteration.
_MOST_OF_AN_OPERATION = 5
#: A candidate that has a smaller share of the best one's score is not an iteration.
_LEAST_SHARE_OF_BEST = 0.1
_LEAST_SCORE = 1e-9
_NUMBER = re.compile("[0-9]+")
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")


def likely_iterations(tree: CallTree, most: int) -> list[str]:
    """Return regular expressions for what could be iterations, the likeliest first.

    Names that differ in their numbers are one candidate. It is the likelier the more GPU work is
    launched in its ranges, the more evenly that is spread over them, and the farther out they are;
    and less likely when there is but one. CPU ops, which annotations become in some traces, count
    where they are likelier than all annotations: several without another around them, that launch
    more than an operation does.

    Args:
        tree: the call tree.
        most: how many expressions to return at most.
    """
    ranges = _ranges(tree)
    if not ranges["work"].any():
        return []
    # Sorted by name, so that the first of each family has the smallest code.
    ranges = ranges.sort_values("code", kind="stable")
    ranges["name"] = [tree.trace.names[code] for code in ranges["code"].tolist()]
    family_name = ranges["name"].str.replace(_NUMBER, "0", regex=True)
    families = ranges.groupby(family_name, sort=False)
    candidates = families.agg(
        name=("name", "first"),
        names=("name", "nunique"),
        is_op=("is_op", "any"),
        depth=("depth", "mean"),
        total=("work", "sum"),
        mean=("work", "mean"),
        ranges=("work", "size"),
    )
    deviation = families["work"].std(ddof=0)
    is_several = candidates["ranges"] > 1
    covered_share = (candidates["total"] / int(tree.linked.sum())).clip(upper=1)
    spread = deviation / candidates["mean"].clip(lower=1)
    score: pd.Series[float] = covered_share / (1 + spread) / np.where(is_several, 1, 2)
    is_annotation = ~candidates["is_op"]
    op_counts = is_several
    if is_annotation.any():
        op_counts = is_several & (score > score[is_annotation].max())
    least_score = max(_LEAST_SHARE_OF_BEST * score.max(), _LEAST_SCORE)
    kept = (score >= least_score) & (is_annotation | op_counts)
    chosen = candidates.assign(negative_score=-score.round(2))[kept]
    chosen = chosen.sort_values(["negative_score", "depth"]).head(most)
    return [
        _expression(name, any_number=names > 1)
        for name, names in zip(chosen["name"], chosen["names"], strict=True)
    ]


def _expression(name: str, *, any_number: bool) -> str:
    text = _SPECIAL.sub(r"\\\g<0>", name)
    if any_number:
        text = _NUMBER.sub("[0-9]+", text)
    return f"^{text}$"


class _LaunchTimes(NamedTuple):
    """When GPU work was launched, by process and time."""

    process: IntArray
    time: Int64Array


def _ranges(tree: CallTree) -> pd.DataFrame:
    """Return a row for each annotation and each outermost operation on threads that launch.

    Columns `work` (GPU events launched in it), `is_op`, `depth` and `code` (of its name).
    """
    trace = tree.trace
    launch = tree.launch_of_gpu[tree.linked]
    rows = tree.rows[np.isin(trace.kind[tree.rows], ANNOTATION_KINDS)]
    rows = rows[np.isin(trace.thread[rows], trace.thread[launch])]
    process_of_row = trace.process_of_thread[trace.thread[rows]]
    process_of_launch = trace.process_of_thread[trace.thread[launch]]
    order = by_group_and_time(process_of_launch, trace.ts[launch])
    launches = _LaunchTimes(
        process=process_of_launch[order], time=trace.ts[launch[order]]
    )
    before = items_before(
        group=launches.process,
        time=launches.time,
        query_group=process_of_row,
        query_time=trace.ts[rows],
    )
    until = items_before(
        group=launches.process,
        time=launches.time,
        query_group=process_of_row,
        query_time=trace.end_of(rows),
    )
    ranges = pd.DataFrame(
        {
            "work": until - before,
            "is_op": trace.kind[rows] == EventKind.CPU_OP,
            "depth": tree.depth[tree.position[rows]],
            "code": trace.name[rows],
        }
    )
    is_large_root = (ranges["depth"] == 0) & (ranges["work"] > _MOST_OF_AN_OPERATION)
    return ranges[~ranges["is_op"] | is_large_root]
