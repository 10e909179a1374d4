"""A small caching allocator, so that the trace's memory events add up."""

from __future__ import annotations

from dataclasses import dataclass, field

_GRAIN = 512
_SEGMENT = 20 << 20
_BASE_ADDRESS = 0x7F20_0000_0000


@dataclass(slots=True)
class Block:
    """A piece of device memory in use."""

    address: int
    nbytes: int


@dataclass(slots=True)
class Allocator:
    """Hands out device memory, reuses what was given back, and keeps the totals.

    Attributes:
        allocated: bytes in use.
        reserved: bytes taken from the device.
    """

    allocated: int = 0
    reserved: int = 0
    _next: int = _BASE_ADDRESS
    _idle: dict[int, list[int]] = field(default_factory=dict)

    def take(self, nbytes: int) -> Block:
        """A block of at least that many bytes: an idle one of the same size, or a new one."""
        size = -(-max(1, nbytes) // _GRAIN) * _GRAIN
        idle = self._idle.get(size)
        if idle:
            address = idle.pop()
        else:
            address = self._next
            self._next += size
            segments = -(-(self._next - _BASE_ADDRESS) // _SEGMENT)
            self.reserved = segments * _SEGMENT
        self.allocated += size
        return Block(address, size)

    def give_back(self, block: Block) -> None:
        """Keep a block for the next request of its size."""
        self.allocated -= block.nbytes
        self._idle.setdefault(block.nbytes, []).append(block.address)
