"""An operation as performance models see it: its name and its recorded arguments."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, reduce, wraps
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from tracelens_ext.analysis.serving.annotations import Batch
from tracelens_ext.roofline.element_types import (
    ELEMENT_BYTES,
    SCALAR_TYPES,
    TypeClass,
    is_whole,
    short_type,
    type_class,
    wider_type,
)

if TYPE_CHECKING:
    from tracelens_ext.roofline.hlo_products import HloWork

Model = Callable[["Operation"], "Cost"]
Value = TypeVar("Value")

#: The recorded types of arguments that are not tensors.
_TYPES_WITHOUT_TENSOR: Final = (
    "",
    "Scalar",
    "ScalarList",
    "TensorList",
    "GenericList",
    "None",
)
#: Template argument of kernels that know only the size of elements, such as the kernels of `cat`.
_OPAQUE_SIZE: Final = re.compile(r"OpaqueType<(16|[1248])(?!\d)")
_TYPE_OF_OPAQUE_SIZE: Final = {
    "1": "bool",
    "2": "c10::Half",
    "4": "float",
    "8": "double",
    "16": "c10::complex<double>",
}
_UNRECORDED_LIST: Final = "the tensors of a list are not recorded"
_KERNEL_TYPE: Final = re.compile(r"[<, ](c10::BFloat16|c10::Half|float|double)[>,]")
#: Serving engines and their libraries: what the names of their operations begin with.
_ENGINE_LIBRARIES: Final = ("_C", "aiter", "vllm", "sgl_kernel", "flashinfer")


class NoModelError(Exception):
    """The recorded arguments do not say what an operation computes or moves.

    The message gives the reason.
    """


def require(condition: object, reason: str) -> None:
    """Raise a `NoModelError` with the reason unless the condition holds."""
    if not condition:
        raise NoModelError(reason)


def required(value: Value | None, reason: str) -> Value:
    """Return a value that a model needs; raise a `NoModelError` with the reason if it is None."""
    if value is None:
        raise NoModelError(reason)
    return value


class Engine(StrEnum):
    """The part of the machine that does the work of an operation."""

    MATRIX = "matrix"
    VECTOR = "vector"
    LINK = "link"  #: the connection between host and device


@dataclass(frozen=True)
class Tensor:
    """A tensor argument."""

    dims: tuple[int, ...]  #: the size of each dimension; empty for a single element
    kind: str  #: the type of the elements, a key of `ELEMENT_BYTES`
    #: The stride of each dimension, in elements. Empty if strides were not recorded; the tensor
    #: then counts as contiguous.
    strides: tuple[int, ...] = ()

    @property
    def element_bytes(self) -> int:
        """The size of an element in bytes."""
        return ELEMENT_BYTES[self.kind]

    @property
    def short_type(self) -> str:
        """The element type as tables show it, such as `bf16`."""
        return short_type(self.kind)

    @property
    def is_whole(self) -> bool:
        """True if the elements are truth values or whole numbers."""
        return is_whole(self.kind)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def read(self) -> int:
        """Bytes that a kernel reads: elements repeated by a stride of 0 count once."""
        if len(self.strides) != len(self.dims):
            return self.written
        elements = 1
        for size, stride in zip(self.dims, self.strides, strict=True):
            elements *= size if stride else min(size, 1)
        return elements * self.element_bytes

    @property
    def written(self) -> int:
        """Bytes that a kernel writes: all elements count."""
        return self.elements * self.element_bytes

    def bytes_of(self, elements: int, kind: str | None = None) -> int:
        """Return the size of a number of elements in bytes.

        Args:
            elements: how many there are.
            kind: their type; None: the type of this tensor.
        """
        return elements * ELEMENT_BYTES[kind or self.kind]


@dataclass(frozen=True)
class Cost:
    """The least work that an operation can do."""

    family: str  #: the group of operations that tables show it with
    flops: int  #: floating point operations; a multiply and an add are two
    bytes: int  #: bytes that must cross the device's memory: inputs once, results once
    data_type: str  #: the type of the elements that it computes with, such as `bf16`
    engine: str = Engine.VECTOR.value  #: a value of `Engine`
    #: sizes and settings for the tables, such as `M`, `N` and `K`
    parameters: dict[str, object] = field(default_factory=dict)
    #: True if the operation may have to do more than the figures say
    bound_only: bool = False


@dataclass(frozen=True)
class Operation:
    """An operation and its recorded arguments."""

    name: str  #: as in the trace, such as `aten::mm`
    #: For each argument the sizes of a tensor, a tuple of sizes for a list of tensors, or an empty
    #: tuple.
    dims: tuple[object, ...] = ()
    types: tuple[str, ...] = ()  #: the type of each argument
    #: the strides of each argument, in the form of `dims`
    strides: tuple[object, ...] = ()
    #: the value of each argument that is a number, flag or list, as text; empty for tensors
    concrete: tuple[str, ...] = ()
    #: the names of the GPU events that the calls launched
    kernels: tuple[str, ...] = ()
    #: The requests in the step of a serving engine that the calls belong to. None for operations
    #: whose model does not need them (`roofline/serving.py` lists those whose model does).
    batch: Batch | None = None
    #: The work of an instruction of XLA. None for other operations, and if the HLO does not tell
    #: the work.
    work: HloWork | None = None
    #: the sizes of the result, if they follow from other operations; None: not known
    result_dims: tuple[int, ...] | None = None

    @classmethod
    def of_arguments(
        cls,
        name: str,
        kernels: tuple[str, ...],
        arguments: Sequence[object],
        batch: Batch | None = None,
        work: HloWork | None = None,
    ) -> Operation:
        """Return an operation, given its arguments as a trace contains them.

        Args:
            name: as in the trace.
            kernels: the names of the GPU events that the calls launched.
            arguments: sizes, types, strides and concrete inputs, in the order of `ARGUMENTS`.
            batch: the requests in the step that the calls belong to.
            work: the work of an instruction of XLA.
        """
        dims, types, strides, concrete = (
            _tuple_or_empty(argument) for argument in arguments
        )
        return cls(
            name=name,
            dims=dims,
            types=tuple(map(str, types)),
            strides=strides,
            concrete=tuple(map(str, concrete)),
            kernels=kernels,
            batch=batch,
            work=work,
        )

    @property
    def plain_name(self) -> str:
        """The name without the library: `mm` for `aten::mm`."""
        return self.name.rpartition("::")[2]

    @cached_property
    def attributes(self) -> dict[str, str]:
        """The HLO attributes of an instruction of XLA, such as `opcode`; empty for others."""
        attributes = {}
        for text in self.concrete:
            name, sign, value = text.partition("=")
            if sign:
                attributes[name] = value
        if "opcode" not in attributes:
            return {}
        return attributes

    @property
    def model_name(self) -> str:
        """The name that models are registered under: `hlo::OPCODE` for an instruction of XLA."""
        opcode = self.attributes.get("opcode")
        return f"hlo::{opcode}" if opcode else self.name

    @property
    def in_place(self) -> bool:
        """True if the operation writes its first argument: PyTorch's names then end with `_`."""
        return self.name.endswith("_") and not self.name.endswith("__")

    def tensor(self, position: int) -> Tensor | None:
        """Return the argument at a position; None if it is not a tensor of a known type."""
        if 0 <= position < len(self._arguments):
            return self._arguments[position]
        return None

    def need(self, position: int) -> Tensor:
        """Return the argument at a position, which has to be a tensor.

        Raises:
            NoModelError: it is not a tensor, or its type is unknown.
        """
        tensor = self.tensor(position)
        if tensor is None:
            raise self._missing_tensor(position)
        return tensor

    def _missing_tensor(self, position: int) -> NoModelError:
        """Return the error that says why the argument at a position is not a tensor."""
        if not self.types:
            return NoModelError("no shapes were recorded")
        kind = ""
        if position < len(self.types):
            kind = self.types[position]
        is_known_type = kind in ELEMENT_BYTES or kind in _TYPES_WITHOUT_TENSOR
        if not is_known_type:
            return NoModelError(f"unknown element type {kind!r}")
        return NoModelError(
            f"argument {position + 1} is not a tensor with a recorded shape"
        )

    def require_arguments(self, condition: object, reason: str) -> None:
        """Raise a `NoModelError` unless a condition on the recorded tensors holds.

        If the first argument is not a recorded tensor, the error says so, because that is why the
        condition fails. Otherwise it gives the reason.
        """
        if condition:
            return
        if self.tensor(0) is None:
            raise self._missing_tensor(0)
        raise NoModelError(reason)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors, in order."""
        return [tensor for tensor in self._arguments if tensor is not None]

    @cached_property
    def _arguments(self) -> list[Tensor | None]:
        """All arguments in order; None for those that are not tensors of a known type."""
        strides_of_dims = self.strides[: len(self.dims)]
        arguments: list[Tensor | None] = []
        for dims, kind, strides in zip_longest(self.dims, self.types, strides_of_dims):
            if kind in ELEMENT_BYTES and _are_sizes(dims):
                arguments.append(_tensor(dims, strides, kind))
            else:
                arguments.append(None)
        return arguments

    def tensor_list(self, position: int, kind: str | None = None) -> list[Tensor]:
        """Return the tensors of an argument that is a list of tensors.

        Args:
            position: the position of the argument.
            kind: the type of the elements, which traces do not contain for lists. None: the type in
                the names of the kernels.

        Raises:
            NoModelError: sizes or type are not known.
        """
        shapes = _shapes_of_list(self.dims[position : position + 1])
        kind = required(
            kind or self.kind_in_kernels,
            "the element type of a list of tensors is not recorded",
        )
        strides: object = ()
        if position < len(self.strides):
            strides = self.strides[position]
        if not isinstance(strides, tuple) or len(strides) != len(shapes):
            strides = ((),) * len(shapes)
        pairs = zip(shapes, strides, strict=True)
        return [
            _tensor(dims, strides_of_tensor, kind) for dims, strides_of_tensor in pairs
        ]

    @cached_property
    def kind_in_kernels(self) -> str | None:
        """The element type in the names of the kernels; None if no name contains one.

        Some names tell only the size of elements: the result then is a type of this size.
        """
        for kernel in self.kernels:
            match = _OPAQUE_SIZE.search(kernel)
            if match:
                return _TYPE_OF_OPAQUE_SIZE[match[1]]
        for kernel in self.kernels:
            match = _KERNEL_TYPE.search(kernel)
            if match:
                return match[1]
        return None

    def value(self, position: int | None) -> object:
        """Return the value of an argument: a number, flag, text or list; None without one."""
        if position is None:
            return None
        if not 0 <= position < len(self.concrete):
            return None
        text = self.concrete[position]
        if text in ("", "None"):
            return None
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(text)
        with suppress(ValueError):
            return float(text)  # inf and nan
        return text

    def whole(self, position: int | None, default: int = 0) -> int:
        """Return an argument that is a whole number; the default if it is something else."""
        value = self.value(position)
        return value if isinstance(value, int) else default

    def wholes(self, position: int | None) -> list[int] | None:
        """Return an argument that is a list of whole numbers; None if it is something else."""
        value = self.value(position)
        if not isinstance(value, list | tuple):
            return None
        if not all(isinstance(number, int) for number in value):
            return None
        return list(value)

    def need_wholes(self, position: int, reason: str) -> list[int]:
        """Return an argument that has to be a list of at least one whole number.

        Raises:
            NoModelError: the argument is something else; the message is `reason`.
        """
        numbers = self.wholes(position)
        if not numbers:
            raise NoModelError(reason)
        return numbers

    def scalar_type(self, position: int) -> str | None:
        """Return the element type that a `dtype` argument names; None if it names none."""
        code = self.value(position)
        if type(code) is not int:
            return None
        return SCALAR_TYPES.get(code)

    def leading(self, count: int) -> list[Tensor]:
        """Return the tensors among the first `count` arguments, so without a tensor for `out=`.

        Raises:
            NoModelError: none of them is a tensor.
        """
        tensors = []
        for position in range(count):
            tensor = self.tensor(position)
            if tensor is not None:
                tensors.append(tensor)
        if not tensors:
            raise self._missing_tensor(0)
        return tensors

    def promoted_type(self, inputs: list[Tensor]) -> str:
        """Return the type of the result by PyTorch's rules of promotion.

        Tensors with dimensions decide. A tensor of a single element counts only if its type is of a
        higher class (see `TypeClass`), and so does a number as the second argument.
        """
        types_with_dims = [tensor.kind for tensor in inputs if tensor.dims]
        types_of_single = [tensor.kind for tensor in inputs if not tensor.dims]
        widest = [
            reduce(wider_type, kinds)
            for kinds in (types_with_dims, types_of_single)
            if kinds
        ]
        kind = max(widest, key=type_class)  # the first of two in the same class
        number = None
        if self.types[1:2] == ("Scalar",):
            number = self.value(1)
        if isinstance(number, float) and is_whole(kind):
            return "float"
        if type(number) is int and type_class(kind) == TypeClass.BOOLEAN:
            return "long int"
        return kind


class Models(dict[str, Model]):
    """The models of a family by the name of the operation.

    A name without a library is an operation of PyTorch (`aten::`).
    """

    def add(
        self, *names: str, tensors: Sequence[int] = (), engines: bool = False
    ) -> Callable[[Callable[..., Cost]], Model]:
        """Return a decorator that makes a function the model of operations.

        Args:
            names: the names of the operations; `*` at the end stands for any ending.
            tensors: positions of arguments that have to be tensors. The function takes these
                tensors as arguments after the operation.
            engines: True registers each name for every serving engine and library of
                `_ENGINE_LIBRARIES`.
        """
        full_names = list(names)
        if engines:
            full_names = []
            for library in _ENGINE_LIBRARIES:
                full_names += [f"{library}::{name}" for name in names]

        def add_model(function: Callable[..., Cost]) -> Model:
            @wraps(function)
            def model(operation: Operation) -> Cost:
                needed_tensors = [operation.need(position) for position in tensors]
                return function(operation, *needed_tensors)

            self.update(dict.fromkeys(full_names, model))
            return model

        return add_model


def vector_cost(
    family: str,
    typed_tensor: Tensor,
    flops: int,
    moved: int,
    *read: Tensor | None,
    **parameters: object,
) -> Cost:
    """Return the cost of work on the vector engine.

    Args:
        family: the group of operations that tables show it with.
        typed_tensor: the tensor whose element type decides which peak applies.
        flops: floating point operations.
        moved: bytes that cross the memory, besides those of `read`.
        read: tensors that are read once; None is skipped.
        parameters: sizes and settings for the tables.
    """
    return Cost(
        family=family,
        flops=flops,
        bytes=moved + bytes_read(*read),
        data_type=typed_tensor.short_type,
        parameters=parameters,
    )


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that several shapes broadcast to: [4, 1] and [3] become [4, 3].

    Raises:
        NoModelError: the shapes do not broadcast.
    """
    from_last: list[int] = []  # the sizes of the result, last dimension first
    for sizes in zip_longest(*map(reversed, shapes), fillvalue=1):
        result_size = 1
        for size in sizes:
            if size == 1:
                continue
            fits = result_size in (1, size)
            require(fits, "the recorded shapes do not broadcast")
            result_size = size
        from_last.append(result_size)
    return tuple(reversed(from_last))


