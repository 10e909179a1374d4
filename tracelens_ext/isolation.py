"""Isolation: if a part of a result fails, it is left out with a message, and the rest arrives.

A part is anything that a result is still useful without: a detector, a table, a chart, a sheet, a
track of an export, a section of the terminal report, the roofline, the simulation, the memory
analysis.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tracelens_ext.errors import TracelensError

#: If this environment variable is `1`, unexpected errors are raised where they happen.
DEBUG_VARIABLE = "TRACELENS_EXT_DEBUG"


class PartFailedError(TracelensError):
    """A part that other parts need could not be computed; this failure is already recorded."""


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
        """Run a block, and record an unexpected error in it instead of raising it.

        A `PartFailedError` is swallowed, too: the block needs a part that failed before.

        Args:
            part: what the block computes, as the beginning of a sentence: "The table kernels".

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
        """Run a block that other parts need. A failure is recorded once, and not tried again.

        Args:
            part: what the block computes, as the beginning of a sentence: "The roofline".

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
    """Return the sentence about a part that failed, in one line. All outputs use it."""
    description = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"{part} could not be computed: {description}; please report this"


def raises_unexpected_errors() -> bool:
    """Return whether unexpected errors are raised, which helps developers and tests."""
    return os.environ.get(DEBUG_VARIABLE) == "1"
