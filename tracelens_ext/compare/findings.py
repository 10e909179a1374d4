"""The findings of several traces side by side: what is new, gone, better and worse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens_ext.compare.measurement import NO_SAVING
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement, Saving
    from tracelens_ext.findings.finding import Findings


def with_findings(measured: Measurement, found: Findings) -> Measurement:
    """The measurement of a trace, with its findings."""
    savings = {each.id: (each.claimed_ms, each.share_percent) for each in found.findings}
    return replace(measured, findings=savings)


def compare_findings(comparison: Comparison) -> pd.DataFrame | None:
    """A row a finding of any trace, the largest change first; None where some findings are unknown.

    Returns:
        Columns `finding`, `change` (`new`, `gone`, `worse`, `better` or `as before`, by the share
        of the judged time, which does not depend on how many iterations were recorded),
        `A_saving_ms`, `B_saving_ms`, `difference_ms` (B - A), `A_% of judged time`,
        `B_% of judged time`. Of more than two traces `B_change`, `B_difference_ms` …
    """
    divided = zip(comparison.measurements, comparison.divisors, strict=True)
    known = [
        {name: (saving / units, share) for name, (saving, share) in measured.findings.items()}
        for measured, units in divided
        if measured.findings is not None
    ]
    if len(known) < len(comparison.measurements):
        return None
    letters, baseline = comparison.letters, known[0]
    ids = pd.Index(dict.fromkeys(name for savings in known for name in savings), dtype="str")
    saving, share = (
        pd.DataFrame(
            {
                letter: [savings.get(name, NO_SAVING)[number] for name in ids]
                for letter, savings in zip(letters, known, strict=True)
            },
            index=ids,
            dtype="float64",
        )
        for number in range(2)
    )
    frame = pd.DataFrame({"finding": ids}, index=ids)
    prefixes = {letter: "" if len(letters) == 2 else f"{letter}_" for letter in letters[1:]}
    for prefix, savings in zip(prefixes.values(), known[1:], strict=True):
        words = [_change(baseline.get(name), savings.get(name)) for name in ids]
        frame[f"{prefix}change"] = pd.Series(words, index=ids, dtype="str")
    for letter in letters:
        frame[f"{letter}_saving_ms"] = saving[letter]
    for letter, prefix in prefixes.items():
        frame[f"{prefix}difference_ms"] = saving[letter] - saving[letters[0]]
    for letter in letters:
        frame[f"{letter}_% of judged time"] = share[letter]
    size = share.sub(share[letters[0]], axis="index").abs().max(axis="columns")
    order = size.sort_values(ascending=False, kind="stable").index
    return frame.loc[order].reset_index(drop=True)


def _change(before: Saving | None, after: Saving | None) -> str:
    if before is None or after is None:
        return "" if before is after else "new" if before is None else "gone"
    grown = after[1] - before[1]
    if abs(grown) < LEAST_SHARE_PERCENT:
        return "as before"
    return "worse" if grown > 0 else "better"
