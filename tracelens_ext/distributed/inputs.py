"""Finds the traces of a fleet in files, folders, patterns, and URLs of any of these."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tracelens_ext import trace_files
from tracelens_ext.errors import TraceNotFoundError, UsageError

#: Names under which file systems report the version of a file. The first one that exists is used.
_VERSION_KEYS = (
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)
_NOT_IN_STEM = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_STEM_CHARACTERS = 60
_DIGEST_BYTES = 6


@dataclass(frozen=True)
class FleetInput:
    """A trace that a fleet analyzes."""

    name: str  #: the path or URL as the user gave it
    url: str  #: the absolute path or URL at which a worker finds the trace
    #: size and version of the file, which change with its content, as JSON; None if not known
    identity: Mapping[str, str] | None = None
    #: the rank to analyze in a file that contains several ranks; None for the whole file
    rank: int | None = None

    @property
    def size(self) -> int | None:
        """The size of the file in bytes; None if it is not known."""
        if self.identity is None:
            return None
        text = self.identity.get("size", "")
        if text.isascii() and text.isdigit():
            return int(text)
        return None

    @property
    def is_remote(self) -> bool:
        """True if the trace is not a path in the file system of this machine."""
        return is_url(self.url)

    @property
    def base_name(self) -> str:
        """The file name at the end of the path or URL, without the query of a URL."""
        path = self.url
        if self.is_remote:
            path = re.split(r"::|\?", self.url)[0]
        return path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def stem(self) -> str:
        """The name, without suffix, of the files with the results; each URL has a different one."""
        readable = _NOT_IN_STEM.sub("_", self._name_without_suffix()).strip("_")
        readable = readable[-_MAX_STEM_CHARACTERS:] or "trace"
        url = self.url.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(url, digest_size=_DIGEST_BYTES).hexdigest()
        if self.rank is not None:
            readable = f"{readable}-rank{self.rank}"
        return f"{readable}-{digest}"

    def of_rank(self, rank: int) -> FleetInput:
        """Return the input for one rank of this file, which contains several ranks."""
        return replace(self, name=f"{self.name} (rank {rank})", rank=rank)

    def _name_without_suffix(self) -> str:
        """Return the file name without the suffix of traces, such as `.pt.trace.json.gz`."""
        name = self.base_name
        lengths = [
            len(suffix)
            for suffix in trace_files.trace_suffixes()
            if name.lower().endswith(suffix)
        ]
        return name[: len(name) - max(lengths, default=0)]


def is_url(text: str) -> bool:
    """Tell whether a text is a URL, such as `s3://…`, or a chain such as `zip://a::b.zip`."""
    return "://" in text or "::" in text


class FoundInputs(NamedTuple):
    """The traces that the arguments of a fleet name."""

    #: the traces without duplicates, sorted by name so that rank2 comes before rank10
    traces: list[FleetInput]
    #: one error for each argument that names no trace
    problems: list[TraceNotFoundError]


def find_inputs(arguments: Sequence[str]) -> FoundInputs:
    """Find the traces that the arguments of a fleet name.

    A folder stands for the traces directly in it. A file that does not exist is not an error here;
    the job that reads it reports it.

    Raises:
        UsageError: an argument is empty, or a URL cannot be opened by the packages installed.
    """
    trace_of_url: dict[str, FleetInput] = {}
    problems: list[TraceNotFoundError] = []
    for argument in arguments:
        if not argument:
            raise UsageError(
                "the name of a trace is empty; give a file, a folder, a pattern or a "
                "URL"
            )
        traces: list[FleetInput] = []
        problem = ""
        try:
            traces = _list_argument(argument)
            if not traces:
                problem = f"matches no trace ({trace_files.suffixes_text()})"
        except (OSError, ValueError) as error:
            problem = f"cannot be listed ({reason(error)})"
        if problem:
            problems.append(
                TraceNotFoundError(argument, problem, "check the path or pattern")
            )
        for trace in traces:
            trace_of_url.setdefault(trace.url, trace)
    return FoundInputs(sorted(trace_of_url.values(), key=_natural_order), problems)


def _list_argument(argument: str) -> list[FleetInput]:
    """Return the traces that one argument names."""
    if is_url(argument):
        return list(_remote_traces(argument))
    return list(_local_traces(argument))


def _natural_order(trace: FleetInput) -> list[tuple[int, int, str]]:
    """Return the sort key of a trace that puts rank2 before rank10."""
    key = []
    for part in re.split(r"([0-9]+)", trace.name):
        if part.isdigit() and part.isascii():
            key.append((0, int(part), part))
        else:
            key.append((1, 0, part))
    return key


def reason(error: BaseException) -> str:
    """Return the reason of an error in one line."""
    text = str(getattr(error, "strerror", None) or error)
    return " ".join(text.split()) or type(error).__name__


def _local_traces(argument: str) -> Iterator[FleetInput]:
    """Yield the traces that a path or a pattern of this machine names."""
    folder_or_file = Path(argument)
    if folder_or_file.is_dir():
        paths = trace_files.traces_in(folder_or_file)
    elif trace_files.is_pattern(argument):
        paths = trace_files.traces_matching(argument)
    else:
        paths = [folder_or_file]
    for path in paths:
        identity = None
        with suppress(OSError, ValueError):
            status = path.stat()
            identity = {"size": str(status.st_size), "version": str(status.st_mtime_ns)}
        yield FleetInput(
            name=str(path),
            url=str(path.absolute()),
            identity=identity,
        )


def _remote_traces(argument: str) -> Iterator[FleetInput]:
    """Yield the traces that a URL names: a file, a pattern, or a folder."""
    files, path = file_system(argument)
    try:
        infos = _listing(files, path)
        if infos is None:
            yield FleetInput(
                name=argument,
                url=argument,
                identity=_identity(files, path),
            )
            return
    except OSError:
        raise
    except Exception as error:  # a file system raises what its library does
        raise OSError(f"{type(error).__name__}: {error}") from error
    for name, info in infos.items():
        if info.get("type", "file") == "file":
            url = _url_of(
                argument=argument,
                files=files,
                name=name,
            )
            yield FleetInput(
                name=url,
                url=url,
                identity=identity_in(info) or _identity(files, name),
            )


def _listing(files: Any, path: str) -> dict[str, Any] | None:  # noqa: ANN401
    """Return name → info of the files that a remote folder or pattern names; None for a file."""
    if glob.has_magic(path) and not files.exists(path):
        matching: dict[str, Any] = files.glob(path, detail=True)
        return matching
    # A path that ends like a trace is taken for a file without asking: fsspec considers
    # everything on a web server a folder.
    if not trace_files.is_trace_name(path) and files.isdir(path):
        info_of_name = {info["name"]: info for info in files.ls(path, detail=True)}
        return {
            name: info_of_name[name] for name in trace_files.trace_names(info_of_name)
        }
    return None


def _url_of(argument: str, files: Any, name: str) -> str:  # noqa: ANN401
    """Return the URL of a file that was found below an argument, which may be a chain of URLs."""
    first, chain, remaining = argument.partition("::")
    if not chain:
        return str(files.unstrip_protocol(name))
    protocol = first.partition("://")[0]
    return f"{protocol}://{name}{chain}{remaining}"


class RemotePath(NamedTuple):
    """A path in a file system that fsspec provides."""

    files: Any  #: the fsspec file system
    path: str


def file_system(url: str) -> RemotePath:
    """Return the file system of a URL, and the path in that file system.

    Raises:
        UsageError: no installed package opens such URLs.
    """
    from fsspec.core import url_to_fs

    try:
        return RemotePath(*url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url}: cannot be opened: {reason(error)}") from None


def identity_in(info: Mapping[str, Any]) -> dict[str, str] | None:
    """Return `size` and `version` of a file, if its file system knows them; None for neither."""
    identity = {}
    if info.get("size") is not None:
        identity["size"] = str(info["size"])
    for key in _VERSION_KEYS:
        if info.get(key) is not None:
            identity["version"] = str(info[key])
            break
    return identity or None


def _identity(files: Any, path: str) -> dict[str, str] | None:  # noqa: ANN401
    """Return `size` and `version` of a remote file; None if they cannot be determined."""
    try:
        return identity_in(files.info(path))
    except Exception:  # noqa: BLE001  # the job that reads the file reports the problem
        return None
