"""What can go wrong, each with a message that tells the user what to do.

Library code raises these; only the command line prints them and picks the exit code.
Every message is one line: which file, what is wrong with it, what to do.
"""

from __future__ import annotations

import os


class TracelensError(Exception):
    """The base of every error this package raises on purpose."""

    exit_code = 1  #: what the command line exits with: 1 for bad input, 2 for bad usage


class UsageError(TracelensError):
    """The caller asked for something that does not exist or does not go together."""

    exit_code = 2


class TraceError(TracelensError):
    """A trace cannot be analyzed: the file, what is wrong with it, what the user can do about it.

    Problem and remedy are clauses without a full stop.
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
        """The error for a file or folder that cannot be opened."""
        reason = getattr(error, "strerror", None) or error
        return cls(
            path, f"cannot be opened ({reason})", "check the path and its permissions"
        )


class TraceFormatError(TraceError):
    """The file is not a trace that any reader understands."""


class TraceCutOffError(TraceFormatError):
    """The file ends in the middle: of the gzip stream or of the JSON document."""


class TraceTooLargeError(TraceError):
    """The file unpacks to more text than is allowed."""


class MergedRanksError(TraceError):
    """Several ranks share the file and reuse each other's correlation ids.

    Attributes:
        ranks: their numbers; empty where they cannot be told apart.
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
    """A rule pack is invalid: the message names file, rule, field and what was expected."""


class OutputError(TracelensError):
    """A report cannot be written where the user wants it."""


class ConfigurationError(TracelensError):
    """A configuration file is invalid: the message names file, key and what was expected."""
