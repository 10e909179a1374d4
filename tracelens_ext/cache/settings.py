"""Where the user's cache is, how big it may get, and whether there is one: the environment says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tracelens_ext.errors import UsageError

FOLDER_VARIABLE = "TRACELENS_EXT_CACHE_DIR"
SIZE_VARIABLE = "TRACELENS_EXT_CACHE_SIZE"
OFF_VARIABLE = "TRACELENS_EXT_NO_CACHE"
DEFAULT_SIZE = 5 * 10**9

_SIZE = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def cache_is_off() -> bool:
    """Whether the environment switches the cache off."""
    return os.environ.get(OFF_VARIABLE, "").strip() not in ("", "0")


def cache_folder() -> Path:
    """The folder of the user's cache: what the environment says, else where caches are."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("tracelens-ext", appauthor=False)


def cache_limit() -> int:
    """The bytes that the user's cache may hold: what the environment says, else 5 GB.

    Raises:
        UsageError: that is no size.
    """
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text.strip():
        return DEFAULT_SIZE
    size = parse_size(text)
    if size is None:
        raise UsageError(f"{SIZE_VARIABLE}={text!r} is no size; write it as 5GB or 500MB")
    return size


def parse_size(text: str) -> int | None:
    """The bytes that `5GB`, `500 MB`, `1.5GiB` or `100` stand for; None of what is no size."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    number, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    power = " kmgt".index(prefix.lower()) if prefix else 0
    return int(float(number) * base**power)
