"""What several tables ask of the same events is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Further = ParamSpec("Further")
Answer = TypeVar("Answer")


def cached_per_object(
    compute: Callable[Concatenate[Subject, Further], Answer],
) -> Callable[Concatenate[Subject, Further], Answer]:
    """Remember what a function answers about an object, as long as the object lives.

    The answer must not refer to that object: the two would keep each other alive. Further arguments
    must be hashable; one that is left out is the same as its default.
    """
    parameters = signature(compute)
    answers_about: WeakKeyDictionary[Subject, dict[Hashable, Answer]] = (
        WeakKeyDictionary()
    )

    @wraps(compute)
    def cached(
        subject: Subject, /, *further: Further.args, **named: Further.kwargs
    ) -> Answer:
        answers = answers_about.setdefault(subject, {})
        arguments = parameters.bind(subject, *further, **named)
        arguments.apply_defaults()
        _, *further_values = arguments.arguments.values()
        key = tuple(further_values)
        if key not in answers:
            answers[key] = compute(subject, *further, **named)
        return answers[key]

    return cached
