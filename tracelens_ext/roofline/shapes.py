"""The arguments of an operation as a person reads them: `bf16 [16,559,559] × [16,559,64]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.operation import short_type

if TYPE_CHECKING:
    from tracelens_ext.roofline.found import RooflineRow
    from tracelens_ext.roofline.operation import Operation

_MOST_TENSORS: Final = 4
_PRODUCTS: Final = ("GEMM", "CONV_fwd")


def shape_text(row: RooflineRow) -> str:
    """Types and sizes of the tensors; empty where none are recorded.

    A type is said again where it changes; single elements and what comes late are left out.
    """
    op = row.operation
    parts = [*_tensors(op), *_lists(op)]
    product = row.cost is not None and row.cost.family in _PRODUCTS
    if product:  # neither what is added nor `out=`
        first = int(op.plain_name.startswith(("add", "_add", "badd")))
        parts = parts[first : first + 2]
    texts, before = [], ""
    for kind, text in parts[:_MOST_TENSORS]:
        texts.append(text if kind == before else f"{kind} {text}".lstrip())
        before = kind
    if len(parts) > _MOST_TENSORS:
        texts.append("…")
    return (" × " if product else ", ").join(texts)


def _tensors(op: Operation) -> list[tuple[str, str]]:
    return [(short_type(t.kind), _sizes(t.dims)) for t in op.tensors if t.dims]


def _lists(op: Operation) -> list[tuple[str, str]]:
    """Lists of tensors, whose type is not recorded: how many, and the sizes of the first."""
    return [
        ("", f"{len(parts)} × {_sizes(parts[0])}")
        for kind, parts in zip(op.types, op.dims, strict=False)
        if kind == "TensorList" and isinstance(parts, tuple) and parts
    ]


def _sizes(dims: object) -> str:
    return f"[{','.join(map(str, dims))}]" if isinstance(dims, tuple) else "[…]"
