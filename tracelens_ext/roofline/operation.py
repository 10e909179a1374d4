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
    from tracelens_ext.roofline.hlo import HloWork

Model = Callable[["Operation"], "Cost"]
Value = TypeVar("Value")

#: What the types of arguments say that are no tensors.
_TYPES_OF_OTHERS: Final = (
    "",
    "Scalar",
    "ScalarList",
    "TensorList",
    "GenericList",
    "None",
)
#: Templates of kernels that handle elements by their size, such as those of `cat`.
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
#: Serving engines and their libraries, as names of operations begin.
_ENGINES: Final = ("_C", "aiter", "vllm", "sgl_kernel", "flashinfer")


class NoModelError(Exception):
    """The recorded arguments do not say what an operation computes or moves; says why."""


def require(condition: object, reason: str) -> None:
    """Raise a `NoModelError` with a reason unless a condition holds."""
    if not condition:
        raise NoModelError(reason)


def required(value: Value | None, reason: str) -> Value:
    """Return a value that a model needs; raise a `NoModelError` with a reason where it is None."""
    if value is None:
        raise NoModelError(reason)
    return value


class Engine(StrEnum):
    """What does the work of an operation."""

    MATRIX = "matrix"
    VECTOR = "vector"
    LINK = "link"  #: between host and device


@dataclass(frozen=True)
class Tensor:
    """A tensor argument."""

    dims: tuple[int, ...]  #: its sizes; none for a single element
    kind: str  #: the type of its elements, a key of `ELEMENT_BYTES`
    #: in elements; empty when they were not recorded: then it is contiguous
    strides: tuple[int, ...] = ()

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.kind]

    @property
    def short_type(self) -> str:
        """Its type, as tables call it."""
        return short_type(self.kind)

    @property
    def is_whole(self) -> bool:
        """True if it holds truth values or whole numbers."""
        return is_whole(self.kind)

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def read(self) -> int:
        """Distinct bytes: a dimension of stride 0 repeats the same elements."""
        if len(self.strides) != len(self.dims):
            return self.written
        elements = 1
        for size, stride in zip(self.dims, self.strides, strict=True):
            elements *= size if stride else min(size, 1)
        return elements * self.element_bytes

    @property
    def written(self) -> int:
        """Bytes of all its elements."""
        return self.elements * self.element_bytes

    def bytes_of(self, elements: int, kind: str | None = None) -> int:
        """Return the bytes of so many elements, of its type unless another is given."""
        return elements * ELEMENT_BYTES[kind or self.kind]


@dataclass(frozen=True)
class Cost:
    """What an operation has to do at the least."""

    family: str  #: the group of operations that it is shown with
    flops: int  #: floating point operations; a multiply and an add are two
    bytes: int  #: bytes that must cross the device's memory: inputs once, results once
    data_type: str  #: of the elements that it computes with, such as `bf16`
    engine: str = Engine.VECTOR.value  #: a value of `Engine`
    #: what experts read, such as `M`, `N` and `K`
    parameters: dict[str, object] = field(default_factory=dict)
    #: True when the figures are a lower bound, not what the operation must do
    bound_only: bool = False


