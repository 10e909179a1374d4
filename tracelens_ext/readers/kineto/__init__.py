"""The JSON of PyTorch's profiler. What parses it is imported when a file is read."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from tracelens_ext.hooks import Reader

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace


#: Set it to have Python read, also where the compiled reader was built.
PURE_PYTHON = "TRACELENS_EXT_PURE_PYTHON"


def compiled_reader() -> ModuleType | None:
    """The compiled reader; None where it was not built or is not wanted."""
    if os.environ.get(PURE_PYTHON, "").strip() not in ("", "0"):
        return None
    try:
        return import_module("tracelens_ext.readers.kineto._native")
    except ImportError:
        return None


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
