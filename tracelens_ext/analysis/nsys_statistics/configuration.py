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
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tracelens_ext.categorize.maps import without_repetition
from tracelens_ext.errors import ConfigurationError

_TEXT = Annotated[str, Meta(min_length=1)]
_NUMBER = Annotated[int, Meta(ge=1)]
_COUNT = "a whole number from 1"
_FILE = "the name of a file"
#: The keys of a section → what each must be, and that in words.
_Keys = dict[str, tuple[Any, str]]
_MANY = (_NUMBER, _COUNT)
_GPUS = (_NUMBER | None, _COUNT)
_TAG = (_TEXT | None, "a text")
_MAP = (dict[str, str] | None, "an object of texts")
_DOCUMENT: _Keys = {"inputs": (list[Any], "a list of inputs"), "kernel_to_class_map": _MAP}
_FORMAT = Annotated[str, Meta(pattern="(?i)^(csv|nsys-rep|sqlite)$")]
_INPUT: _Keys = {"format": (_FORMAT, "one of csv, nsys-rep, sqlite"), "title": _TAG}
_INPUT |= dict.fromkeys(("nsys_csv_file_path", "nsys_report", "analysis_args"), (Any, "a section"))
_ARGUMENTS: _Keys = {"num_of_iters": _MANY, "num_of_gpus": _GPUS, "nvtx_tag_of_iter": _TAG}
_MAYBE = (_TEXT | None, f"{_FILE}, or null")
_TRUTH = (bool | None, "true or false")
_TABLES: _Keys = {"kernel_sum": (_TEXT, _FILE), "nvtx_proj_trace": _MAYBE, "mem_time_sum": _MAYBE}
_REPORT: _Keys = {"path": (_TEXT, _FILE), "with_nvtx": _TRUTH, "with_mem": _TRUTH}
#: Arguments of the original about the places of columns; here the titles of a table tell them.
_TOLD_BY_TITLES = (
    "with_header",
    "time_scale_to_ms",
    "kernel_total_time_idx",
    "kernel_instance_idx",
    "kernel_name_idx",
    "nvtx_tag_idx",
    "nvtx_name_idx",
    "nvtx_proj_duration_idx",
    "mem_name_idx",
    "mem_time_idx",
    "mem_count_idx",
)


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
    inputs, class_map = _checked(_DOCUMENT, read_commented_json(path), f"{source}: ")
    if not inputs:
        raise ConfigurationError(f"{source}: inputs: expected one input at least, got none")
    places = (f"{source}: inputs[{at}]" for at in range(len(inputs)))
    folder = repeat(Path(source).parent)
    return Configuration(tuple(map(_input, inputs, places, folder)), class_map)


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
    form, title, tables, report, given = _checked(_INPUT, value, at)
    told = [key for key in given if key in _TOLD_BY_TITLES] if isinstance(given, dict) else []
    rest = {key: given[key] for key in given if key not in told} if told else given
    iterations, gpus, tag = _checked(_ARGUMENTS, rest, place := f"{at}.analysis_args")
    missing: list[str] = []

    def located(key: str, name: str | None) -> Path | None:
        if name is None:
            return None
        beside = folder / name
        here = Path(name)
        if not beside.exists() and not here.exists():
            places = f"{beside} nor {here.absolute()}"
            missing.append(f"{at}.{key}: there is neither {places}; check the path")
        return here if here.exists() and not beside.exists() else beside

    if form.lower() == "csv":
        names = zip(_TABLES, _checked(_TABLES, tables, f"{at}.nsys_csv_file_path"), strict=True)
        paths = [located(f"nsys_csv_file_path.{key}", name) for key, name in names]
        files = dict(zip(("kernels", "nvtx", "mem"), paths, strict=True))
        with_ranges = needs_tag = files["nvtx"] is not None
        gpus = gpus or 1
        with_memory = True
    else:
        path, with_nvtx, with_mem = _checked(_REPORT, report, f"{at}.nsys_report")
        files = {"trace": located("nsys_report.path", path)}
        with_ranges = with_nvtx is not False
        with_memory = with_mem is not False
        needs_tag = with_nvtx
    if needs_tag and tag is None:
        expected = "expected the name of the NVTX ranges"
        raise ConfigurationError(f"{place}.nvtx_tag_of_iter: {expected}, got nothing")
    remark = f"{', '.join(told)}: not needed; the titles of a table tell its columns"
    about: dict[str, Any] = {"title": title, "iterations": iterations, "gpus": gpus, **files}
    about |= {"iteration_range": tag if with_ranges else None, "missing": "; ".join(missing)}
    return InputSpec(**about, with_memory=with_memory, remarks=(remark,) if told else ())


def _checked(keys: _Keys, value: object, at: str) -> list[Any]:
    """The values of a section of the file; `at` is the file and the place in it."""
    dot = "" if at.endswith(": ") else "."
    if not isinstance(value, dict):
        place = at if dot else f"{at}the file"
        raise ConfigurationError(f"{place}: expected an object, got {_shown(value)}")
    for key in value:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out"
            listed = ", ".join(keys)
            raise ConfigurationError(f"{at}{dot}{key}: unknown key; {hint} (known: {listed})")
    for key in {**value, **keys}:
        kind, expected = keys[key]
        try:
            msgspec.convert(value.get(key), kind)
        except msgspec.ValidationError:
            got = _shown(value.get(key))
            raise ConfigurationError(f"{at}{dot}{key}: expected {expected}, got {got}") from None
    return [value.get(key) for key in keys]


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{value!r:.60}"


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
