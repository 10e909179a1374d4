"""What a profiler notes about launches, copies and kernels beside when and where they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens_ext.demo.kernels import Kernel
    from tracelens_ext.demo.vendors import Vendor

_REGISTERS = 65536
_THREADS = 2048
_SHARED_MEMORY = 233472
_HOST_ADDRESS = "0x55d0c3a91e40"
_DEVICE_ADDRESS = "0x7f2000004200"


def blocks_for(kernel: Kernel, elements: int) -> int:
    """How many blocks a kernel needs for that many elements."""
    return kernel.blocks or max(1, -(-elements // (kernel.threads * kernel.per_thread)))


def launch_arguments(vendor: Vendor, kernel: Kernel, grid: int) -> dict[str, object]:
    """Of a launch: roctracer notes the kernel, CUPTI nothing."""
    if vendor.key != "amd":
        return {}
    return {
        "kernel": kernel.name,
        "grid": [grid, 1, 1],
        "block": [kernel.threads, 1, 1],
        "shared memory": kernel.shared_memory,
    }


def copy_call_arguments(vendor: Vendor, direction: str, nbytes: int) -> dict[str, object]:
    """Of a copy's runtime call: roctracer notes its arguments, as text."""
    if vendor.key != "amd":
        return {}
    ends = {"H": _HOST_ADDRESS, "D": _DEVICE_ADDRESS}
    return {
        "src": ends[direction[0]],
        "dst": ends[direction[3]],
        "bytes": str(nbytes),
        "kind": {"HtoD": "1", "DtoH": "2", "DtoD": "3"}[direction],
    }


def kernel_arguments(
    vendor: Vendor, kernel: Kernel, grid: int, *, graph: bool = False
) -> dict[str, object]:
    """Of a kernel; about a HIP graph's kernels roctracer says next to nothing."""
    if vendor.key == "amd":
        if graph:
            return {"kind": "Dispatch Task"}
        return {
            "kind": "Dispatch Kernel",
            "grid": [grid, 1, 1],
            "block": [kernel.threads, 1, 1],
        }
    blocks = grid / vendor.multiprocessors
    return {
        "registers per thread": kernel.registers,
        "shared memory": kernel.shared_memory,
        "blocks per SM": round(blocks, 6),
        "warps per SM": round(blocks * -(-kernel.threads // vendor.warp), 6),
        "grid": [grid, 1, 1],
        "block": [kernel.threads, 1, 1],
        "est. achieved occupancy %": _occupancy(kernel, blocks),
    }


def _occupancy(kernel: Kernel, blocks: float) -> int:
    """The share of an SM's threads that the kernel can keep resident, in percent."""
    limits = [_THREADS // kernel.threads, _REGISTERS // (kernel.registers * kernel.threads)]
    if kernel.shared_memory:
        limits.append(_SHARED_MEMORY // kernel.shared_memory)
    resident = min(float(min(limits)), blocks)
    return round(100 * resident * kernel.threads / _THREADS)
