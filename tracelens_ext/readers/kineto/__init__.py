"""The JSON of PyTorch's profiler. What parses it is imported when a file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.hooks import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace


class KinetoReader(Reader):
    """Reads any JSON document; one without `traceEvents` is refused, by name if it is known."""

    name = "PyTorch profiler (Kineto) JSON"
    suffixes = (".json", ".json.gz")
    how_to_record = "torch.profiler.profile(...), then export_chrome_trace('trace.json.gz')"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether a file begins as a JSON object or list does."""
        text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
        return text.startswith((b"{", b"[")) and text[1:2] != b"\0"  # which UTF-16 has there

    def read_source(self, source: ByteSource) -> Trace:
        """Read a document."""
        from tracelens_ext.readers import unsupported
        from tracelens_ext.readers.kineto import reader

        trace, members = reader.read(source)
        if trace is None:
            raise unsupported.refuse_members(source.path, members)
        return trace
