"""Tensors and lists of tensors as source code: calls of the methods of `Inputs` in the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tracelens_ext.reproduce.argument_source import ArgumentSource
from tracelens_ext.reproduce.element_types import TORCH_TYPES
from tracelens_ext.reproduce.input_rules import Filling
from tracelens_ext.reproduce.recorded_values import RecordedTensor, RecordedTensors
from tracelens_ext.reproduce.specification import RecordedOperation
from tracelens_ext.roofline.operation import Operation

HALF: Final = "c10::Half"
_BFLOAT16: Final = "c10::BFloat16"
_LIST_TYPE_IS_GUESSED: Final = "dtype guessed: not recorded for tensors in lists"


def tensor_argument(
    tensor: RecordedTensor, torch_type: str, filling: Filling
) -> ArgumentSource:
    """Return the code that creates a tensor: `inputs.normal((4, 8), torch.float32)`."""
    arguments = []
    if filling.method == "constant":
        arguments.append(repr(filling.value))
    arguments.append(repr(tensor.sizes))
    if filling.method != "mask":
        arguments.append(f"torch.{torch_type}")
    if tensor.strides is not None and not tensor.is_contiguous:
        arguments.append(f"strides={tensor.strides}")
    for name, value in filling.options.items():
        arguments.append(f"{name}={value!r}")
    return ArgumentSource.of_call(f"inputs.{filling.method}", arguments)


def tensor_list_argument(
    value: RecordedTensors, torch_type: str, filling: Filling
) -> ArgumentSource:
    """Return the code that creates a list of tensors."""
    if not value.tensors:
        return ArgumentSource("[]")
    items = [tensor_argument(tensor, torch_type, filling) for tensor in value.tensors]
    return ArgumentSource.of_list(items, _LIST_TYPE_IS_GUESSED)


def usual_half_type(operations: Sequence[RecordedOperation]) -> str:
    """Return the 16-bit float type of most operations, probably also that of tensors in lists."""
    counts = Counter[str]()
    for operation in operations:
        half_types = set(operation.call.types) & {_BFLOAT16, HALF}
        counts.update(half_types)
    return HALF if counts[HALF] > counts[_BFLOAT16] else _BFLOAT16


def type_in_lists(operation: RecordedOperation, half_type: str) -> str:
    """Return the probable type of the tensors in lists, which the names of kernels show.

    Args:
        operation: what was recorded about it.
        half_type: the type of 16-bit floats if the names do not tell it.
    """
    recorded = Operation(operation.call.name, kernels=operation.kernels)
    element_type = recorded.kind_in_kernels
    if element_type is None:
        return "float32"
    is_named = any(element_type in kernel for kernel in operation.kernels)
    if element_type == HALF and not is_named:
        element_type = half_type
    return TORCH_TYPES[element_type]
