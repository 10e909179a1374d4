"""Findings on a terminal: in at most eight lines each, in full, or the first three in a report."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracelens_ext.cli.screen import WIDEST_TEXT, Block, bold, folded
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import safe_text

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.findings.finding import Finding, Findings

#: How many findings a report shows.
_MOST_IN_REPORT = 3
#: How many findings are shown without `--all`.
_MOST_FINDINGS = 8
#: Lines of a finding without `--verbose`.
_MOST_LINES = 8
_MOST_TITLE_LINES = 2
#: The width of the labels on the left.
_LABEL_WIDTH = 7
#: The same with `--verbose`.
_WIDE_LABEL_WIDTH = 12
_PLACE_NAME_WIDTH = 64
_INDENT = "    "
_ELLIPSIS = " …"
_SEE = (
    "In parentheses: the sheet of the report (gap_… with --gaps) or the command that "
    "shows the number."
)
_MORE = "--verbose also shows the evidence, all places and the page about each finding."


def is_shown(finding: Finding) -> bool:
    """Return whether a finding is shown without `--all`: it informs, or it saves 1 % or more."""
    return finding.is_worthwhile


def finding_blocks(
    trace: Path,
    findings: Findings,
    whole: bool,
    console: Console,
    *,
    verbose: bool = False,
) -> Iterator[Block]:
    """Yield the blocks about the findings of a trace.

    Args:
        trace: the file.
        findings: its findings.
        whole: show all findings; otherwise the first ones that are worthwhile.
        console: the terminal.
        verbose: show each finding in full; otherwise in at most eight lines.
    """
    from tracelens_ext.findings.summary import hidden_findings

    width = min(console.width, WIDEST_TEXT)
    lines = folded(f"Trace: {trace}", width, "  ")
    for sentence in _first_sentences(findings, verbose=verbose):
        lines += folded(sentence, width)
    worthwhile = findings.worthwhile
    shown_findings = worthwhile[:_MOST_FINDINGS]
    if whole:
        shown_findings = list(findings.findings)
    for rank, finding in enumerate(shown_findings, 1):
        yield lines + [""]
        title = _title_lines(finding, width)
        indented = textwrap.indent("\n".join(title), _INDENT)
        yield bold(f"{rank:>2}. {indented.lstrip()}")
        if verbose:
            lines = _all_lines(finding, width)
        else:
            lines = _short_lines(finding, width, _MOST_LINES - len(title))
    if shown_findings:
        hint = _MORE
        if verbose:
            hint = _SEE
        lines += [""]
        lines += folded(hint, width)
    small = len(findings.findings) - len(worthwhile)
    left_out = len(findings.findings) - len(shown_findings) - small
    if left_out > 0:
        lines += folded(f"{left_out} more: --all shows them.", width)
    if small and not whole:
        lines += folded(hidden_findings(small), width)
    yield lines


def _first_sentences(findings: Findings, *, verbose: bool) -> list[str]:
    """Return the sentences above the findings: about recording, program and simulation."""
    from tracelens_ext.findings.summary import first_sentences

    sentences = [
        f"Recording: {' '.join(findings.recording_lines)}",
        *first_sentences(findings),
    ]
    if findings.program:
        program = findings.program
        reason = _cut(program["because"], _PLACE_NAME_WIDTH)
        sentences.append(f"Program: {program['kind']} ({reason})")
    if findings.worthwhile and findings.model:
        sentence = _simulation_sentence(findings)
        if verbose or findings.model["state"] != "ok":
            sentences.append(sentence)
    return sentences


def _simulation_sentence(findings: Findings) -> str:
    """Return a sentence about how reliable the simulated savings are."""
    model = findings.model
    if model["state"] != "ok":
        reason = model["reason"]
        return f"Savings are upper bounds: {reason}."
    error_percent = model["error_percent"]
    error = f"{error_percent:+.2f} %"
    return f"Savings are simulated (error {error}) and do not add up."


def _title_lines(finding: Finding, width: int) -> list[str]:
    """Return the title of a finding in at most two lines."""
    room = width - len(_INDENT)
    title = folded(finding.title, room)
    if len(title) <= _MOST_TITLE_LINES:
        return title
    return folded(_cut(finding.title, _MOST_TITLE_LINES * room - 10), room)


class _ShortPart(NamedTuple):
    """A part of the short form of a finding."""

    label: str
    lines: list[str]
    order: int  #: parts of a higher order are cut first
    fewest: int = 1  #: how many lines stay when it is cut


def _short_lines(finding: Finding, width: int, most: int) -> list[str]:
    """Return a finding without its title in at most `most` lines."""
    text_width = width - len(_INDENT) - _LABEL_WIDTH
    parts = []
    for part in _short_texts(finding, text_width):
        if not part.text:
            continue
        lines = folded(part.text, text_width)
        fewest = min(part.fewest, len(lines))
        parts.append(
            _ShortPart(label=part.label, lines=lines, order=part.order, fewest=fewest)
        )
    counts = [len(part.lines) for part in parts]
    by_order = sorted(range(len(parts)), key=lambda number: -parts[number].order)
    for number in by_order:
        excess = sum(counts) - most
        if excess <= 0:
            break
        counts[number] = max(parts[number].fewest, counts[number] - excess)
    result: list[str] = []
    for short_part, count in zip(parts, counts, strict=True):
        lines = _shortened(short_part.lines, count, text_width)
        result.extend(_labeled(short_part.label, lines, _LABEL_WIDTH))
    return result


class _ShortText(NamedTuple):
    """A text of the short form of a finding, before it is folded."""

    label: str
    text: str
    order: int  #: texts of a higher order are cut first
    fewest: int = 1  #: how many lines stay when it is cut


def _short_texts(finding: Finding, text_width: int) -> Iterator[_ShortText]:
    """Yield the texts of the short form: saving, reason, advice, code, place. Some may be empty."""
    from tracelens_ext.findings.summary import saving_phrase, where_text

    saving = saving_phrase(finding).removeprefix("saves ")
    yield _ShortText(label="saves", text=saving, order=0)
    reason = f"{finding.confidence} confidence: {finding.confidence_reason}"
    yield _ShortText(label="why", text=reason, order=3)
    yield _ShortText(label="do", text=finding.advice, order=1, fewest=2)
    yield _ShortText(label="code", text=finding.snippet, order=2)
    where = where_text(finding, lambda name: _cut(name, text_width - 32))
    yield _ShortText(label="where", text=where, order=0)


def _shortened(lines: Sequence[str], count: int, width: int) -> list[str]:
    """Shorten a folded text to `count` lines: leave out its last clauses, or cut it off."""
    if count >= len(lines):
        return list(lines)
    clauses = " ".join(lines).split("; ")
    while len(clauses) > 1:
        clauses.pop()
        shorter = folded("; ".join(clauses), width)
        if len(shorter) <= count:
            return shorter
    last = lines[count - 1]
    room = width - len(_ELLIPSIS)
    if len(last) > room:
        last = last[:room].rpartition(" ")[0] or last[:room]
    return [*lines[: count - 1], f"{last.rstrip(' ,;:')}{_ELLIPSIS}"]


def _all_lines(finding: Finding, width: int) -> list[str]:
    """Return a finding in full without its title: labels on the left, texts beside them."""
    text_width = width - len(_INDENT) - _WIDE_LABEL_WIDTH
    lines: list[str] = []
    for label, text in _parts(finding):
        lines += _labeled(label, folded(text, text_width), _WIDE_LABEL_WIDTH)
    return lines


def _labeled(label: str, lines: Sequence[str], label_width: int) -> Iterator[str]:
    """Yield indented lines, the first with a label before it."""
    for label_cell, line in zip_longest([label], lines, fillvalue=""):
        yield f"{_INDENT}{label_cell:<{label_width}}{line}".rstrip()


def _parts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each part, in the same order as on the HTML page."""
    from tracelens_ext.findings.summary import evidence_text, place_texts, saving_phrase

    saving = saving_phrase(finding)
    if saving:
        yield "saves", saving.removeprefix("saves ")
    yield "confidence", f"{finding.confidence}: {finding.confidence_reason}"
    yield "advice", finding.advice
    if finding.snippet:
        yield "code", finding.snippet
    for label, text in place_texts(finding, _cut).items():
        yield label.removeprefix("python "), text
    for number, evidence in enumerate(finding.evidence):
        label = "evidence"
        if number:
            label = ""
        yield label, evidence_text(evidence)
    yield "more", finding.documentation


