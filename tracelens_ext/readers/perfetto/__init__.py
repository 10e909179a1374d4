"""Perfetto's own format (`.pftrace`), as PyTorch's CUPTI monitor, rocprofv3 and others write it.

What parses it is imported when a file is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens_ext.hooks import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

_SUFFIXES = (".pftrace", ".perfetto-trace")
#: A packet that begins with its time, sequence, clock, descriptor of a track or clock snapshot.
_PACKET = re.compile(rb"\n[\x80-\xff]{0,3}[\0-\x7f](?:[\x40\x50]|[\xd0\xe2]\x03|\x32[\0-\x7f]\n)")


class PerfettoReader(Reader):
    """Reads packets of track events and of GPU work."""

    name = "Perfetto trace"
    suffixes = (".pftrace", ".pftrace.gz", ".perfetto-trace")
    how_to_record = "rocprofv3 --sys-trace --output-format pftrace, or PyTorch's CUPTI monitor"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the content begins with a packet, or may and the name says so."""
        if path.name.lower().removesuffix(".gz").endswith(_SUFFIXES):
            return bool(head) and not head.lstrip().startswith((b"{", b"["))
        return _PACKET.match(head) is not None

    def read_source(self, source: ByteSource) -> Trace:
        """Read a file."""
        from tracelens_ext.readers.perfetto import making

        return making.read(source)
