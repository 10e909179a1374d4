"""Reconstructs the indices of `aten::index` and `aten::index_put_` from the operations below them.

The profiler records nothing about a list that may contain None. But PyTorch prepares indexing
(`TensorAdvancedIndexing.cpp`) with operations that the profiler does record: `nonzero` for each
mask, `expand` for each index that is broadcast, `permute` if indexed dimensions are not adjacent,
`as_strided` for the tensor, with strides of 0 in the indexed dimensions, and `reshape` for each
index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

from tracelens_ext.reproduce.argument_source import ArgumentSource
from tracelens_ext.reproduce.element_types import TORCH_TYPES
from tracelens_ext.reproduce.overloads import BoundCall
from tracelens_ext.reproduce.recorded_values import (
    NotReproducibleError,
    RecordedTensor,
    numbers_of,
    sizes_of,
)
from tracelens_ext.reproduce.specification import RecordedCall, RecordedOperation

_READING: Final = ("index", "_unsafe_index", "_unsafe_masked_index")
_WRITING: Final = ("index_put", "_index_put_impl", "_unsafe_index_put")
#: The operations whose children a specification includes.
SHOWN_BY_CHILDREN: Final = frozenset(
    f"aten::{name}{ending}" for name in _READING + _WRITING for ending in ("", "_")
)
_NOT_SHOWN: Final = (
    "the indices were not recorded, and the operations below do not show them"
)
_SHOWN: Final = "reconstructed from the operations that it called"
_IS_GUESSED: Final = "guessed: one index into the first dimension"

Sizes = tuple[int, ...]


class _StridedView(NamedTuple):
    """The view of the indexed tensor: its strides are 0 in the indexed dimensions."""

    sizes: Sizes
    strides: Sizes


@dataclass(frozen=True)
class _Index:
    """An index before broadcasting."""

    sizes: Sizes
    torch_type: str
    is_on_host: bool = False

    def source(self, size: int) -> ArgumentSource:
        """Return the code that creates the index.

        Args:
            size: the size of the dimension that it indexes.
        """
        arguments = [repr(self.sizes), f"torch.{self.torch_type}", f"high={size}"]
        if self.is_on_host:
            arguments.append("on_host=True")
        return ArgumentSource.of_call("inputs.integers", arguments)


@dataclass(frozen=True)
class _Mask:
    """A boolean mask, which stands for one index per dimension of the mask."""

    sizes: Sizes
    true_count: int | None

    @property
    def source(self) -> ArgumentSource:
        """The code that creates the mask."""
        arguments = [repr(self.sizes)]
        if self.true_count is not None and self.true_count <= prod(self.sizes):
            arguments.append(f"true_count={self.true_count}")
        return ArgumentSource.of_call("inputs.mask", arguments)

    def fits(self, sizes: Sizes, dimension: int) -> bool:
        """Return whether the mask has the sizes of the dimensions that it would index.

        Args:
            sizes: the sizes of the indexed tensor.
            dimension: the first dimension that the mask would index.
        """
        end = dimension + len(self.sizes)
        return sizes[dimension:end] == self.sizes


def is_indexing(call: BoundCall) -> bool:
    """Return whether a call takes a list of indices."""
    return call.schema.name in SHOWN_BY_CHILDREN


def index_argument(operation: RecordedOperation, call: BoundCall) -> ArgumentSource:
    """Return the list of indices.

    Raises:
        NotReproducibleError: the operations below it do not show them.
    """
    tensor = call.tensor("self")
    if tensor is None:
        raise NotReproducibleError(_NOT_SHOWN)
    children = _Children(calls=operation.children, sizes=tensor.sizes)
    if children.reshapes:
        items = _items(children)
        return ArgumentSource.of_list(items, _SHOWN)
    values = call.tensor("values")
    if call.short_name in _WRITING and values is not None:
        return _guessed_index(tensor, values)
    raise NotReproducibleError(_NOT_SHOWN)


def _guessed_index(tensor: RecordedTensor, values: RecordedTensor) -> ArgumentSource:
    """Return one index into the first dimension, if the sizes of the values allow it.

    Raises:
        NotReproducibleError: the sizes do not allow it.
    """
    if not tensor.sizes:
        raise NotReproducibleError(_NOT_SHOWN)
    row_sizes = tensor.sizes[1:]
    index_rank = len(values.sizes) - len(row_sizes)
    if index_rank < 0 or values.sizes[index_rank:] != row_sizes:
        raise NotReproducibleError(_NOT_SHOWN)
    index = _Index(values.sizes[:index_rank], "int64")
    return ArgumentSource.of_list([index.source(tensor.sizes[0])], _IS_GUESSED)


class _Children:
    """The operations below an indexing operation, as far as they tell its indices.

    Attributes:
        sizes: the sizes of the indexed tensor.
        order: the dimensions in the order in which they are indexed.
        reshapes: the operation that reshapes each index.
        masks: the masks, in order.
        view: the view of the indexed tensor; None without one.
    """

    def __init__(self, calls: Sequence[RecordedCall], sizes: Sizes) -> None:
        self.sizes = sizes
        self.order = tuple(range(len(sizes)))
        self.reshapes: list[RecordedCall] = []
        self.masks: list[_Mask] = []
        self.view: _StridedView | None = None
        self._is_broadcast: list[bool] = []
        self._sizes_before_broadcast: list[Sizes] = []
        self._copied_sizes: list[Sizes] = []
        for position, call in enumerate(calls):
            self._read(call, calls[position + 1 :])

    @property
    def permuted_sizes(self) -> Sizes:
        """The sizes of the indexed tensor in the order of `order`."""
        return tuple(self.sizes[dimension] for dimension in self.order)

    def _read(self, call: RecordedCall, later: Sequence[RecordedCall]) -> None:
        """Read one operation, given those after it."""
        sizes = _first_sizes(call)
        if sizes is None:
            return
        name = call.name.removeprefix("aten::")
        if name == "nonzero":
            self.masks.append(_Mask(sizes, _true_count(len(sizes), later)))
        elif name == "expand":
            self._sizes_before_broadcast.append(sizes)
        elif name == "_to_copy":
            self._copied_sizes.append(sizes)
        elif name == "permute" and sizes == self.sizes:
            self.order = _numbers(call, 1) or self.order
        elif name == "as_strided" and sizes == self.permuted_sizes:
            self._read_view(call)
        elif name == "reshape" and self.view is not None:
            self.reshapes.append(call)
            is_followed_by_view = bool(later) and later[0].name == "aten::view"
            self._is_broadcast.append(not is_followed_by_view)

    def _read_view(self, call: RecordedCall) -> None:
        """Read a view of the tensor; the last view is the indexed one."""
        sizes = _numbers(call, 1)
        strides = _numbers(call, 2)
        if sizes is not None and strides is not None:
            self.view = _StridedView(sizes, strides)

    def indices(self) -> list[_Index]:
        """Return the indices before they were broadcast."""
        sizes_before_broadcast = iter(self._sizes_before_broadcast)
        indices = []
        for call, is_broadcast in zip(self.reshapes, self._is_broadcast, strict=True):
            sizes = _first_sizes(call) or ()
            if is_broadcast:
                sizes = next(sizes_before_broadcast, sizes)
            torch_type = TORCH_TYPES.get(call.types[0], "int64")
            is_on_host = sizes in self._copied_sizes
            indices.append(
                _Index(sizes=sizes, torch_type=torch_type, is_on_host=is_on_host)
            )
        return indices

    def first_dimension(self) -> int:
        """Return the position in `order` of the first indexed dimension.

        Raises:
            NotReproducibleError: the view does not show it.
        """
        if self.view is None:
            return 0
        sizes = self.permuted_sizes
        index_sizes = _first_sizes(self.reshapes[0]) or ()
        count = len(self.reshapes)
        for first in range(len(sizes) - count + 1):
            expected = sizes[:first] + index_sizes + sizes[first + count :]
            end = first + len(index_sizes)
            is_indexed = not any(self.view.strides[first:end])
            if expected == self.view.sizes and is_indexed:
                return first
        raise NotReproducibleError(_NOT_SHOWN)


def _items(children: _Children) -> list[ArgumentSource]:
    """Return the list of indices: None for a dimension that is not indexed.

    Raises:
        NotReproducibleError: there are more indices than dimensions.
    """
    indices = children.indices()
    if len(indices) > len(children.sizes):
        raise NotReproducibleError(_NOT_SHOWN)
    first = children.first_dimension()
    index_of_dimension: dict[int, _Index] = {}
    for position, index in enumerate(indices):
        index_of_dimension[children.order[first + position]] = index
    masks = list(children.masks)
    items = []
    dimension = 0
    while index_of_dimension:
        if dimension not in index_of_dimension:
            items.append(ArgumentSource("None"))
            dimension += 1
        elif masks and masks[0].fits(children.sizes, dimension):
            mask = masks.pop(0)
            items.append(mask.source)
            for _ in range(max(len(mask.sizes), 1)):
                index_of_dimension.pop(dimension, None)
                dimension += 1
        else:
            index = index_of_dimension.pop(dimension)
            items.append(index.source(children.sizes[dimension]))
            dimension += 1
    return items


def _true_count(dimensions: int, later: Sequence[RecordedCall]) -> int | None:
    """Return how many elements of a mask are true, or None if it is not known.

    This is the number of rows in the result of `nonzero`. PyTorch selects the columns of this
    result, so the argument of `select` shows its sizes.

    Args:
        dimensions: the number of dimensions of the mask.
        later: the operations after `nonzero`.
    """
    for call in later:
        if call.name == "aten::nonzero":
            return None
        sizes = _first_sizes(call)
        if call.name != "aten::select" or sizes is None or len(sizes) != 2:
            continue
        rows, columns = sizes
        if columns == dimensions:
            return rows
    return None


def _first_sizes(call: RecordedCall) -> Sizes | None:
    """Return the sizes of the first argument, or None if it is not a tensor."""
    return sizes_of(call.dims[0]) if call.dims else None


def _numbers(call: RecordedCall, position: int) -> Sizes | None:
    """Return an argument that is a list of integers, or None if it is something else."""
    if call.concrete is None or position >= len(call.concrete):
        return None
    try:
        numbers = numbers_of(call.concrete[position])
    except NotReproducibleError:
        return None
    return tuple(number for number in numbers if type(number) is int)
