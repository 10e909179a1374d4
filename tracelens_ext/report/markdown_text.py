"""A report as Markdown with GitHub's tables, to paste into an issue or a pull request.

A kernel's name is full of what Markdown and HTML read as markup. So a text with anything but
letters, digits and harmless signs becomes a code span, in which nothing is. Of a code span in a
table only the bar must be escaped, as GitHub Flavored Markdown (0.29, 4.10) says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import fact_text
from tracelens_ext.report.json_text import encodable, plain_column, plain_headers
from tracelens_ext.report.manifest import GENERATOR
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.tables.units import FIRST_FACTS, Shown, is_numeric

if TYPE_CHECKING:
    from tracelens_ext.report.report import Report

#: The first line, which tells whose file this is.
MARK = f"<!-- written by {GENERATOR} -->"
# An underscore within a word emphasises nothing, a parenthesis without a bracket links nothing,
# and a colon before a blank ends no emoji code.
# (Nothing is tried twice: a name of a megabyte takes no longer than its length.)
_WORD = r"[^\W_]++(?:_++[^\W_]++)*+"
_HARMLESS = re.compile(rf"(?:{_WORD}|[ %(),./+=;\u2010-\u201d\u2192-]|:(?=\s|$))*+")
_WEB = re.compile(r"www\.|//", re.IGNORECASE)  # becomes a link by itself
_STARTS_A_BLOCK = re.compile(r"[-+=]|[0-9]+[.)]$")
_BACKTICKS = re.compile("`+")


def markdown_text(report: Report) -> Iterator[str]:
    """Write a report as Markdown, in pieces."""
    yield f"{MARK}\n\n# {inline(report.title)}\n"
    yield from (
        f"\n{_sentence(f'{label}: {value}')}\n"
        for label, value in report.facts
        if label in FIRST_FACTS
    )
    for answer in report.answers:
        if answer.links:
            yield f"\n## {inline(answer.title)}\n"
            table = report.sheets[answer.sheet][list(answer.columns)].head(answer.rows)
            yield from _table(table) if len(table) else ()
    if report.notes:
        yield "\n" + "".join(f"- {_sentence(note)}\n" for note in report.notes)
    if report.facts:
        yield "\n|  |  |\n| :--- | :--- |\n"
        for label, value in report.facts:
            yield _line([cell(label), cell(fact_text(label, value)[0])])
    for name, frame in report.sheets.items():
        yield f"\n## {inline(name)}\n"
        description = report.descriptions.get(name)
        if description:
            yield f"\n{_sentence(description)}\n"
        yield from _table(frame)


def inline(text: str) -> str:
    """A text as it is to be read, on one line: as it stands, or as a code span."""
    text = safe_text(encodable(text)).strip()
    return text if _HARMLESS.fullmatch(text) and not _WEB.search(text) else _code(text)


def cell(text: str) -> str:
    """A text as the content of a cell of a table."""
    return inline(text).replace("|", "\\|")


def _code(text: str) -> str:
    """A code span: its fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _sentence(text: str) -> str:
    """Running text: only those of its words that need it become code."""
    words = [inline(word) for word in text.split()]
    if words and _STARTS_A_BLOCK.match(words[0]):
        words[0] = _code(words[0])
    return " ".join(words)


def _table(frame: pd.DataFrame) -> Iterator[str]:
    headers = plain_headers(frame)
    if not headers:
        return
    columns, ruler = [], []
    for place, header in enumerate(headers):
        values, number = plain_column(frame.iloc[:, place]), is_numeric(frame.iloc[:, place])
        ruler.append("---:" if number else ":---")
        if number:  # all with as many decimals as its unit deserves
            numbers = [each if isinstance(each, int | float) else math.nan for each in values]
            columns.append([*map(Shown.of(header, numbers).text, numbers)])
        else:
            columns.append(["" if each is None else cell(str(each)) for each in values])
    yield "\n" + _line([cell(header) for header in headers]) + _line(ruler)
    yield from map(_line, zip(*columns, strict=True))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
