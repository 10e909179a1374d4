"""Reads the dumps of PyTorch's flight recorder. Every rank writes one file.

Supports: the pickle that the NCCL watchdog writes, which is the result of
`torch._C._distributed_c10d._dump_nccl_trace()`, and the JSON of `_dump_nccl_trace_json()`.
Versions 2.0 to 2.10 and 1.x (whose calls have `seq_id`) are read alike: the reader looks at the
members that a dump has, not at its version. Only plain data is unpickled; no code of a dump runs.
Ignores: the communicators (`nccl_comm_state`) and the status of the process groups (`pg_status`).
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

from tracelens_ext.distributed.process_groups import numbers_in
from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.plain_pickle import unpickled
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable, one_line

#: What error messages call such a file.
_FILE_KIND: Final = "flight recorder dump"
#: How to obtain usable dumps, for error messages.
_REMEDY: Final = (
    "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the files"
    " of TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
)
#: Members of the top-level dictionary; every dump has at least one of them.
_DUMP_MEMBERS: Final = frozenset({"entries", "pg_config"})
#: The rank at the end of a file name, before any suffixes: `nccl_trace_rank_3.json`.
_RANK_IN_NAME: Final = re.compile(r"(\d{1,7})(?:\.[A-Za-z]+)*$")
#: The two ranks in the name of a point-to-point call: `send 0->1`, `recv 1<-0`.
_PEERS: Final = re.compile(r"(send|recv)\s+(\d{1,7})(->|<-)(\d{1,7})")
#: Sequence numbers and ranks from here on cannot be right.
_SEQUENCE_LIMIT: Final = 2**53
_RANK_LIMIT: Final = 10**7
#: How much of a file is read to tell whether it may be a dump.
_HEAD_BYTES: Final = 1 << 16
#: Files of PyTorch itself. The frames of the user's code are the callers of these frames.
_LIBRARY_FRAME: Final = re.compile(
    r"(?:^|[/\\])torch[/\\](?:distributed|nn|autograd|utils|_dynamo|_ops\.py|_tensor)"
)
#: How many frames are kept of a call.
_MOST_FRAMES: Final = 3
#: How much is read of a call. A small hostile pickle can list the same object millions of times.
_MOST_DIMENSIONS: Final = 32
_MOST_TENSORS: Final = 4096
_MOST_STACK_FRAMES: Final = 512
#: How many characters are kept of a text.
_MOST_CHARACTERS: Final = 1000


class GroupKey(NamedTuple):
    """The identity of a process group.

    The name alone does not identify a group: groups of different ranks may have the same name.
    """

    name: str
    description: str
    ranks: tuple[int, ...]  #: ascending; empty if the dump does not list them

    @property
    def title(self) -> str:
        """The name of the group, with its description if it has one."""
        if self.description and self.description != "undefined":
            return f"{self.name} ({self.description})"
        return self.name


@dataclass(frozen=True)
class FlightCall:
    """A collective, a send or a receive that one rank called."""

    group: GroupKey
    operation: str  #: such as `all_reduce` or `send`
    #: the number of the call in its group; collectives are counted apart from sends and receives
    sequence: int
    state: str  #: `scheduled`, `started` or `completed`
    is_p2p: bool
    source: int | None  #: global rank of the sender; None for collectives
    target: int | None  #: global rank of the receiver; None for collectives
    input_sizes: tuple[tuple[int, ...], ...]  #: the shape of each input
    output_sizes: tuple[tuple[int, ...], ...]  #: the shape of each output
    dtypes: tuple[str, ...]  #: types of the inputs, then of the outputs
    created_ns: int  #: when the CPU made the call; 0 if the dump does not say
    frames: tuple[str, ...]  #: innermost frames outside of PyTorch, innermost first
    position: int  #: index among the entries of the rank's dump, oldest first

    @property
    def is_completed(self) -> bool:
        """True if the call has ended."""
        return self.state == "completed"

    @property
    def input_elements(self) -> int:
        """Number of elements of all inputs."""
        return sum(math.prod(sizes) for sizes in self.input_sizes)

    @property
    def output_elements(self) -> int:
        """Number of elements of all outputs."""
        return sum(math.prod(sizes) for sizes in self.output_sizes)

    @property
    def sizes_text(self) -> str:
        """The shapes of inputs and outputs as a text, such as `[[1024]] to [[4096]]`."""
        input_shapes = [list(sizes) for sizes in self.input_sizes]
        output_shapes = [list(sizes) for sizes in self.output_sizes]
        return f"{input_shapes} to {output_shapes}"


@dataclass(frozen=True)
class FlightDump:
    """The dump of one rank."""

    path: str
    rank: int
    version: str
    host_name: str
    #: name → the process group that the rank knows by this name
    groups: Mapping[str, GroupKey]
    calls: Sequence[FlightCall] = field(default_factory=tuple)  #: oldest first
    unusable_entries: int = 0  #: number of entries that could not be read as calls

    @property
    def last_call_ns(self) -> int:
        """When the CPU made the last call; 0 if the dump does not say."""
        return max((call.created_ns for call in self.calls), default=0)


def may_be_dump(path: Path) -> bool:
    """Tell by the first bytes of a file whether it may be a dump.

    The file must be a pickle or JSON whose first 64 KiB mention a member that dumps have.
    """
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
    """Return the files directly in a folder that may be dumps, sorted by path."""
    return [path for path in sorted(folder.iterdir()) if may_be_dump(path)]


def read_dump(
    path: str | os.PathLike[str], reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> FlightDump:
    """Read the dump of one rank.

    Raises:
        TraceError: the file cannot be read, is not a dump, or does not record its rank.
    """
    with ByteSource(path, reading=reading) as source:
        data = source.read_all()
        name = source.path
    if data.lstrip()[:1] in (b"{", b"["):
        content = _json(name, data)
    else:
        content = unpickled(name, data, _FILE_KIND, _REMEDY)
    # One of the two members is enough: JSON dumps of ranks without calls have no `entries`.
    if not isinstance(content, dict) or _DUMP_MEMBERS.isdisjoint(content):
        problem = f"is not a {_FILE_KIND}: it has neither entries nor process groups"
        raise TraceFormatError(name, problem, _REMEDY)
    try:
        return _DumpReader(name, content).read()
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError):
        raise TraceFormatError(name, f"is a damaged {_FILE_KIND}", _REMEDY) from None


def _json(path: str, data: bytes) -> object:
    """Parse the JSON of a dump."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        problem = f"is damaged JSON of a {_FILE_KIND}"
        raise TraceCutOffError(path, problem, "copy or create the dump again") from None


