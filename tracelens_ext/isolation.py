"""Isolation: a part of a result that fails is left out and reported; the rest arrives.

A part is whatever a reader could do without: a detector, a table, a chart, a sheet, a track of an
export, a section of the terminal report, the roofline, the simulation, the memory analysis.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tracelens_ext.errors import TracelensError

#: With `1` in this environment variable, an unexpected error is raised where it happens.
DEBUG_VARIABLE = "TRACELENS_EXT_DEBUG"


class PartFailedError(TracelensError):
    """A part that others are made from could not be computed; the failure is recorded already."""


@dataclass
class PartFailures:
    """The parts of one result that could not be computed.

    Attributes:
        messages: one sentence for each failed part, in the order of failure, each once.
    """

    messages: list[str] = field(default_factory=list)
    _failed_bases: dict[str, PartFailedError] = field(default_factory=dict, repr=False)

    @contextmanager
    def isolate(self, part: str) -> Iterator[None]:
        """Run a block; an unexpected error in it is recorded and goes no further.

        Neither does the error of a base that failed: what is made from it is missing, too.

        Args:
            part: what the block computes, as it begins a sentence: "The table kernels".

        Raises:
            TracelensError: the block raised it. It is meant for the user and has its remedy.
            Exception: the block raised it, and `TRACELENS_EXT_DEBUG` is 1.
        """
        try:
            yield
        except PartFailedError:
            return
        except TracelensError:
            raise
        except Exception as error:
            if raises_unexpected_errors():
                raise
            self.record(part, error)

    @contextmanager
    def base(self, part: str) -> Iterator[None]:
        """Run a block that others are made from; it is tried once, and a failure is recorded once.

        Args:
            part: what the block computes, as it begins a sentence: "The roofline".

        Raises:
            PartFailedError: the block raised an unexpected error, now or before.
            TracelensError: the block raised it. It is meant for the user and has its remedy.
            Exception: the block raised it, and `TRACELENS_EXT_DEBUG` is 1.
        """
        if part in self._failed_bases:
            raise self._failed_bases[part]
        try:
            yield
        except TracelensError:
            raise
        except Exception as error:
            if raises_unexpected_errors():
                raise
            self.record(part, error)
            failure = PartFailedError(failure_message(part, error))
            self._failed_bases[part] = failure
            raise failure from error

    def record(self, part: str, error: Exception) -> None:
        """Add the sentence about a part that failed."""
        message = failure_message(part, error)
        if message not in self.messages:
            self.messages.append(message)


def failure_message(part: str, error: Exception) -> str:
    """Return the sentence that every output has about a part that failed, in one line."""
    description = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"{part} could not be computed: {description}; please report this"


def raises_unexpected_errors() -> bool:
    """Return whether unexpected errors are raised, as developers and the tests want it."""
    return os.environ.get(DEBUG_VARIABLE) == "1"
