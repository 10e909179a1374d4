"""Reads the dumps of PyTorch's flight recorder, one file a rank.

Supports: what `torch._C._distributed_c10d._dump_nccl_trace()` returns, as the watchdog of NCCL
writes it (a pickle) or `_dump_nccl_trace_json()`; versions 2.0 to 2.10, by the members that are
there; also 1.x, whose calls have `seq_id`. Only plain data is unpickled, nothing is run.
Ignores: communicators (`nccl_comm_state`), statuses of process groups beyond their last calls.
Format: `torch/csrc/distributed/c10d/FlightRecorder.hpp` of PyTorch.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tracelens_ext.distributed.extract import numbers_in
from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.plain_pickle import unpickled
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable, one_line

WHAT: Final = "flight recorder dump"
REMEDY: Final = (
    "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the files"
    " of TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
)
_MEMBERS: Final = frozenset({"entries", "pg_config"})
_RANK_IN_NAME: Final = re.compile(r"(\d{1,7})(?:\.[A-Za-z]+)*$")
_PEERS: Final = re.compile(r"(send|recv)\s+(\d{1,7})(->|<-)(\d{1,7})")
_MOST_SEQUENCE: Final = 2**53
_MOST_RANK: Final = 10**7
_HEAD_BYTES: Final = 1 << 16
#: Frames of PyTorch itself, above which the user's stand.
_LIBRARY_FRAME: Final = re.compile(
    r"(?:^|[/\\])torch[/\\](?:distributed|nn|autograd|utils|_dynamo|_ops\.py|_tensor)"
)
_MOST_FRAMES: Final = 3
_MOST_DIMENSIONS: Final = 32
#: What a call may have; a hostile pickle may list one object very often.
_MOST_TENSORS: Final = 4096
_MOST_STACK: Final = 512


class GroupKey(NamedTuple):
    """What tells a process group from all others.

    Names count within a rank: two groups of different ranks may have the same.
    """

    name: str
    description: str
    ranks: tuple[int, ...]  #: ascending; empty where the dump does not say

    @property
    def title(self) -> str:
        """The group in words."""
        if self.description and self.description != "undefined":
            return f"{self.name} ({self.description})"
        return self.name


@dataclass(frozen=True)
class FlightCall:
    """A call of a collective, or of send and receive, that a rank made."""

    group: GroupKey
    operation: str  #: `all_reduce`, `send`
    sequence: int  #: of collectives, or of sends and receives, in the group
    state: str  #: `scheduled`, `started`, `completed`
    is_p2p: bool
    source: int | None  #: global rank that sends, of send and receive
    target: int | None  #: global rank that receives
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]  #: of inputs, then of outputs
    created_ns: int  #: when the CPU made it; 0 where the dump does not say
    frames: tuple[str, ...]  #: the innermost frames outside of PyTorch, innermost first
    order: int  #: its place among the calls of the rank

    @property
    def is_completed(self) -> bool:
        """True if it ended."""
        return self.state == "completed"

    @property
    def input_elements(self) -> int:
        """Elements of all inputs."""
        return sum(math.prod(sizes) for sizes in self.input_sizes)

    @property
    def output_elements(self) -> int:
        """Elements of all outputs."""
        return sum(math.prod(sizes) for sizes in self.output_sizes)

    @property
    def sizes_text(self) -> str:
        """Its sizes, such as `[[1024]] to [[4096]]`."""
        given = [list(sizes) for sizes in self.input_sizes]
        received = [list(sizes) for sizes in self.output_sizes]
        return f"{given} to {received}"


@dataclass(frozen=True)
class FlightDump:
    """What one rank recorded."""

    path: str
    rank: int
    version: str
    host_name: str
    groups: Mapping[str, GroupKey]  #: by name
    calls: Sequence[FlightCall] = field(default_factory=tuple)
    unusable: int = 0  #: entries that are no calls

    @property
    def last_ns(self) -> int:
        """When the last call was made; 0 where the dump does not say."""
        return max((call.created_ns for call in self.calls), default=0)


def may_be_dump(path: Path) -> bool:
    """Tell whether a file may be a dump, by its first bytes: a pickle or JSON with `entries`."""
    if not path.is_file():
        return False
    try:
        with ByteSource(path) as source:
            head = source.peek(_HEAD_BYTES)
    except (OSError, TraceError):
        return False
    is_pickle = head[:1] == b"\x80" and head[1:2] <= b"\x05"
    if is_pickle:
        return b"pg_config" in head or b"entries" in head
    text = head.lstrip()
    if not text.startswith(b"{") or b'"traceEvents"' in head:
        return False
    return b'"pg_config"' in head or (b'"entries"' in head and b'"version"' in head)


def dumps_in(folder: Path) -> list[Path]:
    """Return the dumps directly in a folder, sorted."""
    return [path for path in sorted(folder.iterdir()) if may_be_dump(path)]


def read_dump(
    path: str | os.PathLike[str], reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> FlightDump:
    """Read the dump of a rank.

    Raises:
        TraceError: the file cannot be read, or is no dump.
    """
    with ByteSource(path, reading=reading) as source:
        data = source.read_all()
        name = source.path
    if data.lstrip()[:1] in (b"{", b"["):
        content = _json(name, data)
    else:
        content = unpickled(name, data, WHAT, REMEDY)
    # The JSON of a rank that made no call yet has no entries.
    if not isinstance(content, dict) or not _MEMBERS.intersection(_texts(content)):
        raise TraceFormatError(
            name, f"is not a {WHAT}: it has neither entries nor process groups", REMEDY
        )
    try:
        return _DumpReader(name, content).read()
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError):
        raise TraceFormatError(name, f"is a damaged {WHAT}", REMEDY) from None


def _texts(content: Mapping[Any, Any]) -> list[str]:
    return [key for key in content if isinstance(key, str)]


def _json(path: str, data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        problem = f"is damaged JSON of a {WHAT}"
        raise TraceCutOffError(path, problem, "copy or create the dump again") from None


class _DumpReader:
    """Takes the members of a dump apart; what has another type counts as missing."""

    def __init__(self, path: str, content: Mapping[str, Any]) -> None:
        self._path = path
        self._content = content
        self.groups = self._configured_groups()

    def read(self) -> FlightDump:
        """Return the dump."""
        entries = self._content.get("entries")
        listed = entries if isinstance(entries, list | tuple) else []
        calls = []
        for order, entry in enumerate(listed):
            call = self._call(entry, order)
            if call is not None:
                calls.append(call)
        return FlightDump(
            path=self._path,
            rank=self._rank(),
            version=_text(self._content.get("version")),
            host_name=_text(self._content.get("host_name")),
            groups=self.groups,
            calls=tuple(calls),
            unusable=len(listed) - len(calls),
        )

    def _rank(self) -> int:
        """Return the rank: as the dump says, else the number that the file's name ends in."""
        rank = _whole(self._content.get("rank"))
        if 0 <= rank < _MOST_RANK:
            return rank
        match = _RANK_IN_NAME.search(Path(self._path).name.removesuffix(".gz"))
        if match is None:
            problem = (
                f"is a {WHAT} that does not record its rank, and neither does its name"
            )
            raise TraceFormatError(
                self._path,
                problem,
                "put the rank at the end of the name, as in nccl_trace_rank_3",
            )
        return int(match[1])

    def _configured_groups(self) -> dict[str, GroupKey]:
        """Return the process groups that the rank knows, by name."""
        config = self._content.get("pg_config")
        if isinstance(config, dict):
            items = list(config.items())
        elif isinstance(config, list | tuple):
            items = [("", group) for group in config]
        else:
            items = []
        groups = {}
        for name, group in items:
            if not isinstance(group, dict):
                continue
            own_name = _text(group.get("name", group.get("pg_name", name)))
            description = _text(group.get("desc", group.get("pg_desc")))
            ranks = group.get("ranks")
            members = numbers_in(ranks) if isinstance(ranks, str) else _numbers(ranks)
            key = GroupKey(
                name=own_name,
                description=description,
                ranks=tuple(sorted(set(members))),
            )
            groups[own_name] = key
        return groups

    def _call(self, entry: object, order: int) -> FlightCall | None:
        if not isinstance(entry, dict):
            return None
        operation = _text(entry.get("profiling_name")).partition(":")[2]
        operation = operation or _text(entry.get("profiling_name"))
        if not operation:
            return None
        group = self._group(entry)
        peers = _PEERS.match(operation)
        is_p2p = bool(entry.get("is_p2p")) or peers is not None
        names = ("p2p_seq_id",) if is_p2p else ("collective_seq_id", "seq_id")
        sequence = _whole(next((entry[name] for name in names if name in entry), None))
        if not 0 <= sequence < _MOST_SEQUENCE:
            return None
        source, target = _peers(peers, group)
        return FlightCall(
            group=group,
            operation=one_line(operation.partition(" ")[0]),
            sequence=sequence,
            state=_state(entry),
            is_p2p=is_p2p,
            source=source,
            target=target,
            input_sizes=_sizes(entry.get("input_sizes")),
            output_sizes=_sizes(entry.get("output_sizes")),
            dtypes=_dtypes(entry),
            created_ns=max(_whole(entry.get("time_created_ns")), 0),
            frames=_frames(entry.get("frames")),
            order=order,
        )

    def _group(self, entry: Mapping[str, Any]) -> GroupKey:
        """Return the process group of a call, with its ranks where they are configured."""
        stated = entry.get("process_group")
        name = ""
        description = ""
        if isinstance(stated, list | tuple) and stated:
            name = _text(stated[0])
            description = _text(stated[1]) if len(stated) > 1 else ""
        elif stated is not None:
            name = _text(stated)
        elif "pg_id" in entry:
            name = _text(entry["pg_id"])
        configured = self.groups.get(name)
        if configured is None:
            return GroupKey(
                name=name,
                description=description,
                ranks=(),
            )
        return configured


