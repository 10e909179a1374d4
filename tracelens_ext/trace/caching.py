"""What several tables ask of the same events is found once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Further = ParamSpec("Further")
Finding = TypeVar("Finding")


def cached_per_object(
    find: Callable[Concatenate[Subject, Further], Finding],
) -> Callable[Concatenate[Subject, Further], Finding]:
    """Remember what a function finds out about an object, as long as the object lives.

    What it returns must not refer to that object: the two would keep each other alive. Further
    arguments can be hashed; one that is left out is the same as its default.
    """
    parameters = signature(find)
    found: WeakKeyDictionary[Subject, dict[Hashable, Finding]] = WeakKeyDictionary()

    @wraps(find)
    def remembered(subject: Subject, /, *further: Further.args, **named: Further.kwargs) -> Finding:
        of_subject = found.setdefault(subject, {})
        given = parameters.bind(subject, *further, **named)
        given.apply_defaults()
        key = tuple(given.arguments.values())[1:]
        if key not in of_subject:
            of_subject[key] = find(subject, *further, **named)
        return of_subject[key]

    return remembered
