"""Texts and numbers of an HTML page, in the forms that people, plotly and the script read.

Plotly takes `<b>`, `<a href>` and entities in a label for markup, and the HTML parser ends a script
at `</script>`, even within JSON. So texts from a trace are escaped here, and the script of the page
never changes them. jinja2 escapes the texts in the HTML itself.
"""

from __future__ import annotations

import math
import re

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.tables.units import unit_of
from tracelens_ext.report.terminal import safe_text

# The box beside the pointer: the most characters of a line, and the most lines.
_HOVER_LINE = 60
_HOVER_LINES = 12
_MS_PER_S = 1000.0
#: The number of digits of a number.
_DIGITS = 4

_SIGNATURE = re.compile("::|<|^void ")

#: Characters that are escaped in a script; the last two end lines in older versions of JavaScript.
_IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}


def json_for_script(value: object) -> str:
    """Return a value as JSON that is safe within `<script>`."""
    import msgspec

    # In JSON, these characters are only in texts, where an escape means the same.
    return msgspec.json.encode(value).decode().translate(_IN_SCRIPT)


def plotly_text(text: str) -> str:
    """Return a text on one line, escaped so that plotly finds no markup in it."""
    return (
        in_one_line(text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


def plotly_lines(text: str) -> str:
    """Return a long text for plotly in several lines, cut after some hundred characters."""
    line = in_one_line(text)
    lines = []
    for start in range(0, len(line), _HOVER_LINE):
        part = line[start : start + _HOVER_LINE]
        lines.append(plotly_text(part))
    if len(lines) > _HOVER_LINES:
        lines = lines[:_HOVER_LINES]
        lines.append(f"… ({len(line):,} characters)")
    return "<br>".join(lines)


def elided_kernel_name(name: str, width: int) -> str:
    """Shorten the name of a kernel; a C++ signature loses its namespaces, then its end."""
    name = in_one_line(name)
    if not _SIGNATURE.search(name):
        return elided(name, width)
    short = short_name(name)
    if len(short) <= width:
        return short
    return f"{short[: width - 1]}…"


def elided(text: str, width: int) -> str:
    """Shorten a text by cutting out its middle, because its end tells as much as its start."""
    return cut_middle(in_one_line(text), width)


def duration_text(ms: float) -> str:
    """Return a duration as text in a fitting unit, with at least three digits.

    The space before the unit does not break, so that number and unit stay on one line.
    """
    size = abs(ms)
    if size >= _MS_PER_S:
        return f"{ms / _MS_PER_S:,.2f}\u00a0s"
    if size >= 100:
        return f"{ms:,.1f}\u00a0ms"
    if size >= 1 or not ms:
        return f"{ms:,.2f}\u00a0ms"
    return f"{ms * 1000:,.1f}\u00a0µs"


def bytes_text(size: float) -> str:
    """Return a size as text in a fitting unit, with at least three digits and a fixed space."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) < factor:
            continue
        number = size / factor
        decimals = 1 if abs(size) >= 100 * factor else 2
        return f"{number:,.{decimals}f}\u00a0{unit}"
    return f"{size:,.0f}\u00a0B"


def percent_text(share: float) -> str:
    """Return a percentage as text; a small one is `<0.1%` instead of `0.0%`."""
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"


def amount_text(amount: float, unit: str, whole: float, *, signed: bool = False) -> str:
    """Return an amount as text, with its share of a whole unless the whole is 0."""
    sign = "+" if signed and amount > 0 else ""
    if unit in _MS_PER:
        text = duration_text(amount * _MS_PER[unit])
    else:
        text = f"{number_text(amount)} {unit}".strip()
    if not whole:
        return sign + text
    share = percent_text(100.0 * amount / whole)
    return f"{sign}{text} ({share})"


def number_text(value: float) -> str:
    """Return a number as text with four digits, or all digits of a larger integer part."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits_before_point = math.floor(math.log10(abs(value))) + 1
    decimals = max(_DIGITS - digits_before_point, 0)
    text = f"{value:,.{decimals}f}"
    if not decimals:
        return text
    return text.rstrip("0").rstrip(".")


def in_one_line(text: str) -> str:
    """Return a text on one line, with escapes for invisible and deceptive characters."""
    return cleaned(safe_text(" ".join(text.split())))


_MS_PER = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def ms_per_unit(column: str) -> float | None:
    """Return the number of ms in the unit of a column; None if the column has no times."""
    return _MS_PER.get(unit_of(column).symbol)
