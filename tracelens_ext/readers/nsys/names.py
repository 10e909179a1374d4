"""What Nsight Systems calls things, and what the rest of the program calls them."""

from __future__ import annotations

import re

from tracelens_ext.trace import NONE

_API_VERSION = re.compile(r"(?:_pt[sd][sz])?(?:_v[0-9]{4,6})?(?:_pt[sd][sz])?")
_EMITTED = re.compile(
    rb", (?:seq = ([0-9]{1,18})(?:, op_id = ([0-9]{1,18}))?|op_id = ([0-9]{1,18}))"
    rb"(?:, sizes = (\[[0-9\[\], -]*\]))?(?:, input_op_ids = .*)?\Z",
    re.DOTALL,
)

#: `copyKind` → how the newer exports label it (`ENUM_CUDA_MEMCPY_OPER`), whatever the version.
_COPY_KINDS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
    "Unified Host-to-Device",
    "Unified Device-to-Host",
    "Unified Device-to-Device",
)
MEMSET_NAME = "[CUDA memset]"


def memcpy_name(copy_kind: int, label: str | None = None) -> str:
    """A copy as `nsys stats` names it: `[CUDA memcpy Host-to-Device]`.

    Args:
        copy_kind: the number in the export.
        label: what the export itself says of a number that is not known here.
    """
    if 0 <= copy_kind < len(_COPY_KINDS):
        return f"[CUDA memcpy {_COPY_KINDS[copy_kind]}]"
    return f"[CUDA memcpy {label or f'kind {copy_kind}'}]"


def api_name(name: str) -> str:
    """A CUDA call without the version of its interface: `cudaLaunchKernel` of `…_v7000`.

    What belongs to the name stays: `cudaStreamGetCaptureInfo_v2`, `cuMemcpyHtoDAsync_v2`.
    """
    found = re.search(rf"{_API_VERSION.pattern}\Z", name)
    return name[: found.start()] or name if found else name


def emitted_op(text: bytes) -> tuple[bytes, int, int, bytes] | None:
    """The operation that a range of `torch.autograd.profiler.emit_nvtx()` is about.

    `aten::mm, seq = 12, op_id = 345, sizes = [[8, 4], [4, 2]]`: PyTorch writes a sequence number,
    a number of the call, or both.

    Returns:
        Its name; its autograd sequence number, and the number of the call (of two operations the
        outer has the lower), `NONE` where there is none; the shapes of its inputs as JSON, empty
        where they were not recorded. None for any other range.
    """
    found = _EMITTED.search(text)
    if found is None or not found.start():
        return None
    sequence, op_id, only_id, sizes = found.groups()
    return text[: found.start()], int(sequence or NONE), int(op_id or only_id or NONE), sizes or b""
