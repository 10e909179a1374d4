"""Writes the script that runs operations in isolation: a function for each, and a benchmark."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tracelens_ext.reproduce.argument_source import ArgumentSource
from tracelens_ext.reproduce.calls import ScriptCall, script_call
from tracelens_ext.reproduce.recorded_values import NotReproducibleError
from tracelens_ext.reproduce.schemas import schema_table
from tracelens_ext.reproduce.specification import (
    RecordedOperation,
    RecordedTimes,
    Specification,
)
from tracelens_ext.reproduce.tensor_source import usual_half_type
from tracelens_ext.text import encodable

_TEMPLATE: Final = Path(__file__).with_name("templates") / "runtime.py"
#: The first characters of every script.
BEGINNING: Final = '"""Operations of '
_OPERATIONS_MARK: Final = "# OPERATIONS\n"
_STAND_INS_MARK: Final = "# STAND-INS\n"
_MEASUREMENT_MARK: Final = "# MEASUREMENT\n"
#: Line ends and other control characters, which must not occur in a docstring.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
#: Operations that need a stand-in only if they convert 16-bit floats to float32.
_CONVERTING: Final = ("aten::_softmax", "aten::_log_softmax")
_MOST_NAME_CHARACTERS: Final = 120


@dataclass(frozen=True)
class Refusal:
    """An operation that a script cannot run."""

    number: int
    name: str
    reason: str

    @property
    def sentence(self) -> str:
        """The message for the user."""
        return (
            f"operation {self.number}, {self.name}, cannot be reproduced: {self.reason}"
        )


def refusal_sentences(refusals: Sequence[Refusal]) -> list[str]:
    """Return a message for each reason, with the operations that cannot be reproduced."""
    refusals_by_reason: defaultdict[str, list[Refusal]] = defaultdict(list)
    for refusal in refusals:
        refusals_by_reason[refusal.reason].append(refusal)
    sentences = []
    for reason, similar in refusals_by_reason.items():
        if len(similar) == 1:
            sentences.append(similar[0].sentence)
            continue
        names = ", ".join(f"{refusal.number} {refusal.name}" for refusal in similar)
        sentences.append(
            f"{len(similar)} operations cannot be reproduced: {reason}: {names}"
        )
    return sentences


@dataclass(frozen=True)
class Script:
    """A script and the operations that it cannot run."""

    text: str
    count: int  #: operations that it runs
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class _TemplateFunction:
    """A function of the template that only some scripts need."""

    name: str
    source: str
    operation: str | None  #: the operation that it stands in for; None for a helper


@dataclass(frozen=True)
class _Template:
    """The parts of a script that do not depend on the operations."""

    before: str
    functions: tuple[_TemplateFunction, ...]
    after: str

    def functions_for(self, operations: Collection[str]) -> list[str]:
        """Return the source of the stand-ins for operations, and of the helpers they call."""
        sources: dict[str, str] = {}
        for function in self.functions:
            if function.operation in operations:
                sources[function.name] = function.source
        helpers = [function for function in self.functions if not function.operation]
        # Helpers only call helpers before them, so the last one comes first here.
        for helper in reversed(helpers):
            call = re.compile(rf"\b{helper.name}\(")
            if any(call.search(source) for source in sources.values()):
                sources[helper.name] = helper.source
        return [
            function.source for function in self.functions if function.name in sources
        ]


def write_script(specification: Specification) -> Script:
    """Return the script that runs the operations of a specification."""
    half_type = usual_half_type(specification.operations)
    refusals: list[Refusal] = []
    operations: list[str] = []
    names_with_stand_ins: set[str] = set()
    for operation in specification.operations:
        try:
            call = script_call(operation, half_type)
        except NotReproducibleError as error:
            name = plain_text(operation.call.name)
            reason = plain_text(str(error))
            refusals.append(Refusal(operation.number, name, reason))
            operations.append(_refusal_source(refusals[-1]))
            continue
        operations.append(_operation_source(operation, call))
        if _may_need_stand_in(operation):
            names_with_stand_ins.add(operation.call.name)
    template = _template()
    stand_ins = template.functions_for(names_with_stand_ins)
    text = _docstring(specification) + _joined([template.before] + operations)
    text += "\n\n" + _joined(stand_ins + [template.after])
    return Script(text, len(operations) - len(refusals), tuple(refusals))


def _may_need_stand_in(operation: RecordedOperation) -> bool:
    """Return whether a backend may lack a kernel for an operation."""
    if operation.call.name in _CONVERTING:
        return bool(operation.call.concrete) and "True" in (
            operation.call.concrete or ()
        )
    return True


def _joined(parts: Sequence[str]) -> str:
    """Return parts of a module, two empty lines apart."""
    return "\n\n".join(part.strip("\n") + "\n" for part in parts)


def plain_text(text: str) -> str:
    """Return a text from a trace in a form that fits on one line of a script."""
    single_line = _CONTROLS.sub(" ", encodable(text))
    if len(single_line) <= _MOST_NAME_CHARACTERS:
        return single_line
    return single_line[: _MOST_NAME_CHARACTERS - 1] + "…"


def _docstring(specification: Specification) -> str:
    """Return the docstring of a script, which names the source of its operations."""
    source = plain_text(specification.source).replace("\\", "/").replace('"', "'")
    return f'''{BEGINNING}{source}, to run one by one.

The inputs of each operation have the recorded shapes, strides and types. The script prints the
time of each operation beside the recorded one. Comments mark what is guessed, because the trace
does not show it. See `--help` for the options.

Written by tracelens-ext with the operation schemas of PyTorch {schema_table().version}.
"""

'''


def _operation_source(operation: RecordedOperation, call: ScriptCall) -> str:
    """Return the function of an operation."""
    facts = [
        str(operation.number),
        string_literal(operation.call.name),
        string_literal(call.summary),
        f"calls={operation.calls}",
    ]
    if operation.gpu_us is not None:
        facts.append(f"recorded_us={_times_text(operation.gpu_us)}")
    if operation.before_us is not None:
        facts.append(f"before_us={_times_text(operation.before_us)}")
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
    rounded = [round(time, 3) for time in (times.median, times.shortest, times.longest)]
    return repr(tuple(rounded))


def _refusal_source(refusal: Refusal) -> str:
    arguments = [
        str(refusal.number),
        string_literal(refusal.name),
        string_literal(refusal.reason),
    ]
    call = ArgumentSource.of_call("not_reproduced", arguments)
    return "\n".join(call.lines(indent=0, ending="")) + "\n"


def string_literal(text: str) -> str:
    """Return a text as a Python literal in double quotes with only ASCII characters."""
    escaped = encodable(text).encode("unicode_escape").decode("ascii")
    quoted = escaped.replace('"', '\\"')
    return f'"{quoted}"'


@cache
def _template() -> _Template:
    """Return the parts of the template."""
    text = _TEMPLATE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_OPERATIONS_MARK)
    _, _, rest = rest.partition(_STAND_INS_MARK)
    functions, _, after = rest.partition(_MEASUREMENT_MARK)
    return _Template(before, tuple(_functions(functions)), after)


def _functions(source: str) -> Iterator[_TemplateFunction]:
    """Yield each function of a part of the template."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        first = node.lineno
        operation: str | None = None
        for decorator in node.decorator_list:
            first = min(first, decorator.lineno)
            if isinstance(decorator, ast.Call):
                operation = ast.literal_eval(decorator.args[0])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        yield _TemplateFunction(node.name, text, operation)
