"""The two simulated machines, as ``nvidia.json`` and ``amd.json`` describe them.

The rates there are what a well tuned library reaches, not the peak, so that times computed back
from shapes give believable TFLOP/s and GB/s.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

VENDORS = ("nvidia", "amd")
DEVICES_PER_NODE = 8

# What a kernel has that its line does not say.
_KERNEL = {"api": "launch", "threads": 128, "registers": 32, "shared": 0}
_KERNEL |= {"per_thread": 4, "blocks": 0, "share": 1.0}


def read_data(name: str) -> dict[str, Any]:
    """A data file beside this module, by its name without ``.json``."""
    text = files(__package__ or "").joinpath(f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


class Machine:
    """What differs between NVIDIA and AMD: rates, calls, kernels, and what profilers note.

    Args:
        vendor: ``nvidia`` or ``amd``.

    Attributes:
        is_amd: whether roctracer records, not CUPTI.
        data: the vendor's file.
        kernels: the kernels of each role, which share its device time; ``category`` is what a
            correct categorizer says of one.
        calls: runtime functions by what the engine uses them for.
        us: latencies of host and device in microseconds.
    """

    def __init__(self, vendor: str) -> None:
        self.is_amd = vendor == "amd"
        self.data = read_data(vendor)
        roles = read_data("kernels")["kernels"] | self.data["kernels"]
        self.kernels: dict[str, list[dict[str, Any]]] = {
            role: [_KERNEL | kernel for kernel in kernels]
            for role, kernels in roles.items()
        }
        self.calls: dict[str, dict[str, Any]] = self.data["calls"]
        self.us: dict[str, float] = self.data["us"]

    def traffic_us(self, nbytes: float, over: str = "memory") -> float:
        """Time to move that many bytes over the device's memory or another link."""
        rate: float = self.data["gb_per_s"][over]
        return nbytes / (rate * 1e3) + 1.0

    def kernel_us(self, role: str, nbytes: float, flops: float) -> float:
        """Device time of a kernel: to compute or to move the data, whichever is longer."""
        compute = flops / (self.data["tflops"][role] * 1e6) + 2.0 if flops else 0.0
        return max(compute, self.traffic_us(nbytes))

    def launch_shape(self, kernel: dict[str, Any], elements: int) -> dict[str, Any]:
        """Grid and block of a kernel over that many elements."""
        needed = max(1, -(-elements // (kernel["threads"] * kernel["per_thread"])))
        return {
            "grid": [kernel["blocks"] or needed, 1, 1],
            "block": [kernel["threads"], 1, 1],
        }

    def launch_args(
        self, kernel: dict[str, Any], shape: dict[str, Any]
    ) -> dict[str, Any]:
        """What is noted about a launch: roctracer names the kernel, CUPTI says nothing."""
        if not self.is_amd:
            return {}
        return {"kernel": kernel["name"], **shape, "shared memory": kernel["shared"]}

    def kernel_args(
        self, kernel: dict[str, Any], shape: dict[str, Any], *, graph: bool = False
    ) -> dict[str, Any]:
        """What is noted about a kernel; about a HIP graph's kernels next to nothing."""
        if self.is_amd:
            return (
                {"kind": "Dispatch Task"}
                if graph
                else {"kind": "Dispatch Kernel", **shape}
            )
        device = self.data["device"]
        blocks = shape["grid"][0] / device["numSms"]
        return {
            "registers per thread": kernel["registers"],
            "shared memory": kernel["shared"],
            "blocks per SM": round(blocks, 6),
            "warps per SM": round(
                blocks * -(-kernel["threads"] // device["warpSize"]), 6
            ),
            **shape,
        }
