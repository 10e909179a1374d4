"""The schemas of PyTorch's operations, from the file that `store_schemas.py` wrote."""

from __future__ import annotations

import ast
import gzip
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

SCHEMA_FILE: Final = Path(__file__).with_name("pytorch_schemas.txt.gz")

_PARAMETER: Final = re.compile(
    r"(?P<base>[\w.]+)(?P<list>\?*(?:\[\d*\])?)(?P<optional>\??) (?P<name>\w+)(?:=(?P<default>.*))?"
)
#: A comma that separates parameters, not items of a default such as `[0, 1]`.
_SEPARATOR: Final = re.compile(r", (?![^\[]*\])")
#: Types that differ only in how PyTorch traces sizes. A call takes the same values for both.
_SAME_TYPES: Final = {"SymInt": "int", "SymBool": "bool", "SymFloat": "float"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    base: str  #: the type, or the type of the items of a list: `Tensor`, `Scalar`, `int`, `str` …
    is_list: bool = False
    is_optional: bool = False  #: True if None may be passed
    has_optional_items: bool = False  #: True for a list that may contain None
    is_keyword: bool = False  #: True if it must be passed by its name
    has_default: bool = False
    default: object = None  #: a number, list or text; None without a default

    @property
    def is_tensor(self) -> bool:
        """True if it is a tensor or a list of tensors."""
        return self.base == "Tensor"


@dataclass(frozen=True)
class Schema:
    """An overload of an operation."""

    name: str  #: the operation, such as `aten::add`
    overload: str  #: such as `Tensor`; `default` if PyTorch gives it no name
    parameters: tuple[Parameter, ...]


class SchemaTable(NamedTuple):
    """The operations of a version of PyTorch."""

    version: str
    lines: dict[str, list[str]]  #: the overloads of each operation, as stored

    def overloads(self, name: str) -> list[Schema]:
        """Return the overloads of an operation such as `aten::add`; empty if it is unknown."""
        return [_schema(line) for line in self.lines.get(name, ())]


@cache
def schema_table() -> SchemaTable:
    """Return the stored schemas."""
    packed = SCHEMA_FILE.read_bytes()
    stored = gzip.decompress(packed).decode().splitlines()
    first_line = stored.pop(0)
    lines: dict[str, list[str]] = {}
    for line in stored:
        name, _, _ = line.partition("(")
        operation, _, _ = name.partition(".")
        lines.setdefault(f"aten::{operation}", []).append(line)
    return SchemaTable(first_line.removeprefix("# PyTorch "), lines)


@cache
def _schema(line: str) -> Schema:
    """Return the schema in a stored line such as `add.Tensor(Tensor self, …)`."""
    full_name, _, rest = line.partition("(")
    name, _, overload = full_name.partition(".")
    parameters = []
    is_keyword = False
    for text in _SEPARATOR.split(rest.removesuffix(")")):
        if text == "*":
            is_keyword = True
        elif text:
            parameters.append(_parameter(text, is_keyword=is_keyword))
    return Schema(f"aten::{name}", overload or "default", tuple(parameters))


def _parameter(text: str, *, is_keyword: bool) -> Parameter:
    """Return the parameter in a text such as `int[1]? dim=None`."""
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise ValueError(f"{SCHEMA_FILE.name}: {text!r} is not a parameter")
    default_text = match["default"]
    is_list = "[" in match["list"]
    # The items of `Tensor?[]` may be None; `Tensor?` and `int[]?` may be None themselves.
    has_optional_items = match["list"].startswith("?") and is_list
    is_optional = bool(match["optional"]) or match["list"] == "?"
    base = match["base"]
    return Parameter(
        name=match["name"],
        base=_SAME_TYPES.get(base, base),
        is_list=is_list,
        is_optional=is_optional,
        has_optional_items=has_optional_items,
        is_keyword=is_keyword,
        has_default=default_text is not None,
        default=None if default_text is None else _default(default_text),
    )


def _default(text: str) -> object:
    """Return the value of a default; a name such as `contiguous_format` stays a text."""
    try:
        value: object = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return value
