"""Findings on the terminal: all that is known of each, or the first three in two lines."""

from __future__ import annotations

import shlex
import textwrap
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import folded, show_lines, show_notes
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
from tracelens_ext.findings.told import evidence_text, place_texts, summary_sentence
from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.tables.short_names import cut_middle
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rich.console import Console

    from tracelens_ext.findings.finding import Finding, Findings

_FIRST = 3
_MOST = 8  # of all
_LABEL = 12  # columns of the labels on the left
_NAME = 64  # characters of the name of a place
_WIDEST = 120  # longer lines are hard to read
_SEE = (
    "In brackets: the sheet of the report (gap_… with --gaps) or the command that shows the number."
)


def show_findings(trace: Path, found: Findings, console: Console, *, whole: bool) -> None:
    """Print the findings of a trace: the first that are worth it, or all."""
    width = min(console.width, _WIDEST)
    lines = folded(f"Trace: {trace}", width, "  ")
    recording = f"Recording: {' '.join(found.recording_lines)}"
    for line in [recording, summary_sentence(found)]:
        lines += folded(line, width)
    if found.program:
        told = f"Program: {found.program['kind']} ({found.program['because']})"
        lines += folded(safe_text(told), width)
    if found.findings and found.model:
        lines += folded(_savings(found.model), width)
    worth = [f for f in found.findings if f.informs_only or f.saving_percent >= LEAST_SHARE_PERCENT]
    shown = found.findings if whole else worth[:_MOST]
    for rank, finding in enumerate(shown, 1):
        show_lines([*lines, ""], console)
        head = textwrap.indent("\n".join(folded(finding.title, width - 4)), "    ")
        show_lines([f"{rank:>2}. {head.lstrip()}"], console, style="bold")
        lines = [line for label, text in _parts(finding) for line in _labelled(label, text, width)]
    if found.findings:
        lines += ["", *folded(_SEE, width)]
    if hidden := len(found.findings) - len(shown):
        less = len(found.findings) - len(worth)
        why = f", {less} of which would save less than 1 % each" if less else ""
        lines += ["", *folded(f"{hidden} more{why}: --all shows them.", width)]
    show_lines([*lines, *[""] * bool(found.notes)], console)
    show_notes(found.notes, console)


def _savings(model: Mapping[str, object]) -> str:
    """How savings were found."""
    if model["state"] != "good":
        return f"Savings are no more than what is claimed: {model['reason']}."
    error = model["error_percent"]
    return f"Savings overlap. They are a replay's, which misses the wall time by {error:+.2f} %."


def _parts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text of each part, in the order of the page."""
    low, high = finding.saving_low_ms, finding.saving_high_ms
    bounds = [f"at least {ms_text(low)}"] if low is not None else []
    bounds += [f"at most {ms_text(high)}"] if high is not None else []
    yield "advice", finding.advice
    if finding.snippet:
        yield "", finding.snippet
    if bounds:
        yield "saves", ", ".join(bounds)
    yield "confidence", f"{finding.confidence}: {finding.confidence_reason}"
    for label, text in place_texts(finding, _cut).items():
        yield label.removeprefix("python "), text
    for number, evidence in enumerate(finding.evidence):
        yield "" if number else "evidence", evidence_text(evidence)
    yield "more", finding.documentation


def _cut(name: str) -> str:
    return cut_middle(safe_text(name), _NAME)


def _labelled(label: str, text: str, width: int) -> list[str]:
    """A text in lines, its label on their left."""
    lines = folded(text, width - 4 - _LABEL) or [""]
    return [
        f"    {part:<{_LABEL}}{line}".rstrip()
        for part, line in zip([label, *[""] * len(lines)], lines, strict=False)
    ]


def show_first(table: pd.DataFrame, title: str, trace: str, console: Console) -> None:
    """Print the first findings of a report's table, two lines each, and who tells more.

    Args:
        table: the findings.
        title: what is said above them, or instead of them.
        trace: the file.
        console: the terminal.
    """
    width = min(console.width, _WIDEST)
    show_lines([""], console)
    if not len(table):
        show_lines(folded(f"{title}.", width), console)
        return
    show_lines([title], console, style="bold")
    for rank, row in enumerate(table.head(_FIRST).to_dict("records"), 1):
        show_lines(folded(f"{rank}. {row['title']}", width, "   "), console)
        second = f"   {row['confidence']} confidence"
        if row["largest_place"]:
            second += "; the largest part: "
            second += cut_middle(safe_text(str(row["largest_place"])), width - len(second))
        show_lines([second], console)
    more = f", and {len(table) - _FIRST} more" if len(table) > _FIRST else ""
    command = safe_text(f"tracelens-ext findings {shlex.quote(trace)}")
    show_lines([f"Where, why and what to do{more}: {command}"], console)
