"""The indices of `aten::index` and `aten::index_put_`: what the operations below it tell.

The profiler records nothing of a list that may have None in it. But PyTorch prepares indexing
(`TensorAdvancedIndexing.cpp`) with operations that it does record: `nonzero` for each mask,
`expand` for each index that is broadcast, `permute` where indexed dimensions are not adjacent,
`as_strided` for the tensor, with strides of 0 where it is indexed, and `reshape` for each index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

from tracelens_ext.reproduce.element_types import TORCH_TYPES
from tracelens_ext.reproduce.overloads import BoundCall
from tracelens_ext.reproduce.recorded_values import (
    NotReproducibleError,
    RecordedTensor,
    numbers_of,
)
from tracelens_ext.reproduce.source_lines import SourceLine
from tracelens_ext.reproduce.specification import RecordedCall, RecordedOperation

_INDEXING: Final = ("index", "_unsafe_index", "_unsafe_masked_index")
_PUTTING: Final = ("index_put", "_index_put_impl", "_unsafe_index_put")
#: The operations whose children a specification keeps.
TOLD_BY_CHILDREN: Final = frozenset(
    f"aten::{name}{ending}" for name in (*_INDEXING, *_PUTTING) for ending in ("", "_")
)
_NOT_TOLD: Final = (
    "its indices are not recorded and cannot be inferred from the operations below it"
)

Sizes = tuple[int, ...]


class _Restrided(NamedTuple):
    """The view of the tensor that is indexed: strides are 0 where it is."""

    sizes: Sizes
    strides: Sizes


@dataclass(frozen=True)
class _Index:
    """An index before it is broadcast."""

    sizes: Sizes
    torch_type: str
    is_on_host: bool = False


@dataclass(frozen=True)
class _Mask:
    """Truth values that stand for as many indices as they have dimensions."""

    sizes: Sizes
    true_count: int | None


def is_indexing(call: BoundCall) -> bool:
    """Return whether a call takes a list of indices."""
    return call.schema.name in TOLD_BY_CHILDREN


def index_lines(operation: RecordedOperation, call: BoundCall) -> SourceLine:
    """Return the list of indices.

    Raises:
        NotReproducibleError: the operations below it do not tell them.
    """
    tensor = call.tensor("self")
    if tensor is None:
        raise NotReproducibleError(_NOT_TOLD)
    children = _Children(operation.children, tensor.sizes)
    if children.reshapes:
        return SourceLine.of_list(
            _items(children), "inferred from the operations below it"
        )
    values = call.tensor("values")
    if call.short_name in _PUTTING and values is not None:
        return _guessed_index(tensor, values)
    raise NotReproducibleError(_NOT_TOLD)


def _guessed_index(tensor: RecordedTensor, values: RecordedTensor) -> SourceLine:
    """Return one index into the first dimension, if the values that are put there fit it."""
    remaining = tensor.sizes[1:]
    index_rank = len(values.sizes) - len(remaining)
    if index_rank < 0 or not tensor.sizes or values.sizes[index_rank:] != remaining:
        raise NotReproducibleError(_NOT_TOLD)
    index = _Index(values.sizes[:index_rank], "int64")
    item = _index_item(index, tensor.sizes[0])
    return SourceLine.of_list([item], "guessed: one index, into the first dimension")


class _Children:
    """What the operations below an indexing one say, given the sizes of what is indexed."""

    def __init__(self, calls: Sequence[RecordedCall], sizes: Sizes) -> None:
        self.sizes = sizes
        self.reshapes: list[RecordedCall] = []
        self.masks: list[_Mask] = []
        self._is_broadcast: list[bool] = []
        self._expanded: list[Sizes] = []
        self._copied: list[Sizes] = []
        self.order = tuple(range(len(sizes)))
        self.restrided: _Restrided | None = None
        for position, call in enumerate(calls):
            self._read(call, calls[position + 1 :])

    def _read(self, call: RecordedCall, later: Sequence[RecordedCall]) -> None:
        name = call.name.removeprefix("aten::")
        sizes = _sizes_of(call)
        if sizes is None:
            return
        if name == "nonzero":
            self.masks.append(_Mask(sizes, _true_count(len(sizes), later)))
        elif name == "expand":
            self._expanded.append(sizes)
        elif name == "_to_copy":
            self._copied.append(sizes)
        elif name == "permute" and sizes == self.sizes:
            self.order = _numbers(call, 1) or self.order
        elif name == "as_strided":
            self._read_view(call, sizes)
        elif name == "reshape" and self.restrided is not None:
            self.reshapes.append(call)
            following = later[0].name if later else ""
            self._is_broadcast.append(following != "aten::view")

    def _read_view(self, call: RecordedCall, sizes: Sizes) -> None:
        """The last view of the tensor with as many sizes as it has is the one that counts."""
        permuted = tuple(self.sizes[dimension] for dimension in self.order)
        view_sizes = _numbers(call, 1)
        strides = _numbers(call, 2)
        if sizes == permuted and view_sizes is not None and strides is not None:
            self.restrided = _Restrided(view_sizes, strides)

    def indices(self) -> list[_Index]:
        """Return the indices, each before it was broadcast."""
        expanded = iter(self._expanded)
        indices = []
        for call, is_broadcast in zip(self.reshapes, self._is_broadcast, strict=True):
            sizes = _sizes_of(call) or ()
            if is_broadcast:
                sizes = next(expanded, sizes)
            torch_type = TORCH_TYPES.get(call.types[0], "int64")
            indices.append(_Index(sizes, torch_type, sizes in self._copied))
        return indices

    def first_dimension(self) -> int:
        """Return where the indexed dimensions begin, in the order of `permute`."""
        if self.restrided is None:
            return 0
        index_sizes = _sizes_of(self.reshapes[0]) or ()
        count = len(self.reshapes)
        permuted = tuple(self.sizes[dimension] for dimension in self.order)
        for first in range(len(permuted) - count + 1):
            end = first + len(index_sizes)
            expected = (*permuted[:first], *index_sizes, *permuted[first + count :])
            is_indexed = not any(self.restrided.strides[first:end])
            if expected == self.restrided.sizes and is_indexed:
                return first
        raise NotReproducibleError(_NOT_TOLD)


def _items(children: _Children) -> list[str]:
    """Return an item for each dimension up to the last that is indexed; a mask has several."""
    indices = children.indices()
    if len(indices) > len(children.sizes):
        raise NotReproducibleError(_NOT_TOLD)
    first = children.first_dimension()
    index_of_dimension: dict[int, _Index] = {}
    for position, index in enumerate(indices):
        index_of_dimension[children.order[first + position]] = index
    masks = list(children.masks)
    items = []
    dimension = 0
    while index_of_dimension:
        if dimension not in index_of_dimension:
            items.append("None")
            dimension += 1
            continue
        index = index_of_dimension.pop(dimension)
        if masks and _fits(masks[0], children.sizes, dimension):
            mask = masks.pop(0)
            items.append(_mask_item(mask))
            end = dimension + len(mask.sizes)
            covered = range(dimension + 1, end)
            index_of_dimension = {
                other: value
                for other, value in index_of_dimension.items()
                if other not in covered
            }
            dimension = end - 1
        else:
            items.append(_index_item(index, children.sizes[dimension]))
        dimension += 1
    return items


def _fits(mask: _Mask, sizes: Sizes, dimension: int) -> bool:
    """Return whether a mask has the sizes of the dimensions that it would index."""
    return sizes[dimension : dimension + len(mask.sizes)] == mask.sizes


def _mask_item(mask: _Mask) -> str:
    count = ""
    if mask.true_count is not None and mask.true_count <= prod(mask.sizes):
        count = f", true_count={mask.true_count}"
    return f"inputs.mask({mask.sizes}{count})"


def _index_item(index: _Index, size: int) -> str:
    on_host = ", on_host=True" if index.is_on_host else ""
    arguments = f"{index.sizes}, torch.{index.torch_type}, high={size}{on_host}"
    return f"inputs.integers({arguments})"


def _true_count(dimensions: int, later: Sequence[RecordedCall]) -> int | None:
    """Return how many truth values are true: as many as `nonzero` returned rows."""
    for call in later:
        sizes = _sizes_of(call)
        is_row_of_result = call.name == "aten::select" and sizes is not None
        if (
            is_row_of_result
            and len(sizes or ()) == 2
            and (sizes or ())[1] == dimensions
        ):
            return (sizes or ())[0]
        if call.name == "aten::nonzero":
            return None
    return None


def _sizes_of(call: RecordedCall) -> Sizes | None:
    """Return the sizes of the first argument; None where they are no sizes."""
    if not call.dims or not isinstance(call.dims[0], tuple):
        return None
    sizes = [size for size in call.dims[0] if type(size) is int and size >= 0]
    return tuple(sizes) if len(sizes) == len(call.dims[0]) else None


def _numbers(call: RecordedCall, position: int) -> Sizes | None:
    """Return an argument that is a list of whole numbers; None where it is none."""
    if call.concrete is None or position >= len(call.concrete):
        return None
    try:
        numbers = numbers_of(call.concrete[position])
    except NotReproducibleError:
        return None
    return tuple(number for number in numbers if type(number) is int)
