"""The script: what it contains, and that it is source of Python whatever a trace says."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_job import write_demo_trace
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.errors import UsageError
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.reproduce.reproduction import Reproduction
from tracelens_ext.reproduce.script import (
    Refusal,
    refusal_sentences,
    string_literal,
    write_script,
)
from tracelens_ext.reproduce.specification import (
    RecordedCall,
    RecordedOperation,
    Specification,
    specification_of,
)
from tracelens_ext.reproduce.stored_operations import read_stored_operations


@pytest.fixture(scope="module")
def analyzer(tmp_path_factory: pytest.TempPathFactory) -> TreePerfAnalyzer:
    path = tmp_path_factory.mktemp("demo") / "trace.json.gz"
    write_demo_trace(path, steps=1)
    return TreePerfAnalyzer(path)


def test_the_ten_longest_operations_are_in_the_script(
    analyzer: TreePerfAnalyzer,
) -> None:
    reproduction = analyzer.reproduction()
    operations = reproduction.specification.operations
    assert [operation.number for operation in operations] == list(range(1, 11))
    times = [operation.gpu_us.total for operation in operations if operation.gpu_us]
    assert times == sorted(times, reverse=True)
    assert reproduction.count + len(reproduction.refusals) == 10


def test_imports_at_the_top_are_pytorch_and_the_standard_library(
    analyzer: TreePerfAnalyzer,
) -> None:
    tree = ast.parse(analyzer.reproduction().script)
    modules: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    assert modules - set(sys.stdlib_module_names) == {"torch"}


def test_a_row_of_the_table_is_one_operation(analyzer: TreePerfAnalyzer) -> None:
    table = analyzer.get_df_kernel_launchers_unique_args()
    row = table.index[table["name"] == "aten::mm"][0] + 1
    (operation,) = analyzer.reproduction(row=int(row)).specification.operations
    assert operation.call.name == "aten::mm"
    assert str(operation.call.dims) == table["Input Dims"].iloc[row - 1]
    with pytest.raises(UsageError, match=r"--row 100000: .* has rows 1 to"):
        analyzer.reproduction(row=100_000)


def test_a_name_chooses_operations(analyzer: TreePerfAnalyzer) -> None:
    operations = analyzer.reproduction("^aten::mm$", top=0).specification.operations
    assert {operation.call.name for operation in operations} == {"aten::mm"}
    with pytest.raises(UsageError, match="no operation with GPU work matches"):
        analyzer.reproduction("no such operation")


def test_a_finding_chooses_operations(analyzer: TreePerfAnalyzer) -> None:
    finding = next(
        entry
        for entry in analyzer.findings().findings
        if entry.claim is not None
        and len(entry.claim.events)
        and entry.id != "exposed-communication"
    )
    assert analyzer.reproduction(finding=finding.id).specification.operations
    with pytest.raises(UsageError, match="no such finding"):
        analyzer.reproduction(finding="nothing")


def test_the_specification_gives_the_same_script(
    analyzer: TreePerfAnalyzer, tmp_path: Path
) -> None:
    reproduction = analyzer.reproduction(top=0)
    path = tmp_path / "operations.json"
    path.write_text(reproduction.specification.as_json(), encoding="utf-8")
    stored = read_stored_operations(path)
    assert stored == reproduction.specification
    assert Reproduction(stored).script == reproduction.script


def test_a_damaged_specification_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "operations.json"
    path.write_text('{"format": "tracelens-ext operations", "version": 9}', "utf-8")
    with pytest.raises(UsageError, match=r"operations\.json: its version is 9"):
        read_stored_operations(path)
    path.write_text('{"format": "tracelens-ext operations", "version": 1}', "utf-8")
    with pytest.raises(UsageError, match="not a valid specification"):
        read_stored_operations(path)
    path.write_text('{"format": "tracelens-ext operations"', "utf-8")
    with pytest.raises(UsageError, match="is not valid JSON"):
        read_stored_operations(path)


def test_a_replay_file_of_tracelens_is_read(tmp_path: Path) -> None:
    tensor = {"shape": [4, 8], "dtype": "c10::BFloat16", "strides": [8, 1]}
    arguments = [
        {"arg_name": "self", "arg_type": "Tensor", "value": tensor},
        {"arg_name": "dim", "arg_type": "int", "value": 1},
        {"arg_name": "half_to_float", "arg_type": "bool", "value": False},
    ]
    entry = {
        "op_name": "aten::_softmax",
        "count": 3,
        "replay_ir": {"list_pos_args": arguments, "list_kwargs": []},
    }
    path = tmp_path / "event_replay_ir.json"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    stored = read_stored_operations(path)
    assert stored is not None
    script = write_script(stored)
    assert script.count == 1
    assert "torch.ops.aten._softmax.default" in script.text
    assert "inputs.normal((4, 8), torch.bfloat16)" in script.text


def test_a_trace_is_no_stored_specification(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"name": "replay_ir"}]}', encoding="utf-8")
    assert read_stored_operations(path) is None


_TEXT = st.text(max_size=30)
_DIMS = st.recursive(st.integers(-3, 2**64), lambda items: st.lists(items).map(tuple))


@given(
    name=_TEXT | st.sampled_from(["aten::mm", "aten::cat", "aten::index", "x::y"]),
    types=st.lists(_TEXT | st.sampled_from(["float", "Scalar", "TensorList", ""])),
    dims=st.lists(_DIMS, max_size=4),
    concrete=st.none() | st.lists(_TEXT, max_size=4),
    source=_TEXT,
)
def test_whatever_a_trace_says_the_script_is_source_that_only_defines(
    name: str,
    types: list[str],
    dims: list[object],
    concrete: list[str] | None,
    source: str,
) -> None:
    texts = None if concrete is None else tuple(concrete)
    call = RecordedCall(name, tuple(dims), tuple(types), None, texts)
    script = write_script(Specification(source, (RecordedOperation(1, call),)))
    own_part, _, _ = script.text.partition("class Inputs:")
    module = ast.parse(own_part)
    calls = [
        ast.unparse(node.value.func)
        for node in module.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    assert set(calls) <= {"not_reproduced"}


def test_a_document_of_other_types_is_refused() -> None:
    document = {"version": 1, "source": "x", "operations": [{"number": "one"}]}
    with pytest.raises(UsageError, match="not a valid specification"):
        specification_of(document, Path("x.json"))


def test_a_page_copies_the_command_for_a_row(analyzer: TreePerfAnalyzer) -> None:
    report = build_perf_report(analyzer)
    path = analyzer.trace.provenance.path
    command = report.row_commands["ops_unique_args"]
    assert command.text == f"tracelens-ext reproduce {path} --row {{row}} -o bench.py"
    assert command.needed_column in report.sheets["ops_unique_args"]


def test_rows_that_the_command_numbers_differently_have_none(
    analyzer: TreePerfAnalyzer,
) -> None:
    report = build_perf_report(analyzer, group_by_num_kernels=True)
    assert report.row_commands == {}


def test_a_text_is_one_ascii_literal_whatever_it_contains() -> None:
    text = 'a"b\\c\nd\u2028e\U0001f600"""\x00'
    literal = string_literal(text)
    assert literal.isascii()
    assert ast.literal_eval(literal) == text


def test_refusals_with_the_same_reason_are_one_message() -> None:
    refusals = [
        Refusal(1, "aten::a", "no shapes"),
        Refusal(2, "aten::b", "no types"),
        Refusal(3, "aten::c", "no shapes"),
    ]
    assert refusal_sentences(refusals) == [
        "2 operations cannot be reproduced: no shapes: 1 aten::a, 3 aten::c",
        "operation 2, aten::b, cannot be reproduced: no types",
    ]


def test_a_specification_with_impossible_numbers_is_refused() -> None:
    call = {"name": "aten::mm", "dims": [], "types": [], "strides": [], "concrete": []}
    operation: dict[str, Any] = {"number": 0, "call": call}
    document = {"version": 1, "source": "x", "operations": [operation]}
    with pytest.raises(UsageError, match="is less than 1"):
        specification_of(document, Path("x.json"))
    operation["number"] = 1
    times = {"median": float("nan"), "shortest": 1.0, "longest": 1.0, "total": 1.0}
    operation["gpu_us"] = times
    with pytest.raises(UsageError, match="a time that is not finite"):
        specification_of(document, Path("x.json"))
