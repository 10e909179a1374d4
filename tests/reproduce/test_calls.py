"""The calls of operations: the overload, the arguments, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.recorded_calls import Entry, numbers, operation, scalar, tensor
from tracelens_ext.reproduce.calls import script_call
from tracelens_ext.reproduce.recorded_values import NotReproducibleError
from tracelens_ext.reproduce.specification import RecordedCall, RecordedOperation

_NOTHING: Entry = ("", (), (), "")


def _lines(name: str, *entries: Entry, **facts: Any) -> list[str]:
    return list(script_call(operation(name, *entries, **facts)).lines)


def _refusal(operation: RecordedOperation) -> str:
    with pytest.raises(NotReproducibleError) as error:
        script_call(operation)
    return str(error.value)


def test_a_product_has_its_shapes_and_strides() -> None:
    lines = _lines("aten::mm", tensor(4, 8), tensor(8, 2, strides=(1, 8)))
    assert lines == [
        "torch.ops.aten.mm.default,",
        "inputs.normal((4, 8), torch.float32),",
        "inputs.normal((8, 2), torch.float32, strides=(1, 8)),",
    ]


@pytest.mark.parametrize(
    ("text", "overload"), [("2", "Scalar"), ("2.5", "Scalar"), ("True", "Scalar")]
)
def test_numbers_choose_the_overload_for_numbers(text: str, overload: str) -> None:
    lines = _lines("aten::eq", tensor(4), scalar(text))
    assert lines[0] == f"torch.ops.aten.eq.{overload},"
    assert lines[2] == f"{text},  # other"


def test_the_types_of_numbers_tell_overloads_apart() -> None:
    by_dim = _lines("aten::max", tensor(4, 4), scalar("-1"), scalar("False"))
    assert by_dim[0] == "torch.ops.aten.max.dim,"
    whole = _lines("aten::max", tensor(4, 4))
    assert whole[0] == "torch.ops.aten.max.default,"


def test_the_last_tensor_of_an_out_overload_is_passed_by_name() -> None:
    lines = _lines("aten::abs", tensor(3), tensor(0))
    assert lines[0] == "torch.ops.aten.abs.out,"
    assert lines[2] == "out=inputs.normal((0,), torch.float32),"


def test_types_and_memory_formats_have_their_names() -> None:
    lines = _lines("aten::sum", tensor(4), numbers("[0]"), scalar("True"), scalar("15"))
    assert lines[-1] == "dtype=torch.bfloat16,"


def test_indices_are_within_what_they_index() -> None:
    index = tensor(5, kind="long int")
    lines = _lines("aten::index_select", tensor(3, 7), scalar("1"), index)
    assert lines[-1] == "inputs.integers((5,), torch.int64, high=7),"


def test_a_number_tensor_beside_tensors_is_a_python_number() -> None:
    lines = _lines("aten::mul", tensor(4), ("double", (), (), ""))
    assert lines[-1] == "1.5,  # guessed: a Python number"


@pytest.mark.parametrize("name", ["aten::__lshift__", "aten::__ilshift__"])
def test_an_operator_shifts_by_small_numbers_in_place_or_not(name: str) -> None:
    whole_numbers = tensor(4, kind="long int")
    lines = _lines(name, whole_numbers, whole_numbers)
    assert lines[0] == f"torch.ops.{name.replace('::', '.')}.Tensor,"
    assert lines[2] == "inputs.integers((4,), torch.int64, low=1, high=4),"


def test_the_target_of_an_operator_in_place_is_not_a_python_number() -> None:
    single = tensor(kind="long int")
    lines = _lines("aten::__iand__", single, tensor(1, kind="long int"))
    assert lines[1] == "inputs.integers((), torch.int64),"


def test_a_copy_from_the_host_has_its_source_there() -> None:
    entries = (tensor(4), tensor(4), scalar("True"))
    kernels = ("Memcpy HtoD (Pinned -> Device)",)
    lines = _lines("aten::copy_", *entries, kernels=kernels)
    assert lines[1] == "inputs.normal((4,), torch.float32),"
    assert "on_host=True, pinned=True" in lines[2]


def test_the_type_of_a_list_is_that_of_its_kernels() -> None:
    entries = (("TensorList", ((2,), (3,)), ((1,), (1,)), ""), scalar("0"))
    named = _lines("aten::cat", *entries, kernels=("cat<c10::BFloat16>",))
    assert named[1] == "# dtype guessed: not recorded for tensors in lists"
    assert named[3] == "    inputs.normal((2,), torch.bfloat16),"
    unnamed = _lines("aten::cat", *entries)
    assert unnamed[3] == "    inputs.normal((2,), torch.float32),"


def test_a_long_list_was_recorded_empty_and_is_refused() -> None:
    reason = _refusal(operation("aten::cat", ("TensorList", (), (), ""), scalar("0")))
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
        (operation("aten::gone", tensor(1)), "has no aten::gone"),
        (operation("c10d::allreduce_", tensor(1)), "other ranks"),
        (operation("ProfilerStep#1", tensor(1)), "not an operation of PyTorch"),
        (operation("aten::mm", tensor(1)), "no overload of aten::mm"),
        (RecordedOperation(1, RecordedCall("aten::mm")), "record_shapes=True"),
        (operation("aten::neg", ("float", (-1,), (1,), "")), "are invalid"),
        (operation("aten::neg", ("float", (2,), (), "")), "without strides"),
        (operation("aten::neg", ("MyType", (2,), (1,), "")), "no type 'MyType'"),
        (operation("aten::index", tensor(4), _NOTHING), "indices were not recorded"),
    ],
)
def test_an_operation_that_cannot_be_called_is_refused_with_the_reason(
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
    lines = _lines("aten::index", tensor(8, 9, 10), _NOTHING, children=children)
    assert lines[-3:] == [
        "    None,",
        "    inputs.integers((4,), torch.int64, high=9),",
        "],",
    ]


def test_an_operation_of_a_package_imports_it() -> None:
    call = script_call(operation("_moe_C::moe_sum", tensor(2, 2), scalar("3")))
    assert call.opening == "package_call("
    assert call.lines[:2] == ('"_moe_C::moe_sum",', '"vllm._moe_C",')
    assert call.lines[-1] == "3,"


def test_an_argument_that_is_not_a_tensor_has_its_name() -> None:
    entries = tensor(2, 3), numbers("[3]"), _NOTHING, _NOTHING, scalar("1e-05")
    lines = _lines("aten::native_layer_norm", *entries)
    assert lines[2:] == [
        "[3],  # normalized_shape",
        "None,  # weight",
        "None,  # bias",
        "1e-05,  # eps",
    ]


GELU = "void GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::"


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (
            f"{GELU}{{lambda()#1}}::operator()()",
            'approximate="tanh",  # guessed: from the name of its kernel',
        ),
        (
            f"{GELU}{{lambda()#2}}::operator()()",
            'approximate="none",  # guessed: from the name of its kernel',
        ),
        (
            "gelu",
            'approximate="none",  # guessed: the default; strings are not recorded',
        ),
    ],
)
def test_a_string_is_that_of_the_kernel_or_the_default(kernel: str, line: str) -> None:
    lines = _lines("aten::gelu", tensor(4), _NOTHING, kernels=(kernel,))
    assert lines[-1] == line


def test_a_single_index_is_not_a_python_number() -> None:
    lines = _lines("aten::take", tensor(5), tensor(kind="long int"))
    assert lines[-1] == "inputs.integers((), torch.int64, high=5),"


@pytest.mark.parametrize(
    ("left", "right", "end"),
    [((16, 8), (4, 8, 2), 16), ((8, 16), (16, 2), 16), ((4, 8, 2), (2, 12), 12)],
)
def test_groups_of_a_grouped_product_divide_the_right_dimension(
    left: tuple[int, ...], right: tuple[int, ...], end: int
) -> None:
    offsets = tensor(4, kind="int")
    lines = _lines("aten::_grouped_mm", tensor(*left), tensor(*right), offsets)
    expected = f"inputs.ascending((4,), torch.int32, low={end // 4}, high={end}),"
    assert lines[-1] == expected


def test_a_mask_selects_no_more_elements_than_there_are() -> None:
    entries = tensor(3, 4), tensor(4, kind="bool"), tensor(7)
    lines = _lines("aten::masked_scatter_", *entries)
    assert lines[2] == "inputs.mask((4,), true_count=2),"


def test_long_arguments_are_wrapped_as_ruff_wraps_them() -> None:
    strides = (1_000_000_000, 1_000_000, 1_000, 1)
    lines = _lines("aten::neg", tensor(100, 100, 100, 100, strides=strides))
    assert lines[1:] == [
        "inputs.normal(",
        "    (100, 100, 100, 100), torch.float32, strides=(1000000000, 1000000, 1000, 1)",
        "),",
    ]


def test_traces_without_types_say_how_to_record_them() -> None:
    reason = _refusal(RecordedOperation(1, RecordedCall("aten::mm", ((2, 2), (2, 2)))))
    assert reason.startswith("the types of the arguments were not recorded")
    assert "record_shapes=True" in reason
