"""The errors that users cause or can remedy.

Library code raises them; only the command line prints them and picks the exit code. A message is
one line that says which file, what is wrong with it, and what to do.
"""

from __future__ import annotations

import os


class TracelensError(Exception):
    """The base class of all errors that are meant for the user."""

    exit_code = 1  #: exit code of the command line: 1 for bad input, 2 for bad usage


class UsageError(TracelensError):
    """Arguments or options name something that does not exist, or contradict each other."""

    exit_code = 2


class TraceError(TracelensError):
    """A trace cannot be analyzed.

    The problem and the remedy are clauses without a full stop.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, remedy: str) -> None:
        self.path = os.fspath(path)
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{self.path}: {problem}; {remedy}")


class TraceNotFoundError(TraceError):
    """The file does not exist, is not a regular file, or may not be read."""

    @classmethod
    def of(cls, path: str | os.PathLike[str], error: Exception) -> TraceNotFoundError:
        """Return the error for a file or folder that cannot be opened."""
        reason = getattr(error, "strerror", None) or error
        return cls(
            path, f"cannot be opened ({reason})", "check the path and its permissions"
        )


class TraceFormatError(TraceError):
    """The file is not a trace that any reader understands."""


class TraceCutOffError(TraceFormatError):
    """The file ends in the middle of its gzip stream or of its JSON document."""


class TraceTooLargeError(TraceError):
    """The file, or a file beside it, contains more text than is allowed."""


class MergedRanksError(TraceError):
    """Several ranks share the file and reuse each other's correlation ids.

    Attributes:
        ranks: the numbers of the ranks; empty if they cannot be told apart.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        problem: str,
        remedy: str,
        ranks: tuple[int, ...] = (),
    ) -> None:
        self.ranks = ranks
        super().__init__(path, problem, remedy)


class RuleError(TracelensError):
    """A rule pack is invalid; the message names the file, the rule and the field."""


class OutputError(TracelensError):
    """A report cannot be written where the user wants it."""


class ConfigurationError(TracelensError):
    """A configuration file is invalid; the message names the file and the key."""