class _DumpReader:
    """Converts the top-level dictionary of a dump to a `FlightDump`.

    A member whose type is not the documented one counts as missing.
    """

    def __init__(self, path: str, content: Mapping[str, Any]) -> None:
        self._path = path
        self._content = content
        self.groups = self._configured_groups()

    def read(self) -> FlightDump:
        """Return the dump with all of its calls that can be used."""
        entries = self._content.get("entries")
        if not isinstance(entries, list | tuple):
            entries = []
        calls = []
        for position, entry in enumerate(entries):
            call = self._call(entry, position)
            if call is not None:
                calls.append(call)
        return FlightDump(
            path=self._path,
            rank=self._rank(),
            version=_text(self._content.get("version")),
            host_name=_text(self._content.get("host_name")),
            groups=self.groups,
            calls=tuple(calls),
            unusable_entries=len(entries) - len(calls),
        )

    def _rank(self) -> int:
        """Return the rank that the dump records, or else the number at the end of its name.

        Raises:
            TraceFormatError: neither of them exists.
        """
        rank = _whole_number(self._content.get("rank"))
        if 0 <= rank < _RANK_LIMIT:
            return rank
        match = _RANK_IN_NAME.search(Path(self._path).name.removesuffix(".gz"))
        if match is None:
            problem = f"is a {_FILE_KIND} that does not record its rank, and neither does its name"
            raise TraceFormatError(
                self._path,
                problem,
                "put the rank at the end of the name, as in nccl_trace_rank_3",
            )
        return int(match[1])

    def _configured_groups(self) -> dict[str, GroupKey]:
        """Return the process groups that the rank knows, by name.

        `pg_config` is a dictionary of groups by name, or a list of groups that contain their names.
        """
        config = self._content.get("pg_config")
        if isinstance(config, dict):
            named_groups = list(config.items())
        elif isinstance(config, list | tuple):
            named_groups = [("", group) for group in config]
        else:
            named_groups = []
        groups = {}
        for name_in_config, group in named_groups:
            if not isinstance(group, dict):
                continue
            name = _text(group.get("name", group.get("pg_name", name_in_config)))
            description = _text(group.get("desc", group.get("pg_desc")))
            ranks = group.get("ranks")
            members = numbers_in(ranks) if isinstance(ranks, str) else _numbers(ranks)
            groups[name] = GroupKey(
                name=name,
                description=description,
                ranks=tuple(sorted(set(members))),
            )
        return groups

    def _call(self, entry: object, position: int) -> FlightCall | None:
        """Return the call of an entry; None if it lacks an operation or a sequence number."""
        if not isinstance(entry, dict):
            return None
        # The profiling name is, for example, `nccl:all_reduce` or `nccl:send 0->1`.
        profiling_name = _text(entry.get("profiling_name"))
        operation = profiling_name.partition(":")[2] or profiling_name
        if not operation:
            return None
        group = self._group(entry)
        peers = _PEERS.match(operation)
        is_p2p = bool(entry.get("is_p2p")) or peers is not None
        sequence = _sequence(entry, is_p2p=is_p2p)
        if not 0 <= sequence < _SEQUENCE_LIMIT:
            return None
        source = None
        target = None
        if peers is not None:
            source, target = _global_peers(peers, group)
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
            created_ns=max(_whole_number(entry.get("time_created_ns")), 0),
            frames=_frames(entry.get("frames")),
            position=position,
        )

    def _group(self, entry: Mapping[str, Any]) -> GroupKey:
        """Return the process group of a call, with its ranks if `pg_config` lists them."""
        recorded_group = entry.get("process_group")
        name = ""
        description = ""
        if isinstance(recorded_group, list | tuple) and recorded_group:
            name = _text(recorded_group[0])
            if len(recorded_group) > 1:
                description = _text(recorded_group[1])
        elif recorded_group is not None:
            name = _text(recorded_group)
        elif "pg_id" in entry:
            name = _text(entry["pg_id"])
        configured_group = self.groups.get(name)
        if configured_group is None:
            return GroupKey(
                name=name,
                description=description,
                ranks=(),
            )
        return configured_group


