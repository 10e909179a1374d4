"""Writing the table of what patterns require; see `requirements`.

    $ make requirements

One line a pattern, in order, so that a change of a rule is a change of its line. The tests compare
the table with what the patterns of the packs require.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracelens_ext.categorize.literals import parse_requirements
from tracelens_ext.categorize.offered import offered_packs
from tracelens_ext.categorize.requirements import TABLE, Needed
from tracelens_ext.errors import RuleError
from tracelens_ext.hooks import default_registry

if TYPE_CHECKING:
    from collections.abc import Iterable


def built_in_patterns() -> set[str]:
    """The patterns of all rule packs that come with the project, selectable ones too.

    Raises:
        RuleError: one of the packs cannot be read.
    """
    registry = default_registry(plugins=False)
    patterns = {rule.pattern for offered in offered_packs(registry) for rule in offered.item.rules}
    if registry.problems:
        raise RuleError(registry.problems[0])
    return patterns


def table_text(patterns: Iterable[str]) -> str:
    """The table of these patterns, each parsed now, as the text of the file."""
    lines = [f"{json.dumps(p)}: {_requirements_text(p)}" for p in sorted(set(patterns))]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _requirements_text(pattern: str) -> str:
    requirements = [sorted(map(_arguments, one_of)) for one_of in parse_requirements(pattern)]
    return json.dumps(requirements, separators=(",", ":"))


def _arguments(needed: Needed) -> tuple[str] | tuple[str, bool]:
    return (needed.text, True) if needed.ignore_case else (needed.text,)


if __name__ == "__main__":
    TABLE.write_text(table_text(built_in_patterns()), encoding="utf-8", newline="\n")
