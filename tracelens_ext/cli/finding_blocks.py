"""Findings on a terminal: all about each, or the first ones in two lines each."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import WIDEST_TEXT, Block, bold, folded
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.findings.finding import Finding, Findings

_FIRST = 3
_MOST = 8  # of all
_LABEL_WIDTH = 12  # of the labels on the left
_PLACE_NAME_WIDTH = 64
_INDENT = "    "
_SEE = (
    "In brackets: the sheet of the report (gap_… with --gaps) "
    "or the command that shows the number."
)


def is_shown(finding: Finding) -> bool:
    """Return whether a finding is shown without `--all`: it informs, or saves 1 % and more."""
    from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT

    return finding.informs_only or finding.saving_percent >= LEAST_SHARE_PERCENT


def finding_blocks(
    trace: Path, findings: Findings, whole: bool, console: Console
) -> Iterator[Block]:
    """Yield the findings of a trace: the first that are worth it, or all."""
    width = min(console.width, WIDEST_TEXT)
    lines = folded(f"Trace: {trace}", width, "  ")
    for sentence in _first_sentences(findings):
        lines += folded(sentence, width)
    worthwhile = [finding for finding in findings.findings if is_shown(finding)]
    shown = findings.findings if whole else worthwhile[:_MOST]
    for rank, finding in enumerate(shown, 1):
        yield lines + [""]
        title = folded(finding.title, width - len(_INDENT))
        indented = textwrap.indent("\n".join(title), _INDENT)
        yield bold(f"{rank:>2}. {indented.lstrip()}")
        lines = _finding_lines(finding, width)
    if findings.findings:
        lines += [""] + folded(_SEE, width)
    hidden = len(findings.findings) - len(shown)
    if hidden:
        small = len(findings.findings) - len(worthwhile)
        reason = f", {small} of which would save less than 1 % each" if small else ""
        lines += [""] + folded(f"{hidden} more{reason}: --all shows them.", width)
    yield lines


def _first_sentences(findings: Findings) -> list[str]:
    """Return what is said before the findings: the recording, the program, the simulation."""
    from tracelens_ext.findings.summary import summary_sentence

    sentences = [
        f"Recording: {' '.join(findings.recording_lines)}",
        summary_sentence(findings),
    ]
    if findings.program:
        program = findings.program
        sentences.append(f"Program: {program['kind']} ({program['because']})")
    if findings.findings and findings.model:
        model = findings.model
        if model["state"] == "good":
            error = f"{model['error_percent']:+.2f} %"
            sentences.append(
                f"Savings overlap. They are a replay's, which misses the wall time by {error}."
            )
        else:
            sentences.append(
                f"Savings are no more than what is claimed: {model['reason']}."
            )
    return sentences


def _finding_lines(finding: Finding, width: int) -> list[str]:
    """Return all about a finding but its title: labels on the left, texts beside them."""
    text_width = width - len(_INDENT) - _LABEL_WIDTH
    lines = []
    for label, text in _parts(finding):
        rows = zip_longest([label], folded(text, text_width), fillvalue="")
        for left, line in rows:
            lines.append(f"{_INDENT}{left:<{_LABEL_WIDTH}}{line}".rstrip())
    return lines


def _parts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield label and text of each part, in the order of the page."""
    from tracelens_ext.findings.summary import evidence_text, place_texts

    yield "advice", finding.advice
    if finding.snippet:
        yield "", finding.snippet
    bounds = {"at least": finding.saving_low_ms, "at most": finding.saving_high_ms}
    saves = [f"{word} {ms_text(ms)}" for word, ms in bounds.items() if ms is not None]
    if saves:
        yield "saves", ", ".join(saves)
    yield "confidence", f"{finding.confidence}: {finding.confidence_reason}"
    for label, text in place_texts(finding, _cut).items():
        yield label.removeprefix("python "), text
    for number, evidence in enumerate(finding.evidence):
        yield "" if number else "evidence", evidence_text(evidence)
    yield "more", finding.documentation


def _cut(name: str, width: int = _PLACE_NAME_WIDTH) -> str:
    return cut_middle(safe_text(name), width)


def first_findings(
    table: pd.DataFrame, title: str, trace: str, console: Console
) -> Iterator[Block]:
    """Yield the first findings of a report's table, two lines each, and where all about them is."""
    width = min(console.width, WIDEST_TEXT)
    yield [""]
    if not len(table):
        yield folded(f"{title}.", width)
        return
    yield bold(title)
    for rank, row in enumerate(table.head(_FIRST).to_dict("records"), 1):
        yield folded(f"{rank}. {row['title']}", width, "   ")
        second = f"   {row['confidence']} confidence"
        place = row["largest_place"]
        if place:
            second += "; the largest part: "
            second += _cut(str(place), width - len(second))
        yield [second]
    more = f", and {len(table) - _FIRST} more" if len(table) > _FIRST else ""
    yield [
        f"Where, why and what to do{more}: tracelens-ext findings {shlex.quote(trace)}"
    ]


def finding_documents(
    findings: Sequence[Finding], documents: Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    """Return JSON of findings that says which the screen shows without `--all`."""
    return [
        {**document, "shown": is_shown(finding)}
        for finding, document in zip(findings, documents, strict=True)
    ]
