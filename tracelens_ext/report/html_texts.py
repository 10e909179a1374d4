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

# characters of a line in the box beside the pointer
_HOVER_LINE = 60
_HOVER_LINES = 12
_MS_PER_S = 1000.0
#: Of a number that is shown.
_DIGITS = 4

_SIGNATURE = re.compile("::|<|^void ")

#: Also what ends lines to older readers of JavaScript.
_IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}


def json_for_script(value: object) -> str:
    """Write a value as JSON that is safe within `<script>`."""
    import msgspec

    # In JSON these characters stand in texts only, where an escape means the same.
    return msgspec.json.encode(value).decode().translate(_IN_SCRIPT)


def plotly_text(text: str) -> str:
    """Write a text so that plotly shows it as it is: in one line, nothing in it is markup."""
    return (
        in_one_line(text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


def plotly_lines(text: str) -> str:
    """Write a long text for plotly in several lines, some hundred characters at most."""
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
    """Shorten a kernel's name: of a C++ signature the beginning, without namespaces."""
    name = in_one_line(name)
    if not _SIGNATURE.search(name):
        return elided(name, width)
    short = short_name(name)
    if len(short) <= width:
        return short
    return f"{short[: width - 1]}…"


def elided(text: str, width: int) -> str:
    """Cut a text in its middle; the end of a kernel's name tells as much as its beginning."""
    return cut_middle(in_one_line(text), width)


def duration_text(ms: float) -> str:
    """Show a duration in the unit that suits it, three digits or more, never torn from its unit."""
    size = abs(ms)
    if size >= _MS_PER_S:
        return f"{ms / _MS_PER_S:,.2f}\u00a0s"
    if size >= 100:
        return f"{ms:,.1f}\u00a0ms"
    if size >= 1 or not ms:
        return f"{ms:,.2f}\u00a0ms"
    return f"{ms * 1000:,.1f}\u00a0µs"


def bytes_text(size: float) -> str:
    """Show a size in the unit that suits it, three digits or more, never torn from its unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) < factor:
            continue
        number = size / factor
        decimals = 1 if abs(size) >= 100 * factor else 2
        return f"{number:,.{decimals}f}\u00a0{unit}"
    return f"{size:,.0f}\u00a0B"


def percent_text(share: float) -> str:
    """Show a percentage; a small one is not shown as nothing."""
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"


def amount_text(amount: float, unit: str, whole: float, *, signed: bool = False) -> str:
    """Show an amount, and its share of a whole when there is one."""
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
    """Show a number with four digits, or all those before its point; never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits_before_point = math.floor(math.log10(abs(value))) + 1
    decimals = max(_DIGITS - digits_before_point, 0)
    text = f"{value:,.{decimals}f}"
    if not decimals:
        return text
    return text.rstrip("0").rstrip(".")


def in_one_line(text: str) -> str:
    """Write a text for a label: what breaks lines, is invisible, or deceives, is an escape."""
    return cleaned(safe_text(" ".join(text.split())))


_MS_PER = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def ms_per_unit(column: str) -> float | None:
    """How many milliseconds the unit of a column is; None for a column that is no time."""
    return _MS_PER.get(unit_of(column).symbol)
