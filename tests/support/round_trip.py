"""Run a script under PyTorch, and compare what it records with what it was made of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tracelens_ext.reproduce.recorded_values import NotReproducibleError, number_of
from tracelens_ext.reproduce.script import write_script

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.reproduce.specification import (
        RecordedCall,
        RecordedOperation,
        Specification,
    )

#: The same type, as other compilers, and older versions of PyTorch, spell it.
_SPELLINGS = {
    "Int": "Scalar",
    "Double": "Scalar",
    "Bool": "Scalar",
    "long": "long int",
    "short": "short int",
    "unsigned long": "long unsigned int",
}
_PROBLEM = re.compile(
    r"(?P<number>\d+)(?: \S+)?: (?P<problem>(?:failed|skipped|the trace lacks).*)"
)


@cache
def torch_python() -> str:
    """Return the interpreter that has PyTorch: this one, or the one that a variable names."""
    if find_spec("torch") is not None:
        return sys.executable
    other = os.environ.get("TRACELENS_EXT_TORCH_PYTHON")
    if other is None:
        pytest.skip(
            "PyTorch cannot be imported; name a Python that has it with"
            " TRACELENS_EXT_TORCH_PYTHON"
        )
    return other


def run_script(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script under PyTorch."""
    return subprocess.run(
        [torch_python(), str(script), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@dataclass
class RoundTrip:
    """What became of the operations of a specification."""

    operations: int = 0
    equal: set[int] = field(default_factory=set)  #: numbers of operations
    problems: dict[int, str] = field(default_factory=dict)  #: why others are not equal


def round_trip(
    specification: Specification, folder: Path, device: str = "meta"
) -> RoundTrip:
    """Write the script, run it under the profiler, and compare its trace."""
    folder.mkdir(parents=True, exist_ok=True)
    script = write_script(specification)
    result = RoundTrip(len(specification.operations))
    for refusal in script.refusals:
        result.problems[refusal.number] = f"refused: {refusal.reason}"
    path = folder / "bench.py"
    path.write_text(script.text, encoding="utf-8")
    trace = folder / "trace.json"
    answer = run_script(path, "--device", device, "--trace", str(trace))
    assert trace.exists(), answer.stderr
    result.problems |= named_problems(answer.stdout)
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    recorded = _Recorded(events)
    for operation in specification.operations:
        _judge(operation, recorded, result)
    return result


def named_problems(printed: str) -> dict[int, str]:
    """Return what a script says about operations that did not run or were not recorded."""
    problems = {}
    for line in printed.splitlines():
        match = _PROBLEM.match(line)
        if match is not None:
            problems[int(match["number"])] = match["problem"]
    return problems


class _Recorded:
    """The operations of a trace that a script has recorded, by number."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._marks: dict[int, dict[str, Any]] = {}
        for event in events:
            if event.get("cat") == "user_annotation":
                label, _, _ = event["name"].partition(":")
                if label.startswith("operation "):
                    self._marks[int(label.split(" ")[1])] = event
        operations = [event for event in events if event.get("cat") == "cpu_op"]
        self._operations = sorted(operations, key=lambda event: event["ts"])
        self._starts = [event["ts"] for event in self._operations]

    def calls(self, operation: RecordedOperation) -> list[dict[str, Any]]:
        """Return the arguments of calls of the operation within its mark."""
        mark = self._marks.get(operation.number)
        if mark is None:
            return []
        first = bisect_left(self._starts, mark["ts"])
        end = bisect_left(self._starts, mark["ts"] + mark["dur"])
        return [
            event["args"]
            for event in self._operations[first:end]
            if event["name"] == operation.call.name
        ]


def _judge(
    operation: RecordedOperation, recorded: _Recorded, result: RoundTrip
) -> None:
    """Add an operation to those that are equal, or say why it is not."""
    difference = "was not recorded"
    for arguments in recorded.calls(operation):
        difference = _difference(operation.call, arguments)
        if not difference:
            result.equal.add(operation.number)
            return
    result.problems.setdefault(operation.number, difference)


def _difference(call: RecordedCall, arguments: dict[str, Any]) -> str:
    """Return how recorded arguments differ from the original ones; empty for not at all."""
    count = len(call.types)
    types = [_spelled(name) for name in arguments["Input type"][:count]]
    expected = [_spelled(name) for name in call.types]
    if call.concrete is None:
        types = ["" if name == "ScalarList" else name for name in types]
        expected = ["" if name == "ScalarList" else name for name in expected]
    if types != expected:
        return f"types {types} for {expected}"
    dims = _tuples(arguments["Input Dims"][:count])
    if dims != call.dims:
        return f"dims {dims} for {call.dims}"
    strides = _tuples(arguments["Input Strides"][:count])
    if call.strides is not None and strides != call.strides:
        return f"strides {strides} for {call.strides}"
    if call.concrete is not None:
        concrete = list(map(_value, arguments["Concrete Inputs"][:count]))
        expected_values = list(map(_value, call.concrete))
        if concrete != expected_values:
            return f"concrete inputs {concrete} for {expected_values}"
    return ""


def _spelled(name: str) -> str:
    return _SPELLINGS.get(name, name)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _value(text: str) -> object:
    """Return what a text stands for: `0.1` and `0.10000000000000001` are the same number."""
    if text.startswith("["):
        try:
            return [_value(item.strip()) for item in text[1:-1].split(",") if item]
        except ValueError:
            return text
    try:
        number = number_of(text)
    except NotReproducibleError:
        return text
    if isinstance(number, float) and number != number:
        return "nan"
    return (type(number), number)


def is_judged(operation: RecordedOperation) -> bool:
    """Return whether the arguments of one of PyTorch's own operations were recorded in full."""
    call = operation.call
    return (
        call.name.startswith("aten::")
        and bool(call.types)
        and call.concrete is not None
    )
