"""The traces that a fleet's arguments name: files, folders, patterns and URLs."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens_ext import trace_files
from tracelens_ext.errors import TraceNotFoundError, UsageError
from tracelens_ext.trace import distributed_info

#: What file systems call the version of a file, the first that one has.
_VERSIONS = (
    *("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created"),
)
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_STEM_CHARACTERS = 60


@dataclass(frozen=True)
class FleetInput:
    """A trace to be analysed."""

    name: str  #: what the user calls it
    url: str  #: where a worker finds it: an absolute path, or a URL
    #: what tells its content from another, as JSON; None if it is not known
    identity: Mapping[str, str] | None = None

    @property
    def size(self) -> int | None:
        """Its bytes; None if that is not known."""
        said = (self.identity or {}).get("size", "")
        return int(said) if said.isascii() and said.isdigit() else None

    @property
    def is_remote(self) -> bool:
        """Whether it is not a path of this machine's file system."""
        return is_url(self.url)

    @property
    def base_name(self) -> str:
        """The file's name at the end of its path or URL, without what a URL asks of it."""
        head = re.split(r"::|\?", self.url)[0] if self.is_remote else self.url
        return head.rstrip("/").rsplit("/", 1)[-1]

    @property
    def stem(self) -> str:
        """What the files of its results are called; unlike that of any other URL."""
        name, suffixes = self.base_name, trace_files.trace_suffixes()
        endings = [len(name) - len(s) for s in suffixes if name.lower().endswith(s)]
        plain = _NOT_IN_NAME.sub("_", name[: min(endings, default=None)]).strip("_")
        digest = hashlib.blake2b(self.url.encode("utf-8", "surrogatepass"), digest_size=6)
        return f"{plain[-_STEM_CHARACTERS:] or 'trace'}-{digest.hexdigest()}"


def is_url(text: str) -> bool:
    """Whether fsspec is to open it: `s3://…`, `https://…`, or a chain such as `zip://a::b.zip`."""
    return "://" in text or "::" in text


def find_inputs(arguments: Sequence[str]) -> tuple[list[FleetInput], list[TraceNotFoundError]]:
    """The traces that arguments name, each once, sorted by name with numbers in their order.

    A folder stands for the traces directly in it. Whether a file exists is found by its reader.
    """
    found: dict[str, FleetInput] = {}
    problems: list[TraceNotFoundError] = []
    for argument in arguments:
        if not argument:
            raise UsageError("a trace's name is empty; name a file, a folder, a pattern or a URL")
        try:
            traces = _remote(argument) if is_url(argument) else _local(argument)
            problem = "" if traces else f"names no trace ({trace_files.suffixes_text()})"
        except (OSError, ValueError) as error:
            traces, problem = [], f"cannot be listed ({reason(error)})"
        if problem:
            problems.append(TraceNotFoundError(argument, problem, "check the path or pattern"))
        found = {trace.url: trace for trace in traces} | found

    def natural(trace: FleetInput) -> list[tuple[int, int, str]]:  # rank2 before rank10
        parts = re.split(r"([0-9]+)", trace.name)
        return [(0, int(p), p) if p.isdigit() and p.isascii() else (1, 0, p) for p in parts]

    return sorted(found.values(), key=natural), problems


def reason(error: BaseException) -> str:
    """Why something failed, in a line."""
    said = str(getattr(error, "strerror", None) or error)
    return " ".join(said.split()) or type(error).__name__


def _local(argument: str) -> list[FleetInput]:
    path, traces = Path(argument), []
    found = trace_files.traces_matching(argument) if trace_files.is_pattern(argument) else [path]
    for each in trace_files.traces_in(path) if path.is_dir() else found:
        identity = None
        with suppress(OSError, ValueError):
            status = each.stat()
            identity = {"size": str(status.st_size), "version": str(status.st_mtime_ns)}
        traces.append(FleetInput(str(each), str(each.absolute()), identity))
    return traces


def _remote(argument: str) -> list[FleetInput]:
    files, path = file_system(argument)
    try:
        if glob.has_magic(path) and not files.exists(path):
            infos = files.glob(path, detail=True)
        elif not trace_files.is_trace_name(path) and files.isdir(path):  # of web servers none is
            listed = {info["name"]: info for info in files.ls(path, detail=True)}
            infos = {name: listed[name] for name in trace_files.trace_names(listed)}
        else:
            return [FleetInput(argument, argument, _identity(files, path))]
    except OSError:
        raise
    except Exception as error:  # a file system raises what its library does
        raise OSError(f"{type(error).__name__}: {error}") from error
    head, chain, rest = argument.partition("::")
    traces = []
    for name, info in infos.items():
        if info.get("type", "file") == "file":
            url = f"{head.partition('://')[0]}://{name}{chain}{rest}"
            url = url if chain else str(files.unstrip_protocol(name))
            traces.append(FleetInput(url, url, identity_in(info) or _identity(files, name)))
    return traces


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url}: cannot be opened: {reason(error)}") from None


def identity_in(info: Mapping[str, Any]) -> dict[str, str] | None:
    """Size and version of a file, of those that its file system knows; None without both."""
    version = next((info[key] for key in _VERSIONS if info.get(key) is not None), None)
    given = {"size": info.get("size"), "version": version}
    return {key: str(value) for key, value in given.items() if value is not None} or None


def _identity(files: Any, path: str) -> dict[str, str] | None:  # noqa: ANN401
    try:
        return identity_in(files.info(path))
    except Exception:  # noqa: BLE001  # reading the file tells what is wrong with it
        return None


METADATA, NAME, ORDER = "metadata", "name", "order"
_SAID = re.compile(r"rank[ _.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: A number at the end of a file's name; longer ones are times and processes.
_LAST = re.compile(
    r"(?:^|[_.-])(\d{1,5})(?:\.pt)?(?:\.trace|\.xplane)?\.[a-z]+(?:-rep)?(?:\.gz)?$", re.IGNORECASE
)
_MOST_RANKS = 10**7


def rank_of(metadata: Mapping[str, object], url: str, place: int) -> tuple[int, str]:
    """The rank of a trace (`place`: among all by name, from 0), and how it is known."""
    if (said := _whole(distributed_info(metadata).get("rank"))) is not None:
        return said, METADATA
    named = rank_in_name(url)
    return (named, NAME) if named is not None else (place, ORDER)


def rank_in_name(url: str) -> int | None:
    """The rank that a path names: the last `rankN` in it, else the number its name ends in."""
    found = _SAID.findall(url) or _LAST.findall(url.rsplit("/", 1)[-1])
    return int(found[-1]) if found else None


def world_size_of(metadata: Mapping[str, object]) -> int | None:
    """How many ranks the job had, as a trace says; None if it does not."""
    return _whole(distributed_info(metadata).get("world_size")) or None


def missing_ranks(present: Iterable[int], world_size: int) -> list[int]:
    """The ranks from 0 to the size of the world that no trace is of."""
    return sorted(set(range(world_size)).difference(present))


def _whole(value: object) -> int | None:
    """A rank or a number of ranks; a trace may say anything."""
    return value if type(value) is int and 0 <= value <= _MOST_RANKS else None
