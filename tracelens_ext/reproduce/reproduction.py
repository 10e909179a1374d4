"""The reproduction of operations of a trace: what was recorded, and the script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracelens_ext.reproduce.script import Refusal, Script, write_script
from tracelens_ext.reproduce.selection import (
    OperationChoice,
    ReproductionContext,
    select_operations,
)
from tracelens_ext.reproduce.specification import Specification


@dataclass(frozen=True)
class Reproduction:
    """Operations of a trace, and the script that runs them alone."""

    specification: Specification

    @cached_property
    def script(self) -> str:
        """The source of the script, which needs PyTorch only."""
        return self._written.text

    @property
    def count(self) -> int:
        """The number of operations that the script runs."""
        return self._written.count

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The operations that cannot be reproduced, and why."""
        return self._written.refusals

    @cached_property
    def _written(self) -> Script:
        return write_script(self.specification)


def reproduce(context: ReproductionContext, choice: OperationChoice) -> Reproduction:
    """Return the script of the chosen operations of a trace.

    Raises:
        UsageError: no operation is chosen.
    """
    return Reproduction(select_operations(context, choice))
