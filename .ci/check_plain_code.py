"""Reject what packs several thoughts into one line, where no rule of the linter does.

`python .ci/check_plain_code.py [FILE …]` checks these files, or all of the project. It prints one
line for each place and exits with 1 if there is any:

* `a, b = x, y`: two assignments in one statement; a swap (`a, b = b, a`) is fine;
* `[*("a", "b"), "c"]`: a literal within a literal, which only saves lines;
* `# fmt: skip`, `# fmt: off`: the formatter decides.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "tracelens_ext",
    "categorizers",
    "plugins",
    "tests",
    "benchmarks",
    "fuzz",
    "docs",
    ".ci",
)
FORMATTER_SWITCH = re.compile(r"#\s*fmt:\s*(skip|off)\b")


def problems_of(path: Path) -> Iterator[str]:
    """Yield a line for each place of a file that packs."""
    source = path.read_text(encoding="utf-8")
    for number, line in enumerate(source.splitlines(), 1):
        if FORMATTER_SWITCH.search(line) and path != Path(__file__).resolve():
            yield f"{path}:{number}: the formatter decides; take the comment away"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and _assigns_several(node):
            yield f"{path}:{node.lineno}: one assignment a statement"
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and _unpacks_a_literal(
            node
        ):
            yield f"{path}:{node.lineno}: write the items of the inner literal out"


def _assigns_several(node: ast.Assign) -> bool:
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    targets = sorted(map(ast.unparse, target.elts))
    values = sorted(map(ast.unparse, node.value.elts))
    return targets != values


def _unpacks_a_literal(node: ast.List | ast.Tuple | ast.Set) -> bool:
    literals = (ast.List, ast.Tuple, ast.Set)
    return any(
        isinstance(e, ast.Starred) and isinstance(e.value, literals) for e in node.elts
    )


def main(arguments: list[str]) -> int:
    """Check the given files, or all of the project; the exit code."""
    paths = [Path(argument).resolve() for argument in arguments]
    if not paths:
        paths = [
            path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
        ]
    problems = [problem for path in paths for problem in problems_of(path)]
    print("\n".join(problems) or "plain code: no packed statements")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
