"""Profiles of JAX and XLA: xplane files, and their JSON for trace viewers.

What parses them is imported when a file is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

_RECORD = "with jax.profiler.trace('folder'): …"
#: Planes, errors, warnings and names of hosts: what there is in a profile.
_FIELDS = (b"\n", b"\x12", b"\x1a", b'"')
#: A profile begins with a plane: its id, if it is not 0, and its name.
_PLANE = re.compile(
    rb"\n[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12.(?:/host:|/device:)"
)
_PROCESS = re.compile(rb'"name"\s*:\s*"/(?:host|device):')


class XplaneReader(Reader):
    """Reads xplane files by `protobuf`."""

    name = "JAX/XLA profile"
    suffixes = (".xplane.pb",)
    how_to_record = f"{_RECORD} (folder/plugins/profile/…)"
    extra = "jax"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the content begins with a plane, or may and the name says so."""
        if path.name.lower().endswith(self.suffixes):
            return head.startswith(_FIELDS)
        return _PLANE.match(head) is not None

    def read_source(self, source: ByteSource) -> Trace:
        """Read a profile."""
        try:
            from tracelens_ext.readers.xplane import reader
        except ImportError as error:
            if not (error.name or "").startswith("google"):
                raise
            raise TraceFormatError(
                source.path,
                "is a profile of JAX, and reading it needs protobuf, not installed here",
                "run: pip install 'tracelens-ext[jax]'",
            ) from None
        return reader.read(source)


class JaxJsonReader(Reader):
    """Reads the JSON for trace viewers that JAX writes beside a profile."""

    name = "JAX/XLA trace for viewers (JSON)"
    suffixes = (".trace.json.gz",)
    how_to_record = f"{_RECORD}; it has no shapes: give the .xplane.pb beside it if you can"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether a file is JSON that begins with the processes of JAX."""
        return head.lstrip().startswith(b"{") and _PROCESS.search(head) is not None

    def read_source(self, source: ByteSource) -> Trace:
        """Read a document."""
        from tracelens_ext.readers.xplane import viewer_json

        return viewer_json.read(source)
