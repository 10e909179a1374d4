"""What several tables ask of the same events is found once."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

Subject = TypeVar("Subject")
Finding = TypeVar("Finding")


def once_for_each(find: Callable[[Subject], Finding]) -> Callable[[Subject], Finding]:
    """Remember what a function finds out about an object, as long as the object lives.

    Args:
        find: a function of one object, which can be referred to weakly. What it returns must not
            refer to that object: the two would keep each other alive.
    """
    found: WeakKeyDictionary[Subject, Finding] = WeakKeyDictionary()

    @wraps(find)
    def remembered(subject: Subject) -> Finding:
        if subject not in found:
            found[subject] = find(subject)
        return found[subject]

    return remembered
