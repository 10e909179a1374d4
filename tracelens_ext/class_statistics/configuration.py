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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from tracelens_ext.categorize.maps import without_repetition
from tracelens_ext.errors import ConfigurationError

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1)]
_COUNT, _FILE, _TRUTH = "a whole number from 1", "the name of a file", "true or false"
_RANGES = "the name of the NVTX ranges"
#: What a value must be, by its key.
_EXPECTED = {
    "": "an object",
    "inputs": "a list of inputs",
    "kernel_to_class_map": "an object of texts",
    "format": "one of csv, nsys-rep, sqlite",
    "title": "a text",
    "num_of_iters": _COUNT,
    "num_of_gpus": _COUNT,
    "nvtx_tag_of_iter": "a text",
    "kernel_sum": _FILE,
    "nvtx_proj_trace": f"{_FILE}, or null",
    "mem_time_sum": f"{_FILE}, or null",
    "path": _FILE,
    "with_nvtx": _TRUTH,
    "with_mem": _TRUTH,
}
#: Arguments of the original about the places of columns; here the titles of a table tell them.
_TOLD_BY_TITLES = (
    *("with_header", "time_scale_to_ms", "kernel_total_time_idx", "kernel_instance_idx"),
    *("kernel_name_idx", "nvtx_tag_idx", "nvtx_name_idx", "nvtx_proj_duration_idx"),
    *("mem_name_idx", "mem_time_idx", "mem_count_idx"),
)


class _Document(Struct):
    inputs: list[Any]
    kernel_to_class_map: dict[str, str] | None = None


class _Input(Struct):
    format: Annotated[str, Meta(pattern="(?i)^(csv|nsys-rep|sqlite)$")]
    title: _Text | None = None
    nsys_csv_file_path: Any = None
    nsys_report: Any = None
    analysis_args: Any = None


class _Arguments(Struct):
    num_of_iters: _Count
    num_of_gpus: _Count | None = None
    nvtx_tag_of_iter: _Text | None = None


class _Tables(Struct):
    kernel_sum: _Text
    nvtx_proj_trace: _Text | None = None
    mem_time_sum: _Text | None = None


class _Report(Struct):
    path: _Text
    with_nvtx: bool | None = None
    with_mem: bool | None = None


_Section = TypeVar("_Section", bound=Struct)


@dataclass(frozen=True)
class InputSpec:
    """One input: either tables or a trace."""

    trace: Path | None = None  #: the trace, None for tables
    kernels: Path | None = None  #: the `cuda_gpu_kern_sum` CSV, None for a trace
    nvtx: Path | None = None  #: the `nvtx_gpu_proj_trace` CSV, if any
    mem: Path | None = None  #: the `cuda_gpu_mem_time_sum` CSV, if any
    mem_size: Path | None = None  #: the `cuda_gpu_mem_size_sum` CSV that goes with it, if any
    class_map: Path | None = None  #: the file of the class map, None for that of all inputs
    #: how many the input holds; None: as many as there are ranges on each GPU
    iterations: int | None = None
    gpus: int | None = None  #: how many GPUs; None: of a trace those that ran kernels, else 1
    iteration_range: str | None = None  #: name of the iterations' ranges; None for no ranges
    title: str | None = None  #: the heading; None: the name of the file
    with_memory: bool = True  #: whether memory operations of the trace are wanted
    missing: str = ""  #: which file of the input is nowhere, a sentence; empty if all are there
    remarks: tuple[str, ...] = ()  #: what the user should know of what was asked for

    @property
    def heading(self) -> str:
        """What stands above its tables."""
        return (self.trace or self.kernels or Path()).stem if self.title is None else self.title

    @property
    def files(self) -> list[Path]:
        """All files of the input."""
        files = (self.kernels, self.nvtx, self.mem, self.mem_size, self.trace)
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
    document = _checked(_Document, read_commented_json(path), f"{source}: ")
    if not document.inputs:
        raise ConfigurationError(f"{source}: inputs: expected one input at least, got none")
    folder = Path(source).parent
    places = [f"{source}: inputs[{i}]" for i in range(len(document.inputs))]
    found = [_input(each, at, folder) for at, each in zip(places, document.inputs, strict=True)]
    return Configuration(tuple(found), document.kernel_to_class_map)


