"""The unit of a column, read from its name, and how its numbers are shown.

Tables of this project carry the unit in the column name (`total_time_ms`, `avg_time_us`,
`Kernel duration (µs)_sum`, `% of cpu_op time`); a time without a unit is in microseconds.
Percentages are plain numbers from 0 to 100. The writers ask here and nowhere else.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    import numpy.typing as npt

#: Facts that a report begins with, whatever it is written as.
FIRST_FACTS = ("Recording", "Launches without GPU work", "Verdict")

_SHOWN_WHOLE = 10**15  # a spreadsheet shows 15 digits of a number and zeros after them
_MOST_DECIMALS = 9
# outside of these a number has another unit
_LARGE = 1000.0
_SMALL = 0.1
_SMALL_PERCENT = 0.05  # below it one decimal would show 0.0
#: Excel's, of bytes: two conditions and the rest are all that a format may hold.
_SIZE_FORMAT = '[>=1000000000]#,##0.00,,," GB";[>=1000000]#,##0.00,," MB";#,##0" B"'


class Quantity(Enum):
    """What kind of number a column holds."""

    TIME = "time"
    PERCENT = "percent"
    COUNT = "count"
    BYTES = "bytes"
    RATE = "rate"
    RATIO = "ratio"
    IDENTIFIER = "identifier"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Unit:
    """What a column's numbers are."""

    quantity: Quantity  #: the kind of number
    #: the unit as shown after a number: `ms`, `µs`, `%`, `GB/s`; empty for none
    symbol: str = ""
    decimals: int = 0  #: digits after the point that are worth showing
    signed: bool = False  #: a difference, shown with its sign


@dataclass(frozen=True)
class Shown:
    """How the numbers of a column are shown, whoever shows them; points line up."""

    unit: Unit
    fractions: bool = True  #: some of them are not whole
    largest: float = math.inf  #: the largest absolute value

    @classmethod
    def of(cls, name: str, numbers: npt.ArrayLike) -> Shown:
        """A column's, or a fact's, by its name; infinities and what is missing tell nothing."""
        import numpy as np  # here: the command line knows units before it needs numpy

        values = np.asarray(numbers, dtype=np.float64)
        values = values[np.isfinite(values)]
        fractions = bool((values != np.floor(values)).any())
        return cls(unit_of(name), fractions, float(np.abs(values).max(initial=0.0)))

    @property
    def excel_format(self) -> str:
        """The Excel number format."""
        symbol = self.unit.symbol
        signed = self.unit.signed
        if self.unit.quantity is Quantity.IDENTIFIER:
            return "General" if self.fractions else "0"
        if self.unit.quantity is Quantity.BYTES and not signed:
            return _SIZE_FORMAT
        number = "#,##0"
        if self.decimals:
            number += "." + "0" * self.decimals
        if symbol in ("%", "x"):
            number += f'"{symbol}"'
        elif symbol:
            number += f'" {symbol}"'
        if signed:
            return f"+{number};-{number};{number}"
        return number

    @property
    def decimals(self) -> int:
        """Digits after the point, so that the largest number of a column keeps three."""
        decimals = self.unit.decimals
        if self.unit.quantity in (Quantity.COUNT, Quantity.UNKNOWN):
            if not self.fractions:
                return 0
            decimals = 3 if self.unit.quantity is Quantity.UNKNOWN else 2
        if 0 < self.largest < 1 and decimals:
            decimals = max(decimals, 2 - math.floor(math.log10(self.largest)))
        return min(decimals, _MOST_DECIMALS)

    def text(self, value: float) -> str:
        """Return a number without its unit, except for percentages; an empty text for none."""
        if math.isnan(value):
            return ""
        if math.isinf(value):
            return str(value)
        sign = "+" if self.unit.signed else ""
        if self.unit.quantity is Quantity.IDENTIFIER:
            if value == int(value):
                return f"{int(value)}"
            return f"{value:.6g}"
        if self.unit.quantity is Quantity.PERCENT:
            if 0 < value < _SMALL_PERCENT and not sign:
                return "<0.1%"
            return f"{value:{sign}.1f}%"
        if isinstance(value, int) and not self.decimals:  # exact, which a double is not
            return f"{value:{sign},d}"
        return f"{value:{sign},.{self.decimals}f}"


def is_numeric(series: pd.Series) -> bool:
    """Return whether a column holds numbers: no truth values, nothing complex."""
    kinds = pd.api.types
    dtype = series.dtype
    if kinds.is_bool_dtype(dtype) or kinds.is_complex_dtype(dtype):
        return False
    return kinds.is_numeric_dtype(dtype)


_PERCENT = re.compile(r"%|percent|\bpct\b")
_RATE = re.compile(
    r"(?<![A-Za-z])(?:[kKMGT]i?B/s|[kMGTP]?FLOP[sS]?(?:/(?:s|Byte|B))?)(?![A-Za-z])"
)
#: Rates whose names are spelled for scripts.
_SPELLED_RATES = {"tflops_per_s": "TFLOP/s", "tb_per_s": "TB/s"} | dict.fromkeys(
    ("tokens_per_s", "tokens_per_s_without_idle"), "tokens/s"
)
_GIGABYTES_PER_SECOND = "_gb_s"
_WORDS = re.compile(r"[a-zA-Zµ\u03bc]+")

