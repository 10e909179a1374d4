"""The script that runs operations alone: a function for each, and what measures them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tracelens_ext.reproduce.calls import ScriptCall, script_call, usual_half_type
from tracelens_ext.reproduce.recorded_values import NotReproducibleError
from tracelens_ext.reproduce.schemas import schema_table
from tracelens_ext.reproduce.specification import (
    RecordedOperation,
    RecordedTimes,
    Specification,
)
from tracelens_ext.text import encodable

_TEMPLATE: Final = Path(__file__).with_name("templates") / "runtime.py"
#: How each script begins.
BEGINNING: Final = '"""Operations of '
_OPERATIONS_MARK: Final = "# OPERATIONS\n"
_STAND_INS_MARK: Final = "# STAND-INS\n"
_MEASUREMENT_MARK: Final = "# MEASUREMENT\n"
#: What must not stand in a comment or a docstring: ends of lines and other controls.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MOST_NAME_CHARACTERS: Final = 120


@dataclass(frozen=True)
class Refusal:
    """An operation that is not in a script."""

    number: int
    name: str
    reason: str

    @property
    def sentence(self) -> str:
        """Return what a person reads of it."""
        return f"operation {self.number}, {self.name}, is not reproduced: {self.reason}"


@dataclass(frozen=True)
class Script:
    """A script, and what could not be part of it."""

    text: str
    count: int  #: operations that it runs
    refusals: tuple[Refusal, ...]


class _Template(NamedTuple):
    """The parts of the script that are the same for all operations."""

    before: str
    stand_ins: dict[
        str, str
    ]  #: the function that stands in for an operation, by its name
    helpers: str  #: what stand-ins call
    after: str


def write_script(specification: Specification) -> Script:
    """Return the script that runs the operations of a specification."""
    template = _template()
    half_type = usual_half_type(specification.operations)
    refusals: list[Refusal] = []
    parts: list[str] = []
    names: set[str] = set()
    for operation in specification.operations:
        name = plain_text(operation.call.name)
        try:
            call = script_call(operation, half_type)
        except NotReproducibleError as error:
            reason = plain_text(str(error))
            refusals.append(Refusal(operation.number, name, reason))
            parts.append(_refusal_text(refusals[-1]))
            continue
        names.add(operation.call.name)
        parts.append(_operation_text(operation, call))
    stand_ins = [text for name, text in template.stand_ins.items() if name in names]
    if any("attention" in text for text in stand_ins):
        stand_ins.append(template.helpers)
    text = "\n\n".join(
        part.strip("\n") + "\n"
        for part in (
            _docstring(specification),
            template.before,
            *parts,
            *stand_ins,
            template.after,
        )
    )
    return Script(text, len(parts) - len(refusals), tuple(refusals))


def plain_text(text: str) -> str:
    """Return a text of a trace as it may stand in a line of the script."""
    single_line = _CONTROLS.sub(" ", encodable(text))
    if len(single_line) <= _MOST_NAME_CHARACTERS:
        return single_line
    return single_line[: _MOST_NAME_CHARACTERS - 1] + "…"


def _docstring(specification: Specification) -> str:
    source = plain_text(specification.source).replace("\\", "/").replace('"', "'")
    return f'''{BEGINNING}{source}, in isolation.

Each operation gets inputs like those of the trace; its time is printed beside the recorded one.
`--help` shows the options. A comment on an argument marks what is guessed.
Written by tracelens-ext, with the schemas of PyTorch {schema_table().version}.
"""
'''


def _operation_text(operation: RecordedOperation, call: ScriptCall) -> str:
    """Return the function of an operation."""
    facts = [
        str(operation.number),
        _string(operation.call.name),
        _string(call.summary),
        f"calls={operation.calls}",
    ]
    for name, times in (
        ("recorded_us", operation.gpu_us),
        ("before_us", operation.before_us),
    ):
        if times is not None:
            facts.append(f"{name}={_times_text(times)}")
    if operation.flops is not None:
        facts.append(f"flops={operation.flops}")
    if operation.moved_bytes is not None:
        facts.append(f"moved_bytes={operation.moved_bytes}")
    lines = ["@operation("]
    lines += [f"    {fact}," for fact in facts]
    lines.append(")")
    lines.append(f"def operation_{operation.number}(inputs):")
    lines.append(f"    return {call.opening}")
    lines += [f"        {line}" for line in call.lines]
    lines.append("    )")
    return "\n".join(lines) + "\n"


def _times_text(times: RecordedTimes) -> str:
    """Return the median, the shortest and the longest time as a tuple."""
    shown = (times.median, times.shortest, times.longest)
    return f"({', '.join(repr(round(time, 3)) for time in shown)})"


def _refusal_text(refusal: Refusal) -> str:
    name = _string(refusal.name)
    reason = _string(refusal.reason)
    return f"not_reproduced({refusal.number}, {name}, {reason})\n"


def _string(text: str) -> str:
    """Return a text as a Python literal in double quotes."""
    return json.dumps(encodable(text), ensure_ascii=True)


@cache
def _template() -> _Template:
    """Return the parts of the file that scripts are made of."""
    text = _TEMPLATE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_OPERATIONS_MARK)
    _, _, rest = rest.partition(_STAND_INS_MARK)
    functions, _, after = rest.partition(_MEASUREMENT_MARK)
    stand_ins: dict[str, str] = {}
    helpers: list[str] = []
    for source, name in _functions(functions):
        if name is None:
            helpers.append(source)
        else:
            stand_ins[name] = source
    return _Template(before, stand_ins, "\n\n\n".join(helpers), after)


def _functions(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield each function of a source, and the operation that it stands in for, if it does."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        first = node.lineno
        name: str | None = None
        for decorator in node.decorator_list:
            first = min(first, decorator.lineno)
            if isinstance(decorator, ast.Call):
                name = ast.literal_eval(decorator.args[0])
        yield "\n".join(lines[first - 1 : node.end_lineno]), name