@dataclass(frozen=True)
class Operation:
    """An operation and its recorded arguments."""

    name: str  #: as in the trace, such as `aten::mm`
    #: of each argument: sizes, or a tuple of sizes for a list of tensors; empty for others
    dims: tuple[object, ...] = ()
    types: tuple[str, ...] = ()  #: of each argument
    strides: tuple[object, ...] = ()  #: of each argument, as `dims`
    #: numbers, flags and lists as text; empty for tensors
    concrete: tuple[str, ...] = ()
    #: the names of the GPU events that its calls launched
    kernels: tuple[str, ...] = ()
    #: what the step of a serving engine that its calls are part of computes; None for those whose
    #: model needs none (`roofline/serving.py` lists the others)
    batch: Batch | None = None
    #: what an instruction of XLA computes and moves; None for other operations, and where the HLO
    #: does not say
    work: HloWork | None = None
    #: the sizes of its result, where other operations tell them; None if not known
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
        """Return an operation whose arguments are as traces have them.

        Args:
            name: as in the trace.
            kernels: the names of the GPU events that its calls launched.
            arguments: sizes, types, strides and concrete inputs, in the order of `ARGUMENTS`.
            batch: what the step that its calls are part of computes.
            work: what an instruction of XLA computes and moves.
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
        """Its name without the library's."""
        return self.name.rpartition("::")[2]

    @cached_property
    def attributes(self) -> dict[str, str]:
        """What the HLO says of an instruction, such as `opcode`; empty for other operations."""
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
        """The name that models go by: its own, `hlo::fusion` and so on for an instruction."""
        opcode = self.attributes.get("opcode")
        return f"hlo::{opcode}" if opcode else self.name

    @property
    def in_place(self) -> bool:
        """True if it writes its first argument, as PyTorch's names say."""
        return self.name.endswith("_") and not self.name.endswith("__")

    def tensor(self, position: int) -> Tensor | None:
        """Return an argument, by its position, when it is a tensor of a known type."""
        if 0 <= position < len(self._arguments):
            return self._arguments[position]
        return None

    def need(self, position: int) -> Tensor:
        """Return an argument, by its position, that has to be a tensor.

        Raises:
            NoModelError: it is none, or of an unknown type.
        """
        tensor = self.tensor(position)
        if tensor is not None:
            return tensor
        require(self.types, "no shapes were recorded")
        kind = ""
        if position < len(self.types):
            kind = self.types[position]
        is_known = kind in ELEMENT_BYTES or kind in _TYPES_OF_OTHERS
        require(is_known, f"unknown element type {kind!r}")
        raise NoModelError(
            f"argument {position + 1} is not a tensor with a recorded shape"
        )

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors, in order."""
        return [tensor for tensor in self._arguments if tensor is not None]

    @cached_property
    def _arguments(self) -> list[Tensor | None]:
        strides_of_dims = self.strides[: len(self.dims)]
        arguments: list[Tensor | None] = []
        for dims, kind, strides in zip_longest(self.dims, self.types, strides_of_dims):
            if kind in ELEMENT_BYTES and _are_sizes(dims):
                arguments.append(_tensor(dims, strides, kind))
            else:
                arguments.append(None)
        return arguments

    def tensor_list(self, position: int, kind: str | None = None) -> list[Tensor]:
        """Return the tensors of an argument that is a list of them.

        Args:
            position: that of the argument.
            kind: the type of the elements. It is not recorded for lists: None takes it from the
                names of the kernels.

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
        """The element type in the names of its kernels; for opaque ones any type of their size."""
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
        """Return an argument as a number, flag, text or list; None when there is none."""
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
        """Return an argument that is a whole number; the default when it is none."""
        value = self.value(position)
        return value if isinstance(value, int) else default

    def wholes(self, position: int | None) -> list[int] | None:
        """Return an argument that is a list of whole numbers; None when it is none."""
        value = self.value(position)
        if not isinstance(value, list | tuple):
            return None
        if not all(isinstance(number, int) for number in value):
            return None
        return list(value)

    def need_wholes(self, position: int, reason: str) -> list[int]:
        """Return an argument that has to be a list of whole numbers, at least one.

        Raises:
            NoModelError: it is none; with the reason given.
        """
        numbers = self.wholes(position)
        if not numbers:
            raise NoModelError(reason)
        return numbers

    def scalar_type(self, position: int) -> str | None:
        """Return the element type that an argument, a `dtype`, names."""
        code = self.value(position)
        if type(code) is not int:
            return None
        return SCALAR_TYPES.get(code)

    def leading(self, count: int) -> list[Tensor]:
        """Return the tensors among the first arguments; a later one is that of `out=`.

        Raises:
            NoModelError: there is none.
        """
        tensors = []
        for position in range(count):
            tensor = self.tensor(position)
            if tensor is not None:
                tensors.append(tensor)
        if not tensors:
            self.need(0)
        require(tensors, "no argument is a tensor with a recorded shape")
        return tensors

    def promoted_type(self, inputs: list[Tensor]) -> str:
        """Return the result's type: tensors with dimensions decide, others if of a higher class."""
        types_with_dims = [tensor.kind for tensor in inputs if tensor.dims]
        types_of_single = [tensor.kind for tensor in inputs if not tensor.dims]
        widest = [
            reduce(wider_type, kinds)
            for kinds in (types_with_dims, types_of_single)
            if kinds
        ]
        kind = max(widest, key=type_class)
        number = self.value(1) if self.types[1:2] == ("Scalar",) else None
        if isinstance(number, float) and is_whole(kind):
            return "float"
        if type(number) is int and type_class(kind) == TypeClass.BOOLEAN:
            return "long int"
        return kind


class Models(dict[str, Model]):
    """The models of a family, by operations; a name without a library is PyTorch's (`aten::`)."""

    def add(
        self, *names: str, tensors: Sequence[int] = (), engines: bool = False
    ) -> Callable[[Callable[..., Cost]], Model]:
        """Return a decorator that makes a function the model of operations.

        Args:
            names: those of the operations; `*` at the end stands for any ending.
            tensors: positions of arguments that have to be tensors. The function takes them, after
                the operation.
            engines: the names are those of serving engines, and of their libraries: all of them.
        """
        full_names = names
        if engines:
            full_names = tuple(
                f"{library}::{name}" for library in _ENGINES for name in names
            )

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
    judged: Tensor,
    flops: int,
    moved: int,
    *read: Tensor | None,
    **parameters: object,
) -> Cost:
    """Return the cost of work on the vector engine.

    Args:
        family: what it is shown with.
        judged: the tensor whose type decides about the peak.
        flops: floating point operations.
        moved: bytes that cross the memory, besides those of `read`.
        read: tensors that are read once; None is none.
        parameters: what experts read.
    """
    return Cost(
        family=family,
        flops=flops,
        bytes=moved + bytes_read(*read),
        data_type=judged.short_type,
        parameters=parameters,
    )


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that several shapes have together.

    Raises:
        NoModelError: they do not go together.
    """
    from_last: list[int] = []
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
    """Return the distinct bytes of some tensors; None is none."""
    return sum(tensor.read for tensor in tensors if tensor is not None)


def _shapes_of_list(dims: tuple[object, ...]) -> list[tuple[int, ...]]:
    """Return the sizes of the tensors of a list, given its recorded dimensions, if there are any.

    Raises:
        NoModelError: they are not known.
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
    """Return a tensor whose strides are as a trace has them."""
    return Tensor(dims=dims, kind=kind, strides=strides if _are_sizes(strides) else ())


def _are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(value, tuple):
        return False
    for size in value:  # noqa: SIM110  # `all` takes twice as long, and each tensor comes by here
        if type(size) is not int or size < 0:
            return False
    return True
