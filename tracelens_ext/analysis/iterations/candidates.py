"""Finds annotations and operations of a trace that could be its iterations."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.iterations import ANNOTATION_KINDS
from tracelens_ext.lazy import pd
from tracelens_ext.trace import EventKind, Int64Array, IntArray
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

#: An operation launches at most this many GPU events. An outermost CPU op that launches more could
#: be an iteration.
_MOST_OF_AN_OPERATION = 5
#: A candidate with a smaller share of the best score is left out.
_LEAST_SHARE_OF_BEST = 0.1
#: So is a candidate with a smaller score, such as 0.
_LEAST_SCORE = 1e-9
_NUMBER = re.compile("[0-9]+")
#: Characters with a meaning in regular expressions.
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")


def likely_iterations(tree: CallTree, most: int) -> list[str]:
    """Return regular expressions for ranges that could be iterations, the likeliest first.

    Ranges whose names differ only in their numbers are one candidate. Its score is the share of GPU
    work that its ranges launch, reduced if the work is spread unevenly over them, and halved if
    there is only one range. Of candidates with about the same score, the outer one comes first.

    In some traces, annotations are recorded as CPU ops. CPU ops are candidates if there are
    several, if they are outermost and launch more than an operation does, and if their score is
    higher than that of all annotations.

    Args:
        tree: the call tree.
        most: the largest number of expressions to return.
    """
    ranges = _ranges(tree)
    if not ranges["work"].any():
        return []
    candidates = _scored_candidates(tree, ranges)
    score = candidates["score"]
    is_annotation = ~candidates["is_op"]
    is_likely_op = candidates["ranges"] > 1
    if is_annotation.any():
        is_likely_op &= score > score[is_annotation].max()
    least_score = max(_LEAST_SHARE_OF_BEST * score.max(), _LEAST_SCORE)
    is_chosen = (score >= least_score) & (is_annotation | is_likely_op)
    chosen = candidates.assign(negative_score=-score.round(2))[is_chosen]
    chosen = chosen.sort_values(["negative_score", "depth"]).head(most)
    expressions = []
    for name, name_count in zip(chosen["name"], chosen["names"], strict=True):
        expressions.append(_expression(name, any_number=name_count > 1))
    return expressions


def _scored_candidates(tree: CallTree, ranges: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each candidate: the ranges whose names differ only in their numbers.

    Args:
        tree: the call tree.
        ranges: the ranges, as `_ranges` returns them.

    Returns:
        A table with the columns `name` (of the range whose name has the smallest code), `names`
        (number of distinct names), `is_op`, `depth` (the mean), `ranges` (their number), `total`
        and `mean` (GPU events of all ranges, and of one), and `score`.
    """
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
    covered_share = (candidates["total"] / int(tree.linked.sum())).clip(upper=1)
    spread = deviation / candidates["mean"].clip(lower=1)
    divisor = np.where(candidates["ranges"] > 1, 1, 2)
    return candidates.assign(score=covered_share / (1 + spread) / divisor)


def _expression(name: str, *, any_number: bool) -> str:
    """Return a regular expression for a name, with any other numbers if `any_number`."""
    text = _SPECIAL.sub(r"\\\g<0>", name)
    if any_number:
        text = _NUMBER.sub("[0-9]+", text)
    return f"^{text}$"


class _LaunchTimes(NamedTuple):
    """The launches of GPU work, sorted by process and time."""

    process: IntArray
    time: Int64Array  #: ns since the trace's first event


def _ranges(tree: CallTree) -> pd.DataFrame:
    """Return a row for each annotation and each large outermost CPU op on threads that launch.

    The columns are `work` (number of GPU events that are launched in it), `is_op`, `depth`, and
    `code` (of its name).
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