def _sequence(entry: Mapping[str, Any], *, is_p2p: bool) -> int:
    """Return the sequence number of a call in its process group; -1 if there is none."""
    members = ("p2p_seq_id",) if is_p2p else ("collective_seq_id", "seq_id")
    for member in members:
        if member in entry:
            return _whole_number(entry[member])
    return -1


class _Peers(NamedTuple):
    """The two global ranks of a send or a receive."""

    source: int
    target: int


def _global_peers(match: re.Match[str], group: GroupKey) -> _Peers:
    """Return the global ranks of sender and receiver, which a call names by their group ranks."""
    first = int(match[2])
    second = int(match[4])
    sender = first if match[3] == "->" else second
    receiver = second if match[3] == "->" else first
    return _Peers(
        source=_global_rank(group, sender),
        target=_global_rank(group, receiver),
    )


def _global_rank(group: GroupKey, group_rank: int) -> int:
    """Return the global rank of a group's member; the group rank itself if that is unknown."""
    if group_rank < len(group.ranks):
        return group.ranks[group_rank]
    return group_rank


def _state(entry: Mapping[str, Any]) -> str:
    """Return the state of a call; dumps without `state` show it by times."""
    state = _text(entry.get("state"))
    if state in ("scheduled", "started", "completed"):
        return state
    if entry.get("time_discovered_completed_ns") or entry.get("retired"):
        return "completed"
    return "started" if entry.get("time_discovered_started_ns") else "scheduled"


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of tensors, given as a list of shapes or as the shape of one tensor."""
    if not isinstance(value, list | tuple):
        return ()
    sizes = []
    for item in value[:_MOST_TENSORS]:
        if isinstance(item, list | tuple):
            sizes.append(_shape(item))
        elif type(item) is int:
            # The list contains dimensions instead of shapes: it is a single shape.
            return (_shape(value),)
    return tuple(sizes)


def _dtypes(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types of the inputs and outputs of a call."""
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
    for frame in value[:_MOST_STACK_FRAMES]:
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
    """Return the plausible whole numbers of a list; empty for anything else."""
    if not isinstance(value, list | tuple):
        return []
    return [item for item in value if type(item) is int and 0 <= item < 2**62]


def _shape(value: object) -> tuple[int, ...]:
    """Return the dimensions of a tensor."""
    return tuple(_numbers(value)[:_MOST_DIMENSIONS])


def _whole_number(value: object) -> int:
    """Return a whole number that is given as a number or as text; -1 for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:19])
    return -1


def _text(value: object) -> str:
    """Return a text or number as text; empty for anything else.

    Containers are never converted to text. A small pickle can contain nested tuples whose text
    would be exponentially large.
    """
    if isinstance(value, str | int | float):
        return encodable(str(value))[:_MOST_CHARACTERS]
    return ""
