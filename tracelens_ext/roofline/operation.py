"""An operation as performance models see it: its name and its recorded arguments."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce, wraps
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from tracelens_ext.analysis.serving.annotations import Batch
from tracelens_ext.readers.xplane.hlo import TYPE_BITS

if TYPE_CHECKING:
    from tracelens_ext.roofline.hlo import HloWork

Model = Callable[["Operation"], "Cost"]
Value = TypeVar("Value")

_BYTES: Final = {
    1: "bool, unsigned char, signed char, char, uint8_t, int8_t, c10::qint8, c10::quint8,"
    " c10::Float4_e2m1fn_x2, c10::Float8_e4m3fn, c10::Float8_e5m2, c10::Float8_e4m3fnuz,"
    " c10::Float8_e5m2fnuz, c10::Float8_e8m0fnu",
    2: "short, short int, unsigned short, c10::Half, c10::BFloat16",
    4: "int, unsigned int, float, c10::qint32, c10::complex<c10::Half>",
    8: "long, long int, long long, unsigned long, __int64, double, c10::complex<float>",
    16: "c10::complex<double>",
}
#: Bytes of an element, by the type's name in PyTorch's traces and in XLA's programs.
ELEMENT_BYTES: Final = {
    **{name: size for size, names in _BYTES.items() for name in names.split(", ")},
    **{kind: max(bits // 8, 1) for kind, bits in TYPE_BITS.items()},
}
#: PyTorch's numbers of scalar types (c10/core/ScalarType.h), as `Concrete Inputs` hold a `dtype`.
_SCALARS = (
    "unsigned char, signed char, short int, int, long int, c10::Half, float, double,"
    " c10::complex<c10::Half>, c10::complex<float>, c10::complex<double>, bool"
)
_FLOAT8 = ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz")
SCALAR_TYPES: Final = {
    **dict(enumerate(_SCALARS.split(", "))),
    15: "c10::BFloat16",
    **{23 + at: f"c10::Float8_{kind}" for at, kind in enumerate(_FLOAT8)},
}
#: Types as tables and device peaks call them.
_SHORT: Final = {
    name: short
    for short, names in (
        ("bf16", "c10::BFloat16"),
        ("fp16", "c10::Half, f16"),
        ("fp32", "float, f32"),
        ("fp64", "double, f64"),
        ("fp4", "c10::Float4_e2m1fn_x2, f4e2m1fn"),
        ("complex64", "c10::complex<float>, c64"),
        ("complex128", "c10::complex<double>, c128"),
        ("int8", "signed char, char, int8_t, c10::qint8"),
        ("int16", "short, short int"),
        ("uint8", "unsigned char, uint8_t, c10::quint8"),
        ("int32", "int, c10::qint32"),
        ("int64", "long, long int, long long, __int64"),
    )
    for name in names.split(", ")
}

_NO_TENSORS: Final = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "None")
_BOOLEAN, _WHOLE, _FLOATING, _COMPLEX = range(4)
#: Templates of kernels that handle elements by their size, such as those of `cat`.
_OPAQUE_SIZE: Final = re.compile(r"OpaqueType<(16|[1248])(?!\d)")
_OPAQUE = {"1": "bool", "2": "c10::Half", "4": "float", "8": "double", "16": "c10::complex<double>"}
#: Serving engines and their libraries, as names of operations begin.
_ENGINES: Final = ("_C", "aiter", "vllm", "sgl_kernel", "flashinfer")
_KERNEL_TYPE: Final = re.compile(r"[<, ](c10::BFloat16|c10::Half|float|double)[>,]")


class NoModelError(Exception):
    """The recorded arguments do not say what an operation computes or moves; says why."""


def known(value: Value | None, why: str) -> Value:
    """What a model needs; where it is None or False, a `NoModelError` that says why."""
    if value is None or value is False:
        raise NoModelError(why)
    return value


def short_type(kind: str) -> str:
    """`bf16` for `c10::BFloat16`, and so on."""
    return "fp8" if "Float8" in kind or kind.startswith("f8") else _SHORT.get(kind, kind)


def type_class(kind: str) -> int:
    """0 for truth values, 1 for whole numbers, 2 for floating point, 3 for complex numbers."""
    if "complex" in kind:
        return _COMPLEX
    if kind.startswith(("float", "double", "c10::Half", "c10::BF", "c10::Float")):
        return _FLOATING
    return _BOOLEAN if kind == "bool" else _WHOLE


def is_whole(kind: str) -> bool:
    """Whether a type holds truth values or whole numbers."""
    return type_class(kind) <= _WHOLE


def wider_type(a: str, b: str) -> str:
    """The type that holds both, by PyTorch's rules of promotion."""
    if type_class(a) != type_class(b):
        return a if type_class(a) > type_class(b) else b
    if {a, b} == {"c10::Half", "c10::BFloat16"}:
        return "float"
    if {a, b} == {"unsigned char", "signed char"}:
        return "short int"
    return a if ELEMENT_BYTES[a] >= ELEMENT_BYTES[b] else b


