"""The calls of operations: the overload, the arguments, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens_ext.reproduce.calls import script_call
from tracelens_ext.reproduce.recorded_values import NotReproducibleError
from tracelens_ext.reproduce.specification import RecordedCall, RecordedOperation

Entry = tuple[str, Any, Any, str]
_NOTHING: Entry = ("", (), (), "")


def _tensor(*sizes: int, kind: str = "float", strides: Any = None) -> Entry:
    if strides is None:
        step = 1
        steps = []
        for size in reversed(sizes):
            steps.append(step)
            step *= size
        strides = tuple(reversed(steps))
    return (kind, sizes, strides, "")


def _number(text: str) -> Entry:
    return ("Scalar", (), (), text)


def _numbers(text: str) -> Entry:
    return ("ScalarList", (), (), text)


def _operation(name: str, *entries: Entry, **facts: Any) -> RecordedOperation:
    types, dims, strides, concrete = zip(*entries, strict=True)
    return RecordedOperation(
        1, RecordedCall(name, dims, types, strides, concrete), **facts
    )


def _lines(name: str, *entries: Entry, **facts: Any) -> list[str]:
    return list(script_call(_operation(name, *entries, **facts)).lines)


def _refusal(operation: RecordedOperation) -> str:
    with pytest.raises(NotReproducibleError) as error:
        script_call(operation)
    return str(error.value)


def test_a_product_has_its_shapes_and_strides() -> None:
    lines = _lines("aten::mm", _tensor(4, 8), _tensor(8, 2, strides=(1, 8)))
    assert lines == [
        "torch.ops.aten.mm.default,",
        "inputs.normal((4, 8), torch.float32),",
        "inputs.normal((8, 2), torch.float32, strides=(1, 8)),",
    ]


@pytest.mark.parametrize(
    ("text", "overload"), [("2", "Scalar"), ("2.5", "Scalar"), ("True", "Scalar")]
)
def test_numbers_choose_the_overload_for_numbers(text: str, overload: str) -> None:
    lines = _lines("aten::eq", _tensor(4), _number(text))
    assert lines[0] == f"torch.ops.aten.eq.{overload},"
    assert lines[2] == f"{text},"


def test_the_types_of_numbers_tell_overloads_apart() -> None:
    by_dim = _lines("aten::max", _tensor(4, 4), _number("-1"), _number("False"))
    assert by_dim[0] == "torch.ops.aten.max.dim,"
    whole = _lines("aten::max", _tensor(4, 4))
    assert whole[0] == "torch.ops.aten.max.default,"


def test_the_last_tensor_of_an_out_overload_is_passed_by_name() -> None:
    lines = _lines("aten::abs", _tensor(3), _tensor(0))
    assert lines[0] == "torch.ops.aten.abs.out,"
    assert lines[2] == "out=inputs.normal((0,), torch.float32),"


def test_types_and_memory_formats_have_their_names() -> None:
    lines = _lines(
        "aten::sum", _tensor(4), _numbers("[0]"), _number("True"), _number("15")
    )
    assert lines[-1] == "dtype=torch.bfloat16,"


def test_indices_are_within_what_they_index() -> None:
    index = _tensor(5, kind="long int")
    lines = _lines("aten::index_select", _tensor(3, 7), _number("1"), index)
    assert lines[-1] == "inputs.integers((5,), torch.int64, high=7),"


def test_a_number_tensor_beside_tensors_is_a_python_number() -> None:
    lines = _lines("aten::mul", _tensor(4), ("double", (), (), ""))
    assert lines[-1] == "1.5,  # guessed: a Python number"


def test_a_copy_from_the_host_has_its_source_there() -> None:
    entries = (_tensor(4), _tensor(4), _number("True"))
    kernels = ("Memcpy HtoD (Pinned -> Device)",)
    lines = _lines("aten::copy_", *entries, kernels=kernels)
    assert lines[1] == "inputs.normal((4,), torch.float32),"
    assert "on_host=True, pinned=True" in lines[2]


def test_the_type_of_a_list_is_that_of_its_kernels() -> None:
    entries = (("TensorList", ((2,), (3,)), ((1,), (1,)), ""), _number("0"))
    named = _lines("aten::cat", *entries, kernels=("cat<c10::BFloat16>",))
    assert named[1] == "# dtype guessed: not recorded for tensors in lists"
    assert named[3] == "    inputs.normal((2,), torch.bfloat16),"
    unnamed = _lines("aten::cat", *entries)
    assert unnamed[3] == "    inputs.normal((2,), torch.float32),"


def test_a_long_list_was_recorded_empty_and_is_refused() -> None:
    reason = _refusal(_operation("aten::cat", ("TensorList", (), (), ""), _number("0")))
    assert "more than 30" in reason


def test_numbers_that_were_not_recorded_are_never_made_up() -> None:
    call = RecordedCall(
        "aten::softmax", dims=((4, 4), (), ()), types=("float", "Scalar", "")
    )
    assert "`dim` was not recorded" in _refusal(RecordedOperation(1, call))


def test_a_scale_that_was_not_recorded_has_its_default() -> None:
    call = RecordedCall(
        "aten::add", dims=((4,), (4,), ()), types=("float", "float", "Scalar")
    )
    lines = script_call(RecordedOperation(1, call)).lines
    assert lines[0] == "torch.ops.aten.add.Tensor,"
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (_operation("aten::gone", _tensor(1)), "has no aten::gone"),
        (_operation("c10d::allreduce_", _tensor(1)), "other ranks"),
        (_operation("ProfilerStep#1", _tensor(1)), "not an operation of PyTorch"),
        (_operation("aten::mm", _tensor(1)), "no overload of aten::mm"),
        (RecordedOperation(1, RecordedCall("aten::mm")), "record_shapes=True"),
        (_operation("aten::neg", ("float", (-1,), (1,), "")), "are invalid"),
        (_operation("aten::neg", ("float", (2,), (), "")), "without strides"),
        (_operation("aten::neg", ("MyType", (2,), (1,), "")), "no type 'MyType'"),
        (_operation("aten::index", _tensor(4), _NOTHING), "indices were not recorded"),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_reason(
    operation: RecordedOperation, reason: str
) -> None:
    assert reason in _refusal(operation)


def test_the_children_of_index_tell_its_indices() -> None:
    children = (
        RecordedCall(
            "aten::as_strided",
            ((8, 9, 10), (), (), ()),
            ("float", "ScalarList", "ScalarList", ""),
            None,
            ("", "[8, 4, 10]", "[90, 0, 1]", ""),
        ),
        RecordedCall(
            "aten::reshape",
            ((4,), ()),
            ("long int", "ScalarList"),
            None,
            ("", "[1, 4, 1]"),
        ),
        RecordedCall("aten::view", ((4,), ()), ("long int", "ScalarList")),
    )
    lines = _lines("aten::index", _tensor(8, 9, 10), _NOTHING, children=children)
    assert lines[-3:] == [
        "    None,",
        "    inputs.integers((4,), torch.int64, high=9),",
        "],",
    ]


def test_an_operation_of_a_package_imports_it() -> None:
    call = script_call(_operation("_moe_C::moe_sum", _tensor(2, 2), _number("3")))
    assert call.opening == "package_call("
    assert call.lines[:2] == ('"_moe_C::moe_sum",', '"vllm._moe_C",')
    assert call.lines[-1] == "3,"
