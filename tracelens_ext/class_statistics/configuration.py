"""The JSON file that says which inputs to take and how: the format of GPU Performance Analyser.

    {"inputs": [{"format": "csv", "title": …, "nsys_csv_file_path": {"kernel_sum": …},
                 "analysis_args": {"num_of_iters": 5, "num_of_gpus": 1, "nvtx_tag_of_iter": …}}],
     "kernel_to_class_map": {"part_of_kernel_name": "class"}}

With the formats `nsys-rep` and `sqlite`, `nsys_report` (`path`, `with_nvtx`, `with_mem`) stands
for `nsys_csv_file_path`. Comments and trailing commas are allowed; a path is looked up beside the
file, then in the current folder.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tracelens_ext.categorize.maps import without_repetition
from tracelens_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

FORMATS = ("csv", "nsys-rep", "sqlite")

_ARGUMENTS = "analysis_args"
_SECTIONS: dict[str, tuple[str, ...]] = {
    "": ("inputs", "kernel_to_class_map"),
    "input": ("format", "title", "nsys_csv_file_path", "nsys_report", "analysis_args"),
    "nsys_csv_file_path": ("kernel_sum", "nvtx_proj_trace", "mem_time_sum"),
    "nsys_report": ("path", "with_nvtx", "with_mem"),
    _ARGUMENTS: ("num_of_iters", "num_of_gpus", "nvtx_tag_of_iter"),
}
#: Arguments of the original about the places of columns; here the titles of a table tell them.
_TOLD_BY_TITLES = (
    *("with_header", "time_scale_to_ms", "kernel_total_time_idx", "kernel_instance_idx"),
    *("kernel_name_idx", "nvtx_tag_idx", "nvtx_name_idx", "nvtx_proj_duration_idx"),
    *("mem_name_idx", "mem_time_idx", "mem_count_idx"),
)


@dataclass(frozen=True)
class InputSpec:
    """One input: either tables or a trace."""

    title: str  #: the heading
    kernels: Path | None = None  #: the `cuda_gpu_kern_sum` CSV, None for a trace
    ranges: Path | None = None  #: the `nvtx_gpu_proj_trace` CSV, if any
    memory: Path | None = None  #: the `cuda_gpu_mem_time_sum` CSV, if any
    sizes: Path | None = None  #: the `cuda_gpu_mem_size_sum` CSV that goes with it, if any
    trace: Path | None = None  #: the trace, None for tables
    with_memory: bool = True  #: whether memory operations of the trace are wanted
    #: how many the input holds; None: as many as there are ranges on each GPU
    iterations: int | None = None
    gpus: int | None = None  #: how many GPUs; None: of a trace those that ran kernels, else 1
    tag: str | None = None  #: name of the ranges that are iterations; None for no ranges
    missing: str = ""  #: which file of the input is nowhere, a sentence; empty if all are there
    notes: tuple[str, ...] = ()  #: what the user should know of what was asked for

    @property
    def files(self) -> list[Path]:
        """All files of the input."""
        files = (self.kernels, self.ranges, self.memory, self.sizes, self.trace)
        return [file for file in files if file is not None]


@dataclass(frozen=True)
class Configuration:
    """What a configuration file says."""

    inputs: tuple[InputSpec, ...]  #: at least one
    #: part of a kernel name → class; None when the file has none
    class_map: Mapping[str, str] | None


def load_configuration(path: str | os.PathLike[str]) -> Configuration:
    """Read a configuration file."""
    source = os.fspath(path)
    document = _Section(source, "", "", read_commented_json(path))
    given = document.get("inputs", _list, "a list of inputs")
    if not given:
        raise ConfigurationError(f"{source}: inputs: expected one input at least, got none")
    folder = Path(source).parent
    sections = [_Section(source, f"inputs[{i}]", "input", each) for i, each in enumerate(given)]
    return Configuration(
        inputs=tuple(_input(section, folder) for section in sections),
        class_map=document.find("kernel_to_class_map", _class_map, "an object of texts"),
    )


def load_class_map(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Read a class map: a JSON object, or a configuration file that holds one."""
    document = read_commented_json(path)
    if isinstance(document, dict) and isinstance(document.get("kernel_to_class_map"), dict):
        document = document["kernel_to_class_map"]
    class_map = _class_map(document)
    if class_map is None:
        raise ConfigurationError(
            f'{os.fspath(path)}: is no class map; expected {{"part_of_kernel_name": "class"}}'
        )
    return class_map


