"""What a name must contain for a pattern to match it: looked up, else parsed.

The answer depends on nothing but the text of the pattern, and parsing hundreds of patterns takes
longer than categorising the kernels of a trace. So `requirements.json`, beside this file, holds the
answers for the rule packs that come with the project; other people's patterns are parsed
(`literals`). `requirements_table` writes the file. Without it, or with one that is damaged, every
pattern is parsed, with the same answers.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, NamedTuple

TABLE: Final = Path(__file__).with_name("requirements.json")
"""JSON: pattern → its requirements, each a list of the arguments of `Needed`."""


class Needed(NamedTuple):
    """A text that a name may have to contain.

    Attributes:
        text: the text; lower-cased ASCII when `ignore_case`.
        ignore_case: compare in lower case. That holds for ASCII names only: a few other letters
            match an ASCII letter when case is ignored.
    """

    text: str
    ignore_case: bool = False


Requirement = frozenset[Needed]
"""A name that matches contains at least one of these."""


@lru_cache(maxsize=16_384)
def requirements(pattern: str) -> tuple[Requirement, ...]:
    """What every name that `pattern` matches contains.

    Args:
        pattern: a pattern of the `regex` library, version 0 behaviour, compiled without flags.

    Returns:
        Sets of texts: such a name contains at least one text of each set. The most telling come
        first; no set at all when nothing is required or the pattern cannot be judged safely.
    """
    known = _table().get(pattern)
    if known is not None:
        return known
    from tracelens_ext.categorize.literals import parse_requirements

    return parse_requirements(pattern)


@lru_cache(maxsize=1)
def _table() -> dict[str, tuple[Requirement, ...]]:
    """What `TABLE` holds; nothing when it is not there or not such a table."""
    import msgspec

    not_empty = msgspec.Meta(min_length=1)
    shape = dict[str, tuple[Annotated[Requirement, not_empty], ...]]
    try:
        return msgspec.json.decode(TABLE.read_bytes(), type=shape)
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