def _peers(
    match: re.Match[str] | None, group: GroupKey
) -> tuple[int | None, int | None]:
    """Return the global ranks that send and receive; a call names their places in the group."""
    if match is None:
        return None, None
    first = int(match[2])
    second = int(match[4])
    sender = first if match[3] == "->" else second
    receiver = second if match[3] == "->" else first
    return _member(group, sender), _member(group, receiver)


def _member(group: GroupKey, place: int) -> int:
    return group.ranks[place] if place < len(group.ranks) else place


def _state(entry: Mapping[str, Any]) -> str:
    state = _text(entry.get("state"))
    if state in ("scheduled", "started", "completed"):
        return state
    if entry.get("time_discovered_completed_ns") or entry.get("retired"):
        return "completed"
    return "started" if entry.get("time_discovered_started_ns") else "scheduled"


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        return ()
    sizes = []
    for item in value[:_MOST_TENSORS]:
        if isinstance(item, list | tuple):
            sizes.append(_shape(item))
        elif type(item) is int:  # a single tensor, not in a list
            return (_shape(value),)
    return tuple(sizes)


def _dtypes(entry: Mapping[str, Any]) -> tuple[str, ...]:
    dtypes = []
    for name in ("input_dtypes", "output_dtypes"):
        value = entry.get(name)
        if isinstance(value, str):
            dtypes.append(value)
        elif isinstance(value, list | tuple):
            dtypes += [_text(item) for item in value[:_MOST_TENSORS]]
    return tuple(dtypes)


def _frames(value: object) -> tuple[str, ...]:
    """Return the innermost frames outside of PyTorch, as `function at file:line`."""
    if not isinstance(value, list | tuple):
        return ()
    texts = []
    for frame in value[:_MOST_STACK]:
        if not isinstance(frame, dict):
            continue
        file = _text(frame.get("filename"))
        if _LIBRARY_FRAME.search(file) or not file:
            continue
        name = _text(frame.get("name"))
        texts.append(one_line(f"{name} at {file}:{_text(frame.get('line'))}"))
        if len(texts) == _MOST_FRAMES:
            break
    return tuple(texts)


def _numbers(value: object) -> list[int]:
    if not isinstance(value, list | tuple):
        return []
    return [item for item in value if type(item) is int and 0 <= item < 2**62]


def _shape(value: object) -> tuple[int, ...]:
    return tuple(_numbers(value)[:_MOST_DIMENSIONS])


def _whole(value: object) -> int:
    """Return a whole number, also one in a text; -1 for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:19])
    return -1


def _text(value: object) -> str:
    """Return a text or number as text; empty for anything else.

    Containers are never written out: a small pickle can hold one that is exponentially large.
    """
    if isinstance(value, str | int | float):
        return encodable(str(value))[:1000]
    return ""