@dataclass(frozen=True)
class Tensor:
    """A tensor argument."""

    dims: tuple[int, ...]  #: its sizes; none for a single element
    kind: str  #: the type of its elements, a key of `ELEMENT_BYTES`
    #: in elements; empty when they were not recorded: then it is contiguous
    strides: tuple[int, ...] = ()

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.kind]

    @property
    def short(self) -> str:
        """Its type, as tables call it."""
        return short_type(self.kind)

    @property
    def is_whole(self) -> bool:
        """Whether it holds truth values or whole numbers."""
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
        sizes = zip(self.dims, self.strides, strict=True)
        return math.prod(n if stride else min(n, 1) for n, stride in sizes) * self.item

    @property
    def written(self) -> int:
        """Bytes of all its elements."""
        return self.elements * self.item

    def as_many(self, elements: int, kind: str | None = None) -> int:
        """Bytes of so many elements, of its type unless another is given."""
        return elements * ELEMENT_BYTES[kind or self.kind]


@dataclass(frozen=True)
class Cost:
    """What an operation has to do at the least."""

    family: str  #: the group of operations that it is shown with
    flops: int  #: floating point operations; a multiply and an add are two
    bytes: int  #: bytes that must cross the device's memory: inputs once, results once
    data_type: str  #: of the elements that it computes with, such as `bf16`
    engine: str = "vector"  #: `matrix`, `vector`, or `link` for what moves between host and device
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
    concrete: tuple[str, ...] = ()  #: numbers, flags and lists as text; empty for tensors
    kernels: tuple[str, ...] = ()  #: the names of the GPU events that its calls launched
    #: what the step of a serving engine that its calls are part of computes; None for those whose
    #: model needs none (`roofline/attention.py` lists the others)
    batch: Batch | None = None
    #: what an instruction of XLA computes and moves; None for other operations, and where the HLO
    #: does not say
    work: HloWork | None = None

    @classmethod
    def of_arguments(
        cls,
        name: str,
        kernels: tuple[str, ...],
        arguments: Sequence[object],
        batch: Batch | None = None,
        work: HloWork | None = None,
    ) -> Operation:
        """An operation whose arguments, in the order of `ARGUMENTS`, are as traces have them."""
        dims, types, strides, concrete = (a if isinstance(a, tuple) else () for a in arguments)
        kinds = tuple(map(str, types))
        values = tuple(map(str, concrete))
        return cls(name, dims, kinds, strides, values, kernels, batch, work)

    @property
    def plain_name(self) -> str:
        """Its name without the library's."""
        return self.name.rpartition("::")[2]

    @cached_property
    def attributes(self) -> dict[str, str]:
        """What the HLO says of an instruction, such as `opcode`; empty for other operations."""
        found = dict(text.split("=", 1) for text in self.concrete if "=" in text)
        return found if "opcode" in found else {}

    @property
    def model_name(self) -> str:
        """The name that models go by: its own, `hlo::fusion` and so on for an instruction."""
        opcode = self.attributes.get("opcode")
        return f"hlo::{opcode}" if opcode else self.name

    @property
    def in_place(self) -> bool:
        """Whether it writes its first argument, as PyTorch's names say."""
        return self.name.endswith("_") and not self.name.endswith("__")

    def tensor(self, i: int) -> Tensor | None:
        """Argument `i` when it is a tensor of a known type."""
        return self._arguments[i] if 0 <= i < len(self._arguments) else None

    def need(self, i: int) -> Tensor:
        """Argument `i`, a tensor.

        Raises:
            NoModelError: it is none, or of an unknown type.
        """
        if (tensor := self.tensor(i)) is not None:
            return tensor
        if not self.types:
            raise NoModelError("no shapes were recorded")
        kind = self.types[i] if i < len(self.types) else ""
        known(kind in ELEMENT_BYTES or kind in _NO_TENSORS, f"unknown element type {kind!r}")
        raise NoModelError(f"argument {i + 1} is no tensor with a recorded shape")

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors, in order."""
        return [t for t in self._arguments if t is not None]

    @cached_property
    def _arguments(self) -> list[Tensor | None]:
        return [
            _tensor(dims, strides, kind) if kind in ELEMENT_BYTES and _are_sizes(dims) else None
            for dims, kind, strides in zip_longest(
                self.dims, self.types, self.strides[: len(self.dims)]
            )
        ]

    def tensor_list(self, i: int, kind: str | None = None) -> list[Tensor]:
        """The tensors of argument `i`, a list; its type is not recorded, so the kernels tell it.

        `kind`: the type of its elements, where the caller knows it.

        Raises:
            NoModelError: sizes or type are not known.
        """
        parts = self.dims[i] if i < len(self.dims) else ()
        if not isinstance(parts, tuple) or not parts or not all(map(_are_sizes, parts)):
            raise NoModelError("the tensors of a list are not recorded")
        why = "the element type of a list of tensors is not recorded"
        kind = known(kind or self.kind_in_kernels, why)
        strides = self.strides[i] if i < len(self.strides) else ()
        if not isinstance(strides, tuple) or len(strides) != len(parts):
            strides = ((),) * len(parts)
        return [_tensor(*each, kind) for each in zip(parts, strides, strict=True)]

    @cached_property
    def kind_in_kernels(self) -> str | None:
        """The element type in the names of its kernels; for opaque ones any type of their size."""
        for pattern in (_OPAQUE_SIZE, _KERNEL_TYPE):
            for found in filter(None, map(pattern.search, self.kernels)):
                return _OPAQUE.get(found[1], found[1])
        return None

    def value(self, i: int | None) -> object:
        """Argument `i` as a number, flag, text or list; None when it is None or not recorded."""
        text = self.concrete[i] if i is not None and 0 <= i < len(self.concrete) else ""
        if text in ("", "None"):
            return None
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(text)
        with suppress(ValueError):
            return float(text)  # inf and nan
        return text

    def whole(self, i: int | None, default: int = 0) -> int:
        """Argument `i`, a whole number."""
        value = self.value(i)
        return value if isinstance(value, int) else default

    def wholes(self, i: int | None) -> list[int] | None:
        """Argument `i`, a list of whole numbers; None when it is none."""
        value = self.value(i)
        if isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
            return list(value)
        return None

    def scalar_type(self, i: int) -> str | None:
        """The element type that argument `i`, a `dtype`, names."""
        code = self.value(i)
        return SCALAR_TYPES.get(code) if type(code) is int else None

    def leading(self, most: int) -> list[Tensor]:
        """The tensors among the first arguments; a later one is that of `out=`.

        Raises:
            NoModelError: there is none.
        """
        if not (found := [t for i in range(most) if (t := self.tensor(i)) is not None]):
            self.need(0)
        return known(found or None, "no argument is a tensor with a recorded shape")

    def promoted_type(self, inputs: list[Tensor]) -> str:
        """The result's type: tensors with dimensions decide, others if of a higher class."""
        groups = [t.kind for t in inputs if t.dims], [t.kind for t in inputs if not t.dims]
        kind = max((reduce(wider_type, kinds) for kinds in groups if kinds), key=type_class)
        number = self.value(1) if self.types[1:2] == ("Scalar",) else None
        if isinstance(number, float) and is_whole(kind):
            return "float"
        return "long int" if kind == "bool" and type(number) is int else kind


