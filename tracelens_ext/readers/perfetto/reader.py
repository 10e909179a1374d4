"""Reader for Perfetto traces: packets of track events, of GPU render stages and of GPU counters.

Supports: what PyTorch's CUPTI monitor writes (slices, or render stages with the fields that it adds
to Perfetto's), rocprofv3, rocprof-sys: interned names, debug annotations, several sequences and
clocks, nested tracks, events in any order. Ignores: flows, counters of tracks, extra tracks.
Format: `trace_packet.proto` and `track_event.proto` of google/perfetto; of PyTorch's own fields
`torch/csrc/profiler/cupti/monitor_pftrace.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.perfetto.events import Events
from tracelens_ext.readers.perfetto.making import TraceMaker
from tracelens_ext.readers.perfetto.packets import windows
from tracelens_ext.readers.salvage import salvage_note
from tracelens_ext.readers.source import AGAIN
from tracelens_ext.readers.xplane.many_messages import PADDING, MessageError, fields_of
from tracelens_ext.readers.xplane.wire import DamagedError

if TYPE_CHECKING:
    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

FORMAT: Final = "Perfetto trace"


def read(source: ByteSource) -> Trace:
    """Read a file.

    Raises:
        TraceCutOffError: it ends in the middle.
        TraceFormatError: it is damaged, or a trace of a phone or a browser.
    """
    content = source.read_all()
    size = len(content)
    data = np.frombuffer(b"".join((content, PADDING)), dtype=np.uint8)
    del content
    events = Events(data)
    damage: TraceError | None = source.damage
    place = 0
    try:
        for start, end in windows(data, size):
            place = int(start[0])
            events.take(fields_of(data, start, end), len(start))
            place = int(end[-1])
    except DamagedError as error:
        problem = "ends in the middle" if error.is_cut else f"is damaged at byte {place:,}"
        kind = TraceCutOffError if error.is_cut else TraceFormatError
        damage = damage or kind(source.path, problem, AGAIN)
    except MessageError:
        problem = f"is damaged behind byte {place:,}"
        damage = damage or TraceFormatError(source.path, problem, AGAIN)
    notes: tuple[str, ...] = ()
    if damage is not None:
        notes = (salvage_note(source, damage, place, events.count),)
    return TraceMaker(events).finish(source.path, FORMAT, size, notes)
