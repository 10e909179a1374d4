"""Writes the files that a process leaves: its trace, and a file about its outcome."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import socket
import sys
import time
from typing import Any, Dict, Optional

#: The folder for the files about processes, within the folder of the hook.
PROCESSES = "processes"
TRACE_SUFFIX = ".pt.trace.json.gz"
SNAPSHOT_SUFFIX = ".memory.pickle"
_MARK = b'"ProfilerStep#%d"'
_UNFINISHED = b'"Unfinished iteration %d"'
#: Text that occurs in a trace with any operation.
_OPERATION = b'"cpu_op"'
#: Replaces control characters, which some versions of PyTorch write into names, by question marks.
_PRINTABLE = bytes(
    code if code >= 0x20 or code in b"\n\r\t" else ord("?") for code in range(256)
)
_CHUNK_BYTES = 1 << 20
#: Level of compression: files are twice as large as the smallest, and written three times as fast.
_COMPRESSION = 3
_NUMBERS = 1_000_000


class ProcessFile:
    """The files of this process in the folder of the hook, and in the output folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._host = socket.gethostname()
        self.begin_afresh()

    def begin_afresh(self) -> None:
        """Start with an empty file, as after `fork`."""
        self._facts: Dict[str, Any] = {
            "state": "waiting",
            "pid": os.getpid(),
            "parent": os.getppid(),
            "host": self._host,
            "started": time.time(),
            "program": list(getattr(sys, "argv", [])),
        }

    @property
    def facts(self) -> Dict[str, Any]:
        """The facts about the process so far."""
        return dict(self._facts)

    @property
    def output_folder(self) -> str:
        """The folder for traces."""
        return os.path.dirname(self._folder)

    def scratch(self, suffix: str) -> str:
        """Return the path for a file of this process while it is being written."""
        return self._path(suffix)

    def write(self, **facts: Any) -> None:
        """Add facts to the file, which is replaced only as a whole."""
        self._facts.update(facts, updated=time.time())
        unfinished = self._path(".new")
        try:
            with open(unfinished, "w", encoding="utf-8") as file:
                json.dump(self._facts, file)
            os.replace(unfinished, self._path(".json"))
        except OSError:
            pass  # the folder has been removed: `record` has ended

    def forget(self, state: str) -> None:
        """Remove the file, as this process is of no interest."""
        self._facts["state"] = state
        try:
            os.unlink(self._path(".json"))
        except OSError:
            pass

    def _path(self, suffix: str) -> str:
        name = "{}-{}{}".format(self._host, os.getpid(), suffix)
        return os.path.join(self._folder, PROCESSES, name)


def compress(source: str, target: str, unfinished: Optional[int]) -> bool:
    """Compress a trace, and return whether it has any operation.

    Args:
        source: the trace as PyTorch wrote it.
        target: the compressed trace.
        unfinished: the iteration that did not end, whose mark gets another name; None if all did.
    """
    mark = _MARK % (unfinished or 0)
    replacement = _UNFINISHED % (unfinished or 0)
    has_operations = False
    rest = b""
    # Some versions of PyTorch write bytes that are not UTF-8.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open(source, "rb") as plain, gzip.open(target, "wb", _COMPRESSION) as packed:
        while True:
            chunk = plain.read(_CHUNK_BYTES)
            valid = decoder.decode(chunk.translate(_PRINTABLE), final=not chunk)
            text = rest + valid.encode("utf-8")
            if unfinished is not None:
                text = text.replace(mark, replacement)
            has_operations = has_operations or _OPERATION in text
            if not chunk:
                packed.write(text)
                return has_operations
            # A mark may extend over two chunks.
            packed.write(text[: -len(mark)])
            rest = text[-len(mark) :]


def publish(source: str, folder: str, rank: Optional[int], first_free: int) -> str:
    """Give a complete trace a name `rankN…` that no other process has taken, and return its path.

    Args:
        source: the trace, on the same file system.
        folder: the folder for it.
        rank: the rank of the process. If unknown, traces are numbered in the order of writing.
        first_free: the first number to try if another process has taken the name of this rank.
    """
    numbers = list(range(first_free, first_free + _NUMBERS))
    if rank is not None:
        numbers.insert(0, rank)
    for number in numbers:
        path = os.path.join(folder, "rank{}{}".format(number, TRACE_SUFFIX))
        try:
            os.link(source, path)
        except FileExistsError:
            continue
        except OSError:  # the file system does not support links
            if os.path.exists(path):
                continue
            os.rename(source, path)
            return path
        os.unlink(source)
        return path
    raise OSError("the folder already contains a million traces")
