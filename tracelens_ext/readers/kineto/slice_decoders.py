"""What `json_events` asks of those who decode its slices, here and elsewhere."""

from __future__ import annotations

from typing import Protocol, TypeVar

E = TypeVar("E")


class EventDecoder(Protocol[E]):
    """Turns JSON text into events."""

    def decode(self, text: bytes) -> list[E]:
        """Decode an array of events; raises `msgspec.DecodeError` when one is unusual."""

    def repair(self, event: object) -> E | None:
        """Make the best of one unusual event; None when it had to be dropped (and counted)."""


class SlicesAhead(Protocol):
    """Decodes slices elsewhere, several at a time, and takes them over in their order."""

    def has_room(self) -> bool:
        """Whether another slice can be put."""

    def put(self, parts: tuple[bytes | memoryview, ...]) -> bool:
        """Have a slice decoded, the parts of whose text follow each other; False: it is too big."""

    def is_ready(self) -> bool:
        """Whether the oldest slice can be taken over at once."""

    def take(self) -> int | None:
        """Take over the oldest slice.

        Returns:
            How many events it held; None when the decoder refused it, or it was lost.
        """

    def forget(self) -> None:
        """Drop every slice that was put and not taken over."""
