"""What a process leaves behind: its trace, and a file that says what became of it."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import socket
import sys
import time
from typing import Any, Dict, Optional

#: Folder of the files about processes, in the folder of the hook.
PROCESSES = "processes"
TRACE_SUFFIX = ".pt.trace.json.gz"
SNAPSHOT_SUFFIX = ".memory.pickle"
_MARK = b'"ProfilerStep#%d"'
_UNFINISHED = b'"Unfinished iteration %d"'
#: An operation in a trace.
_OPERATION = b'"cpu_op"'
#: Control characters, which some versions of PyTorch write into names, become question marks.
_PRINTABLE = bytes(
    code if code >= 0x20 or code in b"\n\r\t" else ord("?") for code in range(256)
)
_CHUNK_BYTES = 1 << 20
#: Twice as large as the smallest, and three times as fast.
_COMPRESSION = 3
_NUMBERS = 1_000_000


class ProcessFile:
    """The files of this process in the folder of the hook, and those that it leaves beside it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._host = socket.gethostname()
        self.begin_afresh()

    def begin_afresh(self) -> None:
        """Forget what is known, as after `fork`."""
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
        """What is known of the process."""
        return dict(self._facts)

    @property
    def output_folder(self) -> str:
        """The folder of the traces."""
        return os.path.dirname(self._folder)

    def scratch(self, suffix: str) -> str:
        """Return the path of a file of this process that is not whole yet."""
        return self._path(suffix)

    def write(self, **facts: Any) -> None:
        """Add facts; the file has all of them or those from before."""
        self._facts.update(facts, updated=time.time())
        unfinished = self._path(".new")
        try:
            with open(unfinished, "w", encoding="utf-8") as file:
                json.dump(self._facts, file)
            os.replace(unfinished, self._path(".json"))
        except OSError:
            pass  # the folder is gone: nobody waits for this

    def forget(self, state: str) -> None:
        """Take the file away: this process is none that anybody wants to know about."""
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
        source: The trace as PyTorch wrote it.
        target: The compressed trace.
        unfinished: The iteration that did not end, whose mark gets another name; None if all did.
    """
    mark = _MARK % (unfinished or 0)
    replacement = _UNFINISHED % (unfinished or 0)
    has_operations = False
    rest = b""
    # Some versions write bytes into names that are not UTF-8.
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
            # A mark may lie across two chunks.
            packed.write(text[: -len(mark)])
            rest = text[-len(mark) :]


def publish(source: str, folder: str, rank: Optional[int], first_free: int) -> str:
    """Give a whole trace its name, `rankN…`, which no other process has taken; return its path.

    Args:
        source: The trace, on the same file system.
        folder: Where it goes.
        rank: The rank of the process, if it says one; else the numbers go by the order of writing.
        first_free: The first number of a process whose rank another one has taken already.
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
        except OSError:  # a file system without links
            if os.path.exists(path):
                continue
            os.rename(source, path)
            return path
        os.unlink(source)
        return path
    raise OSError("the folder already contains a million traces")