def _cut(name: str, width: int = _PLACE_NAME_WIDTH) -> str:
    return cut_middle(safe_text(name), width)


def first_findings(
    table: pd.DataFrame, title: str, trace: str, console: Console
) -> Iterator[Block]:
    """Yield the first findings of a report, and the command that shows more about them."""
    width = min(console.width, WIDEST_TEXT)
    yield [""]
    if not len(table):
        yield folded(f"{title}.", width)
        return
    yield bold(title)
    for rank, row in enumerate(table.head(_MOST_IN_REPORT).to_dict("records"), 1):
        yield folded(f"{rank}. {row['title']}", width, "   ")
        second = f"{row['confidence']} confidence"
        if row["saving"]:
            second = f"{row['saving']}; {second}"
        lines = [f"   {line}" for line in folded(second, width - 3)]
        place = str(row["largest_place"])
        if place and place.rpartition(" (")[0] not in row["title"]:
            lines.append(f"   largest part: {_cut(place, width - 17)}")
        yield lines
    more = ""
    if len(table) > _MOST_IN_REPORT:
        more = f", and {len(table) - _MOST_IN_REPORT} more"
    yield [
        f"Where, why and what to do{more}: tracelens-ext findings {shlex.quote(trace)}"
    ]


def finding_documents(
    findings: Sequence[Finding], documents: Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    """Add to the JSON of each finding whether the screen shows it without `--all`."""
    return [
        {**document, "shown": is_shown(finding)}
        for finding, document in zip(findings, documents, strict=True)
    ]