class Models(dict[str, Model]):
    """The models of a file, by operations; a name without a library is PyTorch's own (`aten::`)."""

    def of(self, home: str) -> Callable[..., Callable[[Callable[..., Cost]], Model]]:
        """A decorator that adds a function for operations; tables call it `home.function`.

        With `engines` the names are those of serving engines and of their libraries. After the
        operation the function takes the arguments of the places that follow the names: tensors.
        """

        def decorator(
            names: str, *places: int, engines: bool = False
        ) -> Callable[[Callable[..., Cost]], Model]:
            begins = [f"{library}::" for library in _ENGINES] if engines else [""]

            def add(function: Callable[..., Cost]) -> Model:
                @wraps(function)
                def model(op: Operation) -> Cost:
                    return function(op, *map(op.need, places))

                vars(model)["home"] = home
                self.update({begin + name: model for begin in begins for name in names.split()})
                return model

            return add

        return decorator


def named(names: str, *values: object) -> dict[str, object]:
    """Parameters of a `Cost` by their names, which blanks divide."""
    return dict(zip(names.split(), values, strict=True))


def vector_cost(
    family: str, x: Tensor, flops: int, moved: int, *read: Tensor | None, **parameters: object
) -> Cost:
    """The cost of work on the vector engine that is judged by the type of `x`.

    `moved`: bytes, and those of the tensors `read` come on top.
    """
    return Cost(family, flops, moved + bytes_read(*read), x.short, parameters=parameters)


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that several shapes have together.

    Raises:
        NoModelError: they do not go together.
    """
    result: list[int] = []
    for sizes in zip_longest(*map(reversed, shapes), fillvalue=1):
        several = {*sizes} - {1}
        known(len(several) < 2, "the recorded shapes do not broadcast")
        result.append(several.pop() if several else 1)
    return tuple(result[::-1])


def bytes_read(*tensors: Tensor | None) -> int:
    """Distinct bytes of some tensors; None is none."""
    return sum(t.read for t in tensors if t is not None)


def _tensor(dims: tuple[int, ...], strides: object, kind: str) -> Tensor:
    """A tensor whose strides are as a trace has them."""
    return Tensor(dims, kind, strides if _are_sizes(strides) else ())


def _are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(value, tuple):
        return False
    for n in value:  # noqa: SIM110  # `all` takes twice as long, and each tensor comes by here
        if type(n) is not int or n < 0:
            return False
    return True
