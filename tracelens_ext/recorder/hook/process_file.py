"""The files that a process writes: its trace, and facts about the recording."""

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
#: The name of the annotation of an iteration, in a trace.
_MARK = b'"ProfilerStep#%d"'
#: The name that the annotation gets if the iteration did not end.
_UNFINISHED = b'"Unfinished iteration %d"'
#: The category of operations, in a trace.
_OPERATION = b'"cpu_op"'
#: Translates control characters to question marks; some versions of PyTorch write them into names.
_PRINTABLE = bytes(
    code if code >= 0x20 or code in b"\n\r\t" else ord("?") for code in range(256)
)
_CHUNK_BYTES = 1 << 20
#: The level of gzip. Files are twice as large as at the highest level, in a third of the time.
_COMPRESSION = 3
#: How many names of traces are tried at most.
_MOST_NAMES = 1_000_000


class ProcessFile:
    """The files of this process in the folder of the hook."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._host = socket.gethostname()
        self.begin_afresh()

    def begin_afresh(self) -> None:
        """Forget all facts, as a process must after it was forked."""
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
        """The facts about the process."""
        return dict(self._facts)

    @property
    def output_folder(self) -> str:
        """The folder of the traces."""
        return os.path.dirname(self._folder)

    def scratch(self, suffix: str) -> str:
        """Return the path of a temporary file of this process."""
        return self._path(suffix)

    def write(self, **facts: Any) -> None:
        """Add facts, and replace the file at once, so that it is never incomplete."""
        self._facts.update(facts, updated=time.time())
        unfinished = self._path(".new")
        try:
            with open(unfinished, "w", encoding="utf-8") as file:
                json.dump(self._facts, file)
            os.replace(unfinished, self._path(".json"))
        except OSError:
            pass  # the folder no longer exists, because the recording is over

    def forget(self, state: str) -> None:
        """Remove the file of a process that is not to be reported, such as a data loader worker."""
        self._facts["state"] = state
        try:
            os.unlink(self._path(".json"))
        except OSError:
            pass

    def _path(self, suffix: str) -> str:
        name = "{}-{}{}".format(self._host, os.getpid(), suffix)
        return os.path.join(self._folder, PROCESSES, name)


def compress(source: str, target: str, unfinished: Optional[int]) -> bool:
    """Compress a trace, and return True if it contains any operation.

    Args:
        source: Path of the trace as PyTorch wrote it.
        target: Path of the compressed trace.
        unfinished: Number of the iteration that did not end, whose annotation is renamed; None if
            all iterations ended.
    """
    mark = _MARK % (unfinished or 0)
    replacement = _UNFINISHED % (unfinished or 0)
    has_operations = False
    # The end of the previous chunk, in case a name continues in the next one.
    carried_over = b""
    # Some versions of PyTorch write bytes into names that are not UTF-8.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open(source, "rb") as plain, gzip.open(target, "wb", _COMPRESSION) as packed:
        while True:
            chunk = plain.read(_CHUNK_BYTES)
            valid = decoder.decode(chunk.translate(_PRINTABLE), final=not chunk)
            text = carried_over + valid.encode("utf-8")
            if unfinished is not None:
                text = text.replace(mark, replacement)
            has_operations = has_operations or _OPERATION in text
            if not chunk:
                packed.write(text)
                return has_operations
            packed.write(text[: -len(mark)])
            carried_over = text[-len(mark) :]


def publish(source: str, folder: str, rank: Optional[int], first_free: int) -> str:
    """Move a complete trace to its name, `rankN…`, which no other trace has; return its path.

    Args:
        source: Path of the trace, on the same file system.
        folder: The folder for the trace.
        rank: The rank of the process; None if it is not known.
        first_free: The first number to try if there is no rank, or if its name is taken.
    """
    numbers = list(range(first_free, first_free + _MOST_NAMES))
    if rank is not None:
        numbers.insert(0, rank)
    for number in numbers:
        path = os.path.join(folder, "rank{}{}".format(number, TRACE_SUFFIX))
        try:
            # Unlike renaming, a link fails if another process has just taken the name.
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
