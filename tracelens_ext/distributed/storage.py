"""Where a fleet's traces are: files, folders, patterns, URLs; and the folder of its results.

.tracelens-ext-manifest.json   what is this program's
.done/STEM.json                one a trace, written when all its parts are
timeline/STEM.parquet …        one part a trace and table; counts only with that marker
ranks.parquet …                the reductions
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tracelens_ext import trace_files
from tracelens_ext.errors import OutputError, TraceNotFoundError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import GENERATOR, MANIFEST
from tracelens_ext.settings import VERSION
from tracelens_ext.trace import distributed_info

#: What file systems call the version of a file, the first that one has.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
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
        name = self.base_name
        suffixes = trace_files.trace_suffixes()
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
            traces = [*(_remote(argument) if is_url(argument) else _local(argument))]
            problem = "" if traces else f"names no trace ({trace_files.suffixes_text()})"
        except (OSError, ValueError) as error:
            traces = []
            problem = f"cannot be listed ({reason(error)})"
        if problem:
            problems.append(TraceNotFoundError(argument, problem, "check the path or pattern"))
        for trace in traces:
            found.setdefault(trace.url, trace)

    def natural(trace: FleetInput) -> list[tuple[int, int, str]]:  # rank2 before rank10
        parts = re.split(r"([0-9]+)", trace.name)
        return [(0, int(p), p) if p.isdigit() and p.isascii() else (1, 0, p) for p in parts]

    return sorted(found.values(), key=natural), problems


def reason(error: BaseException) -> str:
    """Why something failed, in a line."""
    said = str(getattr(error, "strerror", None) or error)
    return " ".join(said.split()) or type(error).__name__


def _local(argument: str) -> Iterator[FleetInput]:
    path = Path(argument)
    found = trace_files.traces_matching(argument) if trace_files.is_pattern(argument) else [path]
    for each in trace_files.traces_in(path) if path.is_dir() else found:
        identity = None
        with suppress(OSError, ValueError):
            status = each.stat()
            identity = {"size": str(status.st_size), "version": str(status.st_mtime_ns)}
        yield FleetInput(str(each), str(each.absolute()), identity)


def _remote(argument: str) -> Iterator[FleetInput]:
    files, path = file_system(argument)
    try:
        if glob.has_magic(path) and not files.exists(path):
            infos = files.glob(path, detail=True)
        elif not trace_files.is_trace_name(path) and files.isdir(path):  # of web servers none is
            listed = {info["name"]: info for info in files.ls(path, detail=True)}
            infos = {name: listed[name] for name in trace_files.trace_names(listed)}
        else:
            yield FleetInput(argument, argument, _identity(files, path))
            return
    except OSError:
        raise
    except Exception as error:  # a file system raises what its library does
        raise OSError(f"{type(error).__name__}: {error}") from error
    head, chain, rest = argument.partition("::")
    for name, info in infos.items():
        if info.get("type", "file") == "file":
            url = f"{head.partition('://')[0]}://{name}{chain}{rest}"
            url = url if chain else str(files.unstrip_protocol(name))
            yield FleetInput(url, url, identity_in(info) or _identity(files, name))


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


METADATA = "metadata"
NAME = "name"
ORDER = "order"
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


DONE = ".done"
#: Stem of a trace → what is noted of it.
Done = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ResultStore:
    """A folder of results."""

    url: str  #: its absolute path, or a URL that fsspec opens

    @classmethod
    def at(cls, out: str) -> ResultStore:
        """The folder that a user names, which need not exist."""
        if not out:
            raise OutputError("the output folder has no name; give a path such as results")
        store = cls(out.rstrip("/") or "/" if is_url(out) else str(Path(out).absolute()))
        store._place  # noqa: B018  # fails now rather than on every worker
        return store

    @cached_property
    def _place(self) -> tuple[Any, str]:
        files, root = file_system(self.url)
        return files, root.rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return not is_url(self.url)

    def path_of(self, name: str) -> str:
        """The path of a file in the folder, as its file system has it."""
        return f"{self._place[1]}/{name}"

    def shown(self, name: str) -> str:
        """The path or URL of a file in the folder, for messages."""
        return f"{self.url}/{name}"

    # Bytes.

    def put(self, name: str, content: bytes) -> None:
        """Write a whole file or nothing: renamed into place here, put in one piece elsewhere."""
        if self.is_local:
            from tracelens_ext.report.manifest import written_beside

            with written_beside(self.path_of(name)) as beside:
                beside.write_bytes(content)
            return
        files = self._place[0]
        path = self.path_of(name)
        try:
            files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            files.pipe_file(path, content)
        except Exception as error:
            problem = f"{self.shown(name)}: cannot be written: {reason(error)}"
            raise OutputError(f"{problem}; choose another place") from error

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""
        try:
            return bytes(self._place[0].cat_file(self.path_of(name)))
        except OSError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            with suppress(FileNotFoundError):
                self._place[0].rm_file(self.path_of(name))
        except OSError as error:
            raise OutputError(f"{self.shown(name)}: cannot be removed ({error})") from error

    def names(self, folder: str = "") -> list[str]:
        """The names of what is directly in a folder of it; none if that does not exist."""
        files = self._place[0]
        path = self.path_of(folder).rstrip("/") or "/"
        files.invalidate_cache(path)
        try:
            entries = files.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries} - {""})

    # What is ours.

    def claim(self, names: Sequence[str], *, force: bool) -> None:
        """Mark the folder as this program's, unless it holds what is not (`force`: even then)."""
        if self.is_local and Path(self.url).exists() and not Path(self.url).is_dir():
            raise OutputError(f"{self.url}: is a file; name a folder for the results")
        here = set() if force else set(self.names())
        found = _json(self.get(MANIFEST)) or {}
        files = found.get("files") if found.get("generator") == GENERATOR else None
        ours = [n for n in files if isinstance(n, str)] if isinstance(files, list) else []
        if here and MANIFEST not in here:
            remedy = "name an empty or a new folder, or --force to write there"
            raise OutputError(f"{self.url}: holds files that tracelens-ext did not make; {remedy}")
        if others := [name for name in names if name in here and name not in ours]:
            problem = f"{self.shown(others[0])}: exists and was not made by tracelens-ext"
            raise OutputError(f"{problem}; choose another folder, or --force to overwrite it")
        listed = list(dict.fromkeys([*names, *ours]))
        manifest = {"generator": GENERATOR, "version": VERSION, "files": listed}
        self.put(MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())

    # Tables.

    def put_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as `NAME.parquet`."""
        from pyarrow import parquet

        from tracelens_ext.report.formats import arrow_table

        buffer = io.BytesIO()
        parquet.write_table(arrow_table(frame), buffer, compression="zstd")
        self.put(f"{name}.parquet", buffer.getvalue())

    def get_table(self, name: str, columns: Sequence[str] | None = None) -> Any:  # noqa: ANN401
        """Some columns, or all, of a table written by `put_table`, as pyarrow has it."""
        from pyarrow import ArrowException, parquet

        content = self.get(f"{name}.parquet")
        try:
            if content is None:
                raise FileNotFoundError("no such file")
            return parquet.ParquetFile(io.BytesIO(content)).read(columns=columns and list(columns))
        except (OSError, ArrowException) as error:
            problem = f"{self.shown(name)}.parquet: cannot be read ({error})"
            raise OutputError(f"{problem}; remove {self.shown(DONE)} and run again") from error

    # Markers.

    def marks(self) -> dict[str, dict[str, Any]]:
        """What is done: stem → what was noted; a marker that makes no sense is left out."""
        names = [name for name in self.names(DONE) if name.endswith(".json")]
        paths = {name.removesuffix(".json"): self.path_of(f"{DONE}/{name}") for name in names}
        # File systems far away are asked for all at once.
        found = self._place[0].cat([*paths.values()], on_error="return") if paths else {}
        found = found if isinstance(found, dict) else dict.fromkeys(paths.values(), found)
        read = ((stem, _json(found.get(path))) for stem, path in paths.items())
        return {stem: about for stem, about in read if about is not None}


def _json(content: object) -> dict[str, Any] | None:
    """The object that some bytes stand for; None for anything else."""
    with suppress(ValueError, RecursionError):
        if isinstance(content, bytes) and isinstance(found := json.loads(content), dict):
            return found
    return None