def load_class_map(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Read a class map: a JSON object, or a configuration file that holds one."""
    document = read_commented_json(path)
    if isinstance(document, dict) and isinstance(document.get("kernel_to_class_map"), dict):
        document = document["kernel_to_class_map"]
    try:
        return msgspec.convert(document, dict[str, str])
    except msgspec.ValidationError:
        expected = 'expected {"part_of_kernel_name": "class"}'
        raise ConfigurationError(f"{os.fspath(path)}: is no class map; {expected}") from None


def _input(value: object, at: str, folder: Path) -> InputSpec:
    section = _checked(_Input, value, at)
    given, missing, place = section.analysis_args, [], f"{at}.analysis_args"
    told = [key for key in given if key in _TOLD_BY_TITLES] if isinstance(given, dict) else []
    rest = {key: given[key] for key in given if key not in told} if told else given
    arguments = _checked(_Arguments, rest, place)
    is_csv = section.format.lower() == "csv"

    def located(key: str, name: str | None) -> Path | None:
        if name is None:
            return None
        beside, here = folder / name, Path(name)
        if not beside.exists() and not here.exists():
            places = f"{beside} nor {here.absolute()}"
            missing.append(f"{at}.{key}: there is neither {places}; check the path")
        return here if here.exists() and not beside.exists() else beside

    with_memory = True
    if is_csv:
        names = _checked(_Tables, section.nsys_csv_file_path, f"{at}.nsys_csv_file_path")
        keys = dict(zip(("kernels", "nvtx", "mem"), names.__struct_fields__, strict=True))
        files = {
            field: located(f"nsys_csv_file_path.{key}", getattr(names, key))
            for field, key in keys.items()
        }
        with_ranges = needs_tag = names.nvtx_proj_trace is not None
    else:
        report = _checked(_Report, section.nsys_report, f"{at}.nsys_report")
        files = {"trace": located("nsys_report.path", report.path)}
        with_ranges, needs_tag = report.with_nvtx is not False, bool(report.with_nvtx)
        with_memory = report.with_mem is not False
    if needs_tag and arguments.nvtx_tag_of_iter is None:
        raise ConfigurationError(f"{place}.nvtx_tag_of_iter: expected {_RANGES}, got nothing")
    remark = f"{', '.join(told)}: not needed; the titles of a table tell its columns"
    return InputSpec(
        title=section.title,
        **files,
        with_memory=with_memory,
        iterations=arguments.num_of_iters,
        gpus=arguments.num_of_gpus or (1 if is_csv else None),
        iteration_range=arguments.nvtx_tag_of_iter if with_ranges else None,
        missing="; ".join(missing),
        remarks=(remark,) if told else (),
    )


def _checked(kind: type[_Section], value: Any, at: str) -> _Section:  # noqa: ANN401
    """A section of the file, whose keys are all known; `at` is the file and the place in it."""
    dot, known = "" if at.endswith(": ") else ".", kind.__struct_fields__
    for key in value if isinstance(value, dict) else ():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out"
            listed = ", ".join(known)
            raise ConfigurationError(f"{at}{dot}{key}: unknown key; {hint} (known: {listed})")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        found = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        key = found[1] or found[2] if found else ""
        got = value.get(key) if key else value
        place = f"{at}{dot}{key}" if key else at + ("the file" if not dot else "")
        shown = "nothing" if got is None else f"{got!r:.60}"
        raise ConfigurationError(f"{place}: expected {_EXPECTED[key]}, got {shown}") from None


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
        text = pattern.sub(
            lambda at: at[0] if at[0].startswith('"') else re.sub(r"[^\n]", " ", at[0]), text
        )
    return text
