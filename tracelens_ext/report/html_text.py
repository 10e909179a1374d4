"""Texts of a trace where a page shows them: in JSON within a script, in the labels of a chart.

jinja2 escapes those in the HTML itself. The HTML parser ends a script at `</script>`, whatever JSON
it is in, and plotly takes `<b>`, `<a href>` and entities in a label for markup.
"""

from __future__ import annotations

import re

from tracelens_ext.kernel_names import short_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.tables.short_names import cut_middle

_HOVER_LINE = 60  # characters of a line in the box beside the pointer
_HOVER_LINES = 12
_MS_PER_S = 1000.0

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
    return in_one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plotly_lines(text: str) -> str:
    """Write a long text for plotly in several lines, some hundred characters at most."""
    line = in_one_line(text)
    starts = range(0, len(line), _HOVER_LINE)
    lines = [plotly_text(line[start : start + _HOVER_LINE]) for start in starts]
    if len(lines) > _HOVER_LINES:
        lines = [*lines[:_HOVER_LINES], f"… ({len(line):,} characters)"]
    return "<br>".join(lines)


def elided_kernel_name(name: str, width: int) -> str:
    """Shorten a kernel's name: of a C++ signature the beginning, without namespaces."""
    name = in_one_line(name)
    if not _SIGNATURE.search(name):
        return elided(name, width)
    short = short_name(name)
    return short if len(short) <= width else f"{short[: width - 1]}…"


def elided(text: str, width: int) -> str:
    """Cut a text in its middle; the end of a kernel's name tells as much as its beginning."""
    return cut_middle(in_one_line(text), width)


def duration_text(ms: float) -> str:
    """Show a duration in the unit that suits it, three digits or more, never torn from its unit."""
    if abs(ms) >= _MS_PER_S:
        return f"{ms / _MS_PER_S:,.2f}\u00a0s"
    if abs(ms) >= 1 or not ms:
        return f"{ms:,.{1 if abs(ms) >= 100 else 2}f}\u00a0ms"
    return f"{ms * 1000:,.1f}\u00a0µs"


def bytes_text(size: float) -> str:
    """Show a size in the unit that suits it, three digits or more, never torn from its unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= factor:
            return f"{size / factor:,.{1 if abs(size) >= 100 * factor else 2}f}\u00a0{unit}"
    return f"{size:,.0f}\u00a0B"


def percent_text(share: float) -> str:
    """Show a percentage; a small one is not shown as nothing."""
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"


def amount_text(amount: float, unit: str, whole: float, *, signed: bool = False) -> str:
    """Show an amount, and its share of a whole when there is one."""
    sign = "+" if signed and amount > 0 else ""
    text = duration_text(amount) if unit == "ms" else f"{amount:,.4g} {unit}".strip()
    return f"{sign}{text} ({percent_text(100.0 * amount / whole)})" if whole else sign + text


def in_one_line(text: str) -> str:
    """Write a text for a label: what breaks lines, is invisible, or deceives, is an escape."""
    return cleaned(safe_text(" ".join(text.split())))
