"""A decorator that computes once what several tables need of the same object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def cached_per_object(
    compute: Callable[Concatenate[Subject, Parameters], Result],
) -> Callable[Concatenate[Subject, Parameters], Result]:
    """Cache the results of a function for its first argument, as long as that object lives.

    A result must not refer to the object: the cache would keep the object alive. Further arguments
    must be hashable. An argument that is left out counts as given with its default.
    """
    parameters = signature(compute)
    results_of: WeakKeyDictionary[Subject, dict[Hashable, Result]] = WeakKeyDictionary()

    @wraps(compute)
    def cached(
        subject: Subject, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        results = results_of.setdefault(subject, {})
        arguments = parameters.bind(subject, *args, **kwargs)
        arguments.apply_defaults()
        _, *parameter_values = arguments.arguments.values()
        key = tuple(parameter_values)
        if key not in results:
            results[key] = compute(subject, *args, **kwargs)
        return results[key]

    return cached
