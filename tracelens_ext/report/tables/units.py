"""The unit of a column, which is read from its name, and the format of its numbers.

The names of columns contain the unit (`total_time_ms`, `avg_time_us`, `Kernel duration (µs)_sum`,
`% of cpu_op time`). A time without a unit is in microseconds; a percentage is a number from 0 to
100. All outputs take units and formats from here.
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

#: The facts with which a report begins, in every format.
FIRST_FACTS = ("Recording", "Launches without GPU work", "Verdict")

# A spreadsheet shows 15 digits of a number, and zeros for the rest.
_SHOWN_WHOLE = 10**15
_MOST_DECIMALS = 9
# A number outside of this range is shown in another unit.
_LARGE = 1000.0
_SMALL = 0.1
_SMALL_PERCENT = 0.05  # a smaller number with one decimal would be shown as 0.0
#: Excel's format for bytes. A format has at most two conditions, and a part for other numbers.
_SIZE_FORMAT = '[>=1000000000]#,##0.00,,," GB";[>=1000000]#,##0.00,," MB";#,##0" B"'


class Quantity(Enum):
    """The kind of number in a column."""

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
    """The unit of a column's numbers."""

    quantity: Quantity  #: the kind of number
    #: the unit after a number, such as `ms`, `µs`, `%` or `GB/s`; empty for none
    symbol: str = ""
    decimals: int = 0  #: number of digits after the decimal point
    signed: bool = False  #: True for differences, which are shown with their sign


@dataclass(frozen=True)
class Shown:
    """The format of a column's numbers in all outputs; their decimal points line up."""

    unit: Unit
    fractions: bool = True  #: True if some of the numbers are not whole
    largest: float = math.inf  #: the largest absolute value

    @classmethod
    def of(cls, name: str, numbers: npt.ArrayLike) -> Shown:
        """Return the format for a column or a fact, from its name and its finite numbers."""
        import numpy as np  # here, because the command line uses units without numpy

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
        """The number of digits after the decimal point.

        If the largest number is below 1, it keeps three digits.
        """
        decimals = self.unit.decimals
        if self.unit.quantity in (Quantity.COUNT, Quantity.UNKNOWN):
            if not self.fractions:
                return 0
            decimals = 3 if self.unit.quantity is Quantity.UNKNOWN else 2
        if 0 < self.largest < 1 and decimals:
            decimals = max(decimals, 2 - math.floor(math.log10(self.largest)))
        return min(decimals, _MOST_DECIMALS)

    def text(self, value: float) -> str:
        """Return a number as text without its unit (percentages have it); empty for NaN."""
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
        if isinstance(value, int) and not self.decimals:  # a double would not be exact
            return f"{value:{sign},d}"
        return f"{value:{sign},.{self.decimals}f}"


def is_numeric(series: pd.Series) -> bool:
    """Return True if a column has real numbers, which truth values are not."""
    kinds = pd.api.types
    dtype = series.dtype
    if kinds.is_bool_dtype(dtype) or kinds.is_complex_dtype(dtype):
        return False
    return kinds.is_numeric_dtype(dtype)


_PERCENT = re.compile(r"%|percent|\bpct\b")
_RATE = re.compile(
    r"(?<![A-Za-z])(?:[kKMGT]i?B/s|[kMGTP]?FLOP[sS]?(?:/(?:s|Byte|B))?)(?![A-Za-z])"
)
#: Columns of rates whose names spell the unit with letters, digits and underscores only.
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
#: The unit for each word that names one in the name of a column.
_NAMED = {
    "ns": Unit(Quantity.TIME, "ns"),
    **dict.fromkeys(
        ("us", "µs", "\u03bcs"), _US
    ),  # the last one begins with the Greek letter
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
#: The unit for words of a name that has no unit; earlier entries take precedence.
_UNIT_OF_WORDS = (
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
    """Return the unit of a column, from its name: `avg_time_us` has times in µs."""
    spaced = _BEFORE_CAPITALS.sub(" ", column)
    words = _WORDS.findall(spaced.lower())
    unit = _unsigned_unit(column, words)
    is_difference = not _DIFFERENCE_WORDS.isdisjoint(words)
    is_signed = is_difference and unit.quantity is not Quantity.IDENTIFIER
    return replace(unit, signed=is_signed)


def _unsigned_unit(column: str, words: list[str]) -> Unit:
    """Return the unit of a column as if it had no differences.

    Several parts of a name may tell a unit. The first check that finds one decides, so
    `Kernel duration (µs)_count` is a count.
    """
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
    for word in reversed(words):  # a unit is at the end of a name
        if word in _NAMED:
            return _NAMED[word]
    for unit_words, unit in _UNIT_OF_WORDS:
        if not unit_words.isdisjoint(words):
            return unit
    return Unit(Quantity.UNKNOWN)


#: Units of which each is 1000 times the one before it.
_LADDERS = (("ns", "µs", "ms", "s"), ("B", "kB", "MB", "GB"))


class FittingUnit(NamedTuple):
    """A unit for the numbers of a column."""

    symbol: str
    factor: float  #: multiply the numbers by this to get them in the unit


def fitting_unit(unit: str, largest: float) -> FittingUnit:
    """Return the unit of times or sizes in which a number has one to three digits."""
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
    """Return the name of a column as text; the levels of a name with several are joined."""
    if not isinstance(name, tuple):
        return str(name)
    levels = [str(level) for level in name]
    return " ".join(level for level in levels if level)


#: Words in the name of a column that stand for a unit.
_SPELLED = {"µs": {"us", "µs", "\u03bcs"}, "%": {"%", "percent", "percentage"}}
_SPELLED["10⁹ bytes/s"] = {"gb"}


def with_unit(name: str, unit: str) -> str:
    """Return the name of a column with its unit, unless the name has the unit already."""
    words = set(re.findall(r"[a-zµ\u03bc%]+", name.lower()))
    is_in_name = not unit or words & _SPELLED.get(unit, {unit.lower()})
    return name if is_in_name else f"{name} ({unit})"


def with_units(frame: pd.DataFrame, units: Mapping[str, str]) -> pd.DataFrame:
    """Return a table whose column names have units, from a mapping of columns to units."""
    return frame.rename(
        columns={name: with_unit(name, unit) for name, unit in units.items()}
    )


def fits_a_spreadsheet(value: int) -> bool:
    """Return True if a spreadsheet shows every digit of a whole number (at most 15)."""
    return -_SHOWN_WHOLE < value < _SHOWN_WHOLE