def _input(section: _Section, folder: Path) -> InputSpec:
    chosen = section.get("format", _format, f"one of {', '.join(FORMATS)}")
    arguments = section.section("analysis_args")
    missing: list[str] = []
    notes: tuple[str, ...] = ()
    if told := arguments.accepted(_TOLD_BY_TITLES):
        notes = (f"{', '.join(told)}: not needed; the titles of a table tell its columns",)
    iterations = arguments.get("num_of_iters", _count, "a whole number from 1")
    gpus = arguments.find("num_of_gpus", _count, "a whole number from 1")
    tag = arguments.find("nvtx_tag_of_iter", _text, "a text")
    title = section.find("title", _text, "a text")

    def located(holder: _Section, key: str, name: str) -> Path:
        beside, here = folder / name, Path(name)
        if not beside.exists() and not here.exists():
            places = f"{beside} nor {here.absolute()}"
            missing.append(f"{holder.called(key)}: there is neither {places}; check the path")
        return here if here.exists() and not beside.exists() else beside

    def needed(holder: _Section, key: str) -> Path:
        return located(holder, key, holder.get(key, _text, "the name of a file"))

    def path(holder: _Section, key: str) -> Path | None:
        name = holder.find(key, _text, "the name of a file, or null")
        return located(holder, key, name) if name is not None else None

    if chosen == "csv":
        files = section.section("nsys_csv_file_path")
        kernels = needed(files, "kernel_sum")
        ranges = path(files, "nvtx_proj_trace")
        if ranges is not None and tag is None:
            raise arguments.error("nvtx_tag_of_iter", "the name of the NVTX ranges", None)
        memory = path(files, "mem_time_sum")
        return InputSpec(
            title=title or kernels.stem,
            kernels=kernels,
            ranges=ranges,
            memory=memory,
            iterations=iterations,
            gpus=gpus or 1,
            tag=tag if ranges is not None else None,
            missing="; ".join(missing),
            notes=notes,
        )
    report = section.section("nsys_report")
    trace = needed(report, "path")
    with_ranges = report.find("with_nvtx", _truth, "true or false")
    with_memory = report.find("with_mem", _truth, "true or false")
    if with_ranges and tag is None:
        raise arguments.error("nvtx_tag_of_iter", "the name of the NVTX ranges", None)
    return InputSpec(
        title=title or trace.stem,
        trace=trace,
        with_memory=with_memory is not False,
        iterations=iterations,
        gpus=gpus,
        tag=tag if with_ranges is not False else None,
        missing="; ".join(missing),
        notes=notes,
    )


class _Section:
    """An object of the document, whose keys are all known."""

    def __init__(self, source: str, where: str, kind: str, value: object) -> None:
        self._source, self._where = source, where
        if not isinstance(value, dict):
            raise self.error("", "an object", value)
        self._members: dict[str, object] = value
        for key in value:
            if key not in (*_SECTIONS[kind], *(_TOLD_BY_TITLES if kind == _ARGUMENTS else ())):
                near = difflib.get_close_matches(key, _SECTIONS[kind], n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else "leave it out"
                known = ", ".join(_SECTIONS[kind])
                raise ConfigurationError(
                    f"{source}: {self._path(key)}: unknown key; {hint} (known: {known})"
                )

    def accepted(self, keys: tuple[str, ...]) -> list[str]:
        """Those of some keys that the section has."""
        return [key for key in self._members if key in keys]

    def section(self, key: str) -> _Section:
        """An object within this one that must be there; it is called as its kind."""
        return _Section(self._source, self._path(key), key, self._members.get(key))

    def get(self, key: str, parse: Callable[[object], T | None], expected: str) -> T:
        """A value that must be there."""
        value = parse(self._members.get(key))
        if value is None:
            raise self.error(key, expected, self._members.get(key))
        return value

    def find(self, key: str, parse: Callable[[object], T | None], expected: str) -> T | None:
        """A value that may be absent or null."""
        return None if self._members.get(key) is None else self.get(key, parse, expected)

    def error(self, key: str, expected: str, got: object) -> ConfigurationError:
        """The error for a value of a wrong type, or one that is missing."""
        shown = "nothing" if got is None else f"{got!r:.60}"
        return ConfigurationError(f"{self.called(key)}: expected {expected}, got {shown}")

    def called(self, key: str) -> str:
        """The file and the place of a key in it."""
        return f"{self._source}: {self._path(key) or 'the file'}"

    def _path(self, key: str) -> str:
        return ".".join(part for part in (self._where, key) if part)


# What a value must be; None for anything else.


def _format(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and value.lower() in FORMATS else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _list(value: object) -> list[object] | None:
    return value if isinstance(value, list) else None


def _class_map(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    return value if all(isinstance(text, str) for text in value.values()) else None


_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def read_commented_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file that may hold comments and trailing commas."""
    source = os.fspath(path)
    try:
        text = plain_json(Path(source).read_text(encoding="utf-8-sig"))
        return json.loads(text, object_pairs_hook=without_repetition)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error}); check the path"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error}"
    except KeyError as error:
        problem = str(error.args[0])
    except ValueError:  # Python refuses integers of thousands of digits
        problem = "holds a number that is too long"
    except RecursionError:
        problem = "is not valid JSON: it is nested too deeply"
    except MemoryError:
        problem = "takes more memory than there is"
    raise ConfigurationError(f"{source}: {problem}")


def plain_json(text: str) -> str:
    """A text without comments and trailing commas; every character stays in its line and column."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(_blanked, text)
    return text


def _blanked(found: re.Match[str]) -> str:
    text = found.group()
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)
