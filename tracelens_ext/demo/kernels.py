"""Which kernels each step of the simulated model launches: by role, with the right category.

A role is what the model asks for (`gemm`, `attention_backward`); the table answers with one or
more kernels and each one's share of the role's time. `kernels_common` holds what PyTorch, Triton
and vLLM launch on either vendor, `kernels_nvidia` and `kernels_amd` the vendors' libraries.
The category is the answer a correct categorizer gives, so that a test can compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNCATEGORIZED = "Uncategorized"

_ATEN = "at::native"
_ANON = "at::native::(anonymous namespace)"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as its library names and launches it.

    Attributes:
        name: as the profiler writes it.
        category: what a correct categorizer says.
        launcher: the key of the runtime function in `Vendor.api`.
        threads: threads in a block.
        registers: registers of a thread.
        shared_memory: bytes of a block.
        per_thread: elements that one thread handles; it sets the size of the grid.
        blocks: a fixed number of blocks instead, for kernels that stay resident.
    """

    name: str
    category: str
    launcher: str = "launch"
    threads: int = 128
    registers: int = 32
    shared_memory: int = 0
    per_thread: int = 4
    blocks: int = 0


Roles = Mapping[str, tuple[tuple[Kernel, float], ...]]


def vectorized(functor: str, arrays: int, width: int = 8) -> str:
    """The name of PyTorch's vectorised element-wise kernel around a functor."""
    arguments = f"{functor}, std::array<char*, {arrays}ul>"
    return f"void {_ATEN}::vectorized_elementwise_kernel<{width}, {arguments} >(int, {arguments})"


def dispatched(function: str, case: int, signature: str, outer: int = 1) -> str:
    """The lambda inside a PyTorch kernel function, as the demangler spells it."""
    return (
        f"{_ATEN}::{function}(at::TensorIteratorBase&)::{{lambda()#{outer}}}::operator()() const::"
        f"{{lambda()#{case}}}::operator()() const::{{lambda({signature})#1}}"
    )


def reduction(functor: str) -> str:
    """The name of PyTorch's reduction kernel around a functor."""
    operation = f"{_ATEN}::ReduceOp<float, {functor}, unsigned int, float, 4, 4>"
    return f"void {_ATEN}::reduce_kernel<512, 1, {operation} >({operation})"


def multi_tensor(metadata: str, functor: str, rest: str) -> str:
    """The name of PyTorch's kernel that applies a functor to many tensors at once."""
    arguments = f"{_ANON}::{metadata}, {_ANON}::{functor}, {rest}"
    return f"void {_ANON}::multi_tensor_apply_kernel<{arguments}>({arguments})"


def unrolled(functor: str) -> str:
    """The name of PyTorch's element-wise kernel for strided tensors around a functor."""
    implementation = f"{_ATEN}::gpu_kernel_impl_nocast<{functor}>"
    body = f"{implementation}(at::TensorIteratorBase&, {functor} const&)::{{lambda(int, bool)#1}}"
    return f"void {_ATEN}::elementwise_kernel_manual_unroll<128, 8, {body}>(int, {body})"


def one(name: str, category: str, **launch: int | str) -> tuple[tuple[Kernel, float], ...]:
    """A role that is one kernel; `launch` are the other fields of `Kernel`."""
    return ((Kernel(name, category, **launch), 1.0),)  # type: ignore[arg-type]


def kernels_for(vendor: str) -> Roles:
    """Every role's kernels on the machines of a vendor (``nvidia`` or ``amd``)."""
    from tracelens_ext.demo import kernels_common

    if vendor == "amd":
        from tracelens_ext.demo.kernels_amd import ROLES
    else:
        from tracelens_ext.demo.kernels_nvidia import ROLES
    return {**kernels_common.ROLES, **ROLES}


def expected_categories(vendor: str) -> dict[str, str]:
    """Each kernel name the demo of a vendor may hold, with the right category.

    Kernels whose name leaves the category to the launching operation are listed with the
    category they have in the demo.
    """
    return {
        kernel.name: kernel.category
        for parts in kernels_for(vendor).values()
        for kernel, _ in parts
    }
