"""Converts values of JSON that was decoded leniently, or that a Python program made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index

from msgspec import Raw

from tracelens_ext.readers.lenient_json import Number
from tracelens_ext.text import encodable


def text_of(value: object) -> str:
    """Return any JSON value as text; bytes that are not UTF-8 become U+FFFD."""
    return "" if value is None else encodable(str(value))


def label_of(value: object) -> int | str:
    """Return the id of a process or thread: a whole number if possible, else a text."""
    if value is None:
        return "?"
    try:
        return int(value) if isinstance(value, Number) else index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return text_of(value)


def present_members(
    members: Mapping[str, object], names: Iterable[str]
) -> dict[str, object]:
    """Return the members with some names that are not null, as values that can be encoded."""
    return {
        name: plain(members[name]) for name in names if members.get(name) is not None
    }


def python_value(value: object) -> object:
    """Return a value that JSON does not have as one that it has.

    A numpy scalar or array becomes a number or a list, any other object a text.
    """
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def plain(value: object) -> object:
    """Return a leniently decoded value as one that can be encoded; numbers keep their digits."""
    if isinstance(value, Number):
        return Raw(value.encode())
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {text_of(key): plain(item) for key, item in value.items()}
    return value
