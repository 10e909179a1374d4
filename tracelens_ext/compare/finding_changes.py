"""Compares the savings of findings between traces."""

from __future__ import annotations

import numpy as np

from tracelens_ext.compare.comparison import Comparison
from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
from tracelens_ext.lazy import pd
from tracelens_ext.trace import BoolArray, Float64Array


def compare_findings(comparison: Comparison) -> pd.DataFrame | None:
    """Return a table with a row for each finding, the largest change first.

    The result is None if the findings of a trace are not known.
    """
    if comparison.savings is None:
        return None
    letters = comparison.letters
    ids, values = comparison.savings
    is_missing = np.isnan(values[..., 0])
    known_values = np.nan_to_num(values)
    attributed_ms = known_values[..., 0]
    share_percent = known_values[..., 1]
    columns: dict[str, object] = {"finding": pd.array(ids, dtype="str")}
    share_changes = share_percent - share_percent[:, :1]
    for trace, prefix in enumerate(prefixes(letters).values(), start=1):
        words = _change_words(
            was_missing=is_missing[:, 0],
            is_missing=is_missing[:, trace],
            share_change=share_changes[:, trace],
        )
        columns[f"{prefix}change"] = pd.array(words, dtype="str")
    for trace, letter in enumerate(letters):
        columns[f"{letter}_attributed_ms"] = attributed_ms[:, trace]
    for trace, prefix in enumerate(prefixes(letters).values(), start=1):
        columns[f"{prefix}difference_ms"] = (
            attributed_ms[:, trace] - attributed_ms[:, 0]
        )
    for trace, letter in enumerate(letters):
        columns[f"{letter}_% of analyzed time"] = share_percent[:, trace]
    largest_change = np.abs(share_changes).max(axis=1)
    order = np.argsort(-largest_change, kind="stable")
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def _change_words(
    was_missing: BoolArray, is_missing: BoolArray, share_change: Float64Array
) -> list[str]:
    """Return a word for each finding: `new`, `gone`, `as before`, `worse` or `better`."""
    cases = [
        was_missing & is_missing,
        was_missing,
        is_missing,
        np.abs(share_change) < LEAST_SHARE_PERCENT,
        share_change > 0,
    ]
    words = ["", "new", "gone", "as before", "worse"]
    word_of_finding: list[str] = np.select(cases, words, "better").tolist()
    return word_of_finding