def bytes_read(*tensors: Tensor | None) -> int:
    """Return the bytes of tensors that are read once (see `Tensor.read`); None is skipped."""
    return sum(tensor.read for tensor in tensors if tensor is not None)


def _shapes_of_list(dims: tuple[object, ...]) -> list[tuple[int, ...]]:
    """Return the sizes of each tensor of a list.

    Args:
        dims: the recorded dimensions of the list as the only item; empty if they are missing.

    Raises:
        NoModelError: the sizes are not known.
    """
    recorded = dims[0] if dims else ()
    if not isinstance(recorded, tuple):
        raise NoModelError(_UNRECORDED_LIST)
    if not recorded:
        raise NoModelError(_UNRECORDED_LIST)
    shapes = []
    for shape in recorded:
        if not _are_sizes(shape):
            raise NoModelError(_UNRECORDED_LIST)
        shapes.append(shape)
    return shapes


def _tuple_or_empty(argument: object) -> tuple[object, ...]:
    return argument if isinstance(argument, tuple) else ()


def _tensor(dims: tuple[int, ...], strides: object, kind: str) -> Tensor:
    """Return a tensor; recorded strides that are not whole numbers are dropped."""
    return Tensor(dims=dims, kind=kind, strides=strides if _are_sizes(strides) else ())


def _are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    """Return whether a value is a tuple of whole numbers, none of them negative."""
    if not isinstance(value, tuple):
        return False
    for size in value:  # noqa: SIM110  # `all` takes twice as long, and every tensor is checked
        if type(size) is not int or size < 0:
            return False
    return True
