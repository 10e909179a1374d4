"""An SQLite export of Nsight Systems: its tables, its texts, and what it says about itself.

Format: the SQLite schema reference in the documentation of Nsight Systems.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceError
from tracelens_ext.readers.source import SQLITE_MAGIC
from tracelens_ext.readers.sqlite_columns import Database, OtherDatabaseError

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.trace import Int64Array

_SEVERE, _MOST_TOLD = (b"2", b"3"), 5  # warnings and errors
_META_DATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")


class NsysDatabase(Database):
    """An open export."""

    format = "export of Nsight Systems"
    remedy = "export it with `nsys export --type sqlite REPORT.nsys-rep`"

    def _is_ours(self) -> bool:
        return "StringIds" in self.tables and any(
            name in _META_DATA or name == "NVTX_EVENTS" or name.startswith("CUPTI_ACTIVITY_KIND_")
            for name in self.tables
        )

    def strings(self, ids: Int64Array) -> list[str | None]:
        """The texts that ids of `StringIds` stand for; None of one that is not there."""
        return self.look_up("StringIds", "value", ids)

    def meta_data(self) -> dict[str, str]:
        """What the export says about itself, by name."""
        for table in _META_DATA:
            names = [_text(name) for name in self.texts(table, "name")]
            if names:
                values = [_text(value) for value in self.texts(table, "value")]
                return dict(zip(names, values, strict=True))
        return {}

    def diagnostics(self) -> list[str]:
        """The warnings and errors of the recording, each once."""
        table = "DIAGNOSTIC_EVENT"
        told = zip(self.texts(table, "severity"), self.texts(table, "text"), strict=True)
        found = [_text(text).strip() for severity, text in told if severity in _SEVERE]
        return list(dict.fromkeys(found))[:_MOST_TOLD]


def is_other_database(path: Path) -> bool:
    """Whether a file is a database of something else, and not one that is merely damaged."""
    try:
        with path.open("rb") as file:
            if file.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
                return False
        NsysDatabase(str(path), path).close()
    except OtherDatabaseError:
        return True
    except (OSError, TraceError):
        return False
    return False


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
