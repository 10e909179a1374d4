"""The note about a trace that could not be read to its end: what was read, and what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.readers.source import AGAIN, SALVAGE

if TYPE_CHECKING:
    from tracelens_ext.errors import TraceError
    from tracelens_ext.readers.source import ByteSource


_AT_ONCE = 1 << 18


def salvage_note(source: ByteSource, damage: TraceError, place: int, events: int) -> str:
    """The note that goes with the events before damage, where these are asked for.

    Args:
        source: the bytes; what is left of them is read, to know how much that is.
        damage: what is wrong.
        place: the byte of the text before which all was read.
        events: how many events those bytes hold.

    Returns:
        A sentence.

    Raises:
        TraceError: `damage`, when they are not, or there are none.
    """
    if not source.reading.salvage:
        remedy = f"{AGAIN}, or {SALVAGE}" if events else AGAIN
        raise type(damage)(damage.path, damage.problem, remedy)
    if not events:
        raise type(damage)(damage.path, damage.problem, "no event comes before that") from None
    while source.read(_AT_ONCE) if source.size is None or source.compressed else b"":
        pass
    total = source.bytes_read if source.compressed or source.size is None else source.size
    return (
        f"Salvaged ({damage.problem}): all {events:,} events before byte {place:,} of the text are"
        f" here; {_lost(source, max(total - place, 0), events, place)}."
    )


def _lost(source: ByteSource, lost: int, events: int, place: int) -> str:
    """What is not there, a clause."""
    about = round(lost * events / max(place, 1))
    size = f"the last {lost:,} bytes (room for about {about:,} events) are lost"
    if source.damage is None:
        return size if lost else "nothing but the end of the document is lost"
    rest = "whatever the file held beyond is lost"
    if not source.cut_off:
        rest += ", and values before it may be wrong where the gzip stream is damaged"
    return f"of what can be unpacked {size}; {rest}" if lost else rest
