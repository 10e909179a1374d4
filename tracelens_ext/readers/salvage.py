"""Says what is lost of a damaged file whose beginning was read."""

from __future__ import annotations

from tracelens_ext.errors import TraceCutOffError, TraceError
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN, REMEDY_SALVAGE
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.text import counted
from tracelens_ext.trace import SALVAGED


def salvage_notes(
    source: ByteSource, damage: TraceError | None, end_of_text: int, events: int
) -> list[str]:
    """Return a sentence about the damage of a file that was salvaged; none without damage.

    Args:
        source: the file. It is read to its end if only that tells how much text is lost.
        damage: what is wrong with the file; None if nothing is.
        end_of_text: the byte of the text up to which it was read.
        events: the number of events that were read.

    Raises:
        TraceError: the damage, if damaged files are not to be salvaged, or no event was read.
    """
    if damage is None:
        return []
    if not source.reading.allow_truncated:
        remedy = REMEDY_COPY_AGAIN
        if events:
            remedy = f"{REMEDY_COPY_AGAIN}, or {REMEDY_SALVAGE}"
        raise type(damage)(damage.path, damage.problem, remedy)
    if not events:
        # The user already asked to salvage the file; no advice is left.
        reason = "no event precedes the damage"
        raise type(damage)(damage.path, damage.problem, reason) from None
    losses = []
    lost_bytes = _lost_bytes(source, end_of_text)
    if lost_bytes:
        # The lost text is taken to hold as many events per byte as the text that was read.
        lost_count = round(lost_bytes * events / max(end_of_text, 1))
        lost_events = counted(lost_count, "event")
        loss = f"the last {lost_bytes:,} bytes (room for about {lost_events}) are lost"
        if source.damage is not None:
            loss = f"of what can be unpacked {loss}"
        losses.append(loss)
    is_cut_off = isinstance(damage, TraceCutOffError)
    if is_cut_off or source.damage is not None:
        losses.append(_loss_beyond(source))
    if not losses:
        losses.append("only the end of the document is lost")
    salvaged = f"all {events:,} events before byte {end_of_text:,} of the text are here"
    clauses = "; ".join([salvaged] + losses)
    return [f"{SALVAGED}({damage.problem}): {clauses}."]


def _lost_bytes(source: ByteSource, end_of_text: int) -> int:
    """Return how many bytes of text lie behind those that were read.

    Only the end of a gzip stream, or of an open file, tells how much text there is.
    """
    total = source.size
    if source.compressed or total is None:
        source.drain()
        total = source.bytes_read
    return max(total - end_of_text, 0)


def _loss_beyond(source: ByteSource) -> str:
    """Return a clause about the part of a cut off or damaged stream that cannot be measured."""
    loss = "everything after it is lost"
    if source.damage is not None and not source.cut_off:
        loss += ", and values before it may be wrong where the gzip stream is damaged"
    return loss