_COUNT_WORDS = frozenset(
    {"count", "counts", "calls", "num", "number", "nelems", "occurrences"}
)
_DIFFERENCE_WORDS = frozenset({"difference", "diff", "delta", "change", "changed"})
_US = Unit(quantity=Quantity.TIME, symbol="µs", decimals=3)
_SIZES = ("kB", "KiB", "MB", "MiB", "GB", "GiB")
#: Units by the word that names them in a column's name.
_NAMED = {
    "ns": Unit(Quantity.TIME, "ns"),
    **dict.fromkeys(("us", "µs", "\u03bcs"), _US),  # the last has the Greek letter
    "ms": Unit(quantity=Quantity.TIME, symbol="ms", decimals=3),
    **dict.fromkeys(
        ("s", "sec", "seconds"), Unit(quantity=Quantity.TIME, symbol="s", decimals=3)
    ),
    **dict.fromkeys(("bytes", "byte"), Unit(Quantity.BYTES, "B")),
    **{
        size.lower(): Unit(quantity=Quantity.RATE, symbol=size, decimals=3)
        for size in _SIZES
    },
}
_IDENTIFIER_WORDS = frozenset(
    {
        "id",
        "ids",
        "uid",
        "pid",
        "tid",
        "stream",
        "device",
        "rank",
        "correlation",
        "iteration",
        "index",
        "row",
        "sequence",
        "external",
        "seq",
        "step",
        "node",
        "column",
    }
)
_PLURALS = frozenset(
    {
        "launches",
        "kernels",
        "events",
        "iterations",
        "ops",
        "rows",
        "devices",
        "streams",
        "steps",
    }
)
#: What words tell where no unit is named, the most telling first.
_TELLING = (
    (
        frozenset({"ratio", "speedup", "factor"}),
        Unit(quantity=Quantity.RATIO, symbol="x", decimals=2),
    ),
    (frozenset({"time", "duration", "dur", "latency", "gap", "busy", "idle"}), _US),
    (_IDENTIFIER_WORDS, Unit(Quantity.IDENTIFIER)),
    (_PLURALS, Unit(Quantity.COUNT)),
)
_BEFORE_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")


@functools.lru_cache(maxsize=4096)
def unit_of(column: str) -> Unit:
    """Read the unit from a column's name, such as `avg_time_us`, `Kernel duration (µs)_count`."""
    spaced = _BEFORE_CAPITALS.sub(" ", column)
    words = _WORDS.findall(spaced.lower())
    unit = _unsigned_unit(column, words)
    is_difference = not _DIFFERENCE_WORDS.isdisjoint(words)
    is_signed = is_difference and unit.quantity is not Quantity.IDENTIFIER
    return replace(unit, signed=is_signed)


def _unsigned_unit(column: str, words: list[str]) -> Unit:
    """Try what a name can say, the most telling first: `Kernel duration (µs)_count` is a count."""
    if _PERCENT.search(column.lower()):
        return Unit(quantity=Quantity.PERCENT, symbol="%", decimals=2)
    if column.endswith(_GIGABYTES_PER_SECOND):
        return Unit(quantity=Quantity.RATE, symbol="GB/s", decimals=2)
    if column in _SPELLED_RATES:
        return Unit(quantity=Quantity.RATE, symbol=_SPELLED_RATES[column], decimals=3)
    rate = _RATE.search(column)
    if rate is not None:
        return Unit(quantity=Quantity.RATE, symbol=rate.group(0), decimals=2)
    if not _COUNT_WORDS.isdisjoint(words):
        return Unit(Quantity.COUNT)
    for word in reversed(words):  # the unit stands at the end of a name
        if word in _NAMED:
            return _NAMED[word]
    for telling, unit in _TELLING:
        if not telling.isdisjoint(words):
            return unit
    return Unit(Quantity.UNKNOWN)


_LADDERS = (("ns", "µs", "ms", "s"), ("B", "kB", "MB", "GB"))


class FittingUnit(NamedTuple):
    """A unit, and what to multiply numbers by for it."""

    symbol: str
    factor: float


def fitting_unit(unit: str, largest: float) -> FittingUnit:
    """Return the unit of a time or a size that shows a number best."""
    ladder: tuple[str, ...] = (unit,)
    for units in _LADDERS:
        if unit in units:
            ladder = units
    step = ladder.index(unit)
    factor = 1.0
    last_step = len(ladder) - 1
    while step < last_step and largest * factor >= _LARGE:
        step += 1
        factor /= 1e3
    while step > 1 and 0 < largest * factor < _SMALL:
        step -= 1
        factor *= 1e3
    return FittingUnit(ladder[step], factor)


def header_text(name: object) -> str:
    """Return a column's name as one text; the levels of a name of several are joined."""
    if not isinstance(name, tuple):
        return str(name)
    levels = [str(level) for level in name]
    return " ".join(level for level in levels if level)


_SPELLED = {"µs": {"us", "µs", "\u03bcs"}, "%": {"%", "percent", "percentage"}}
_SPELLED["10⁹ bytes/s"] = {"gb"}


def with_unit(name: str, unit: str) -> str:
    """A column's name as a header: with its unit, where the name does not tell it."""
    words = set(re.findall(r"[a-zµ\u03bc%]+", name.lower()))
    is_in_name = not unit or words & _SPELLED.get(unit, {unit.lower()})
    return name if is_in_name else f"{name} ({unit})"


def with_units(frame: pd.DataFrame, units: Mapping[str, str]) -> pd.DataFrame:
    """A table whose columns are named as headers; `units` by the names of columns."""
    return frame.rename(
        columns={name: with_unit(name, unit) for name, unit in units.items()}
    )


def fits_a_spreadsheet(value: int) -> bool:
    """Say whether a spreadsheet shows every digit of a whole number (it shows 15)."""
    return -_SHOWN_WHOLE < value < _SHOWN_WHOLE
