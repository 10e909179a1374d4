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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tracelens_ext.categorize.maps import without_repetition
from tracelens_ext.errors import ConfigurationError

_TEXT = Annotated[str, Meta(min_length=1)]
_COUNT = Annotated[int, Meta(ge=1)]
_FORMAT = Annotated[str, Meta(pattern="(?i)^(csv|nsys-rep|sqlite)$")]


class _SectionKey(NamedTuple):
    """What a key of a section must be: a type for msgspec, and the same in words."""

    type: Any
    expected: str


_TEXT_KEY = _SectionKey(_TEXT | None, "a string")
_SECTION_KEY = _SectionKey(Any, "a section")
_FILE_KEY = _SectionKey(_TEXT, "a file name")
_OPTIONAL_FILE_KEY = _SectionKey(_TEXT | None, "a file name, or null")
_SWITCH_KEY = _SectionKey(bool | None, "true or false")

_Keys = Mapping[str, _SectionKey]
_DOCUMENT: _Keys = {
    "inputs": _SectionKey(list[Any], "a list of inputs"),
    "kernel_to_class_map": _SectionKey(dict[str, str] | None, "an object of strings"),
}
_INPUT: _Keys = {
    "format": _SectionKey(_FORMAT, "one of csv, nsys-rep, sqlite"),
    "title": _TEXT_KEY,
    "nsys_csv_file_path": _SECTION_KEY,
    "nsys_report": _SECTION_KEY,
    "analysis_args": _SECTION_KEY,
}
_ARGUMENTS: _Keys = {
    "num_of_iters": _SectionKey(_COUNT, "an integer from 1"),
    "num_of_gpus": _SectionKey(_COUNT | None, "an integer from 1"),
    "nvtx_tag_of_iter": _TEXT_KEY,
}
_TABLES: _Keys = {
    "kernel_sum": _FILE_KEY,
    "nvtx_proj_trace": _OPTIONAL_FILE_KEY,
    "mem_time_sum": _OPTIONAL_FILE_KEY,
}
_REPORT: _Keys = {
    "path": _FILE_KEY,
    "with_nvtx": _SWITCH_KEY,
    "with_mem": _SWITCH_KEY,
}
#: Arguments of the original about the places of columns; here the titles of a table tell them.
_NOT_NEEDED = (
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
    """One input: either tables or a trace.

    Attributes:
        trace: the trace, None for tables.
        kernels: the `cuda_gpu_kern_sum` CSV, None for a trace.
        nvtx: the `nvtx_gpu_proj_trace` CSV, if any.
        mem: the `cuda_gpu_mem_time_sum` CSV, if any.
        mem_size: the `cuda_gpu_mem_size_sum` CSV that goes with it, if any.
        class_map: the file of the class map, None for that of all inputs.
        iterations: how many the input has; None: as many as there are ranges on each GPU.
        gpus: how many GPUs; None: of a trace those that ran kernels, else 1.
        iteration_range: name of the iterations' ranges; None for no ranges.
        title: the heading; None: the name of the file.
        with_memory: memory operations of the trace are wanted.
        missing: which file of the input does not exist, a sentence; empty if all do.
        remarks: what the user should know about what was asked for, a sentence each.
    """

    trace: Path | None = None
    kernels: Path | None = None
    nvtx: Path | None = None
    mem: Path | None = None
    mem_size: Path | None = None
    class_map: Path | None = None
    iterations: int | None = None
    gpus: int | None = None
    iteration_range: str | None = None
    title: str | None = None
    with_memory: bool = True
    missing: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """What stands above its tables."""
        if self.title is not None:
            return self.title
        file = self.trace or self.kernels or Path()
        return file.stem

    @property
    def files(self) -> list[Path]:
        """All files of the input."""
        files = (self.kernels, self.nvtx, self.mem, self.mem_size, self.trace)
        return [file for file in files if file is not None]


@dataclass(frozen=True)
class Configuration:
    """What a configuration file says.

    Attributes:
        inputs: the inputs, at least one.
        class_map: part of a kernel name → class; None when the file has none.
    """

    inputs: tuple[InputSpec, ...]
    class_map: Mapping[str, str] | None


def load_configuration(path: str | os.PathLike[str]) -> Configuration:
    """Read a configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or says something that it may not.
    """
    source = os.fspath(path)
    document = _checked(
        keys=_DOCUMENT, value=read_commented_json(path), place=f"{source}: "
    )
    if not document["inputs"]:
        raise ConfigurationError(
            f"{source}: inputs: expected at least one input, got none"
        )
    folder = Path(source).parent
    inputs = []
    for number, value in enumerate(document["inputs"]):
        inputs.append(
            _InputReader(
                value=value, place=f"{source}: inputs[{number}]", folder=folder
            ).read()
        )
    return Configuration(
        inputs=tuple(inputs), class_map=document["kernel_to_class_map"]
    )


def load_class_map(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Read a class map: a JSON object, or a configuration file that contains one.

    Raises:
        ConfigurationError: the file cannot be read, or is something else.
    """
    document = read_commented_json(path)
    if isinstance(document, dict) and isinstance(
        document.get("kernel_to_class_map"), dict
    ):
        document = document["kernel_to_class_map"]
    try:
        return msgspec.convert(document, dict[str, str])
    except msgspec.ValidationError:
        expected = 'expected {"part_of_kernel_name": "class"}'
        raise ConfigurationError(
            f"{os.fspath(path)}: is not a class map; {expected}"
        ) from None


class _InputReader:
    """Reads one input of a configuration file.

    Args:
        value: what the file says of it.
        place: the file and the place in it, for messages.
        folder: where the configuration file is.
    """

    def __init__(self, value: object, place: str, folder: Path) -> None:
        self._section = _checked(_INPUT, value, place)
        self._place = place
        self._folder = folder
        self._missing: list[str] = []

    def read(self) -> InputSpec:
        """Return the input."""
        arguments, remarks = self._arguments()
        if self._section["format"].lower() == "csv":
            spec = self._tables(arguments)
        else:
            spec = self._report(arguments)
        return replace(
            spec,
            title=self._section["title"],
            iterations=arguments["num_of_iters"],
            missing="; ".join(self._missing),
            remarks=remarks,
        )

    def _arguments(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the arguments of the analysis, and remarks on those that are not needed."""
        given = self._section["analysis_args"]
        remarks: tuple[str, ...] = ()
        if isinstance(given, dict):
            not_needed = [key for key in given if key in _NOT_NEEDED]
            if not_needed:
                given = {key: given[key] for key in given if key not in not_needed}
                keys = ", ".join(not_needed)
                remarks = (
                    f"{keys}: not needed; the columns are recognized by their titles",
                )
        return _checked(_ARGUMENTS, given, f"{self._place}.analysis_args"), remarks

    def _tables(self, arguments: Mapping[str, Any]) -> InputSpec:
        """Return an input of tables."""
        section = "nsys_csv_file_path"
        files = _checked(
            keys=_TABLES, value=self._section[section], place=f"{self._place}.{section}"
        )
        paths = {
            key: self._located(f"{section}.{key}", name) for key, name in files.items()
        }
        has_ranges = paths["nvtx_proj_trace"] is not None
        if has_ranges:
            self._check_tag(arguments)
        return InputSpec(
            kernels=paths["kernel_sum"],
            nvtx=paths["nvtx_proj_trace"],
            mem=paths["mem_time_sum"],
            gpus=arguments["num_of_gpus"] or 1,
            iteration_range=arguments["nvtx_tag_of_iter"] if has_ranges else None,
        )

    def _report(self, arguments: Mapping[str, Any]) -> InputSpec:
        """Return an input of a report of Nsight Systems, or of its export."""
        report = _checked(
            keys=_REPORT,
            value=self._section["nsys_report"],
            place=f"{self._place}.nsys_report",
        )
        if report["with_nvtx"]:
            self._check_tag(arguments)
        has_ranges = report["with_nvtx"] is not False
        return InputSpec(
            trace=self._located("nsys_report.path", report["path"]),
            gpus=arguments["num_of_gpus"],
            iteration_range=arguments["nvtx_tag_of_iter"] if has_ranges else None,
            with_memory=report["with_mem"] is not False,
        )

    def _check_tag(self, arguments: Mapping[str, Any]) -> None:
        if arguments["nvtx_tag_of_iter"] is None:
            raise ConfigurationError(
                f"{self._place}.analysis_args.nvtx_tag_of_iter: expected the name of the NVTX"
                " ranges, got nothing"
            )

    def _located(self, key: str, name: str | None) -> Path | None:
        """Return the path of a file: beside the configuration, else in the current folder."""
        if name is None:
            return None
        beside = self._folder / name
        path = Path(name)
        if beside.exists():
            return beside
        if path.exists():
            return path
        self._missing.append(
            f"{self._place}.{key}: neither {beside} nor {path.absolute()} exists; "
            "check the path"
        )
        return beside


def _checked(keys: _Keys, value: object, place: str) -> dict[str, Any]:
    """Return the values of a section by key, None for those that are not given.

    Args:
        keys: the keys that the section may have.
        value: the section as it was decoded.
        place: the file and the place in it; it ends in ": " for the whole file.
    """
    is_whole_file = place.endswith(": ")
    if not isinstance(value, dict):
        where = f"{place}the file" if is_whole_file else place
        raise ConfigurationError(f"{where}: expected an object, got {_shown(value)}")
    prefix = place if is_whole_file else f"{place}."
    for name in value:
        if name not in keys:
            nearest = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "leave it out"
            known_keys = ", ".join(keys)
            raise ConfigurationError(
                f"{prefix}{name}: unknown key; {hint} (known: {known_keys})"
            )
    for name in {**value, **keys}:  # what is given first, in the order of the file
        try:
            msgspec.convert(value.get(name), keys[name].type)
        except msgspec.ValidationError:
            expected = keys[name].expected
            got = _shown(value.get(name))
            raise ConfigurationError(
                f"{prefix}{name}: expected {expected}, got {got}"
            ) from None
    return {name: value.get(name) for name in keys}


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return f"{value!r:.60}"


_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def read_commented_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file that may contain comments and trailing commas.

    Raises:
        ConfigurationError: the file cannot be read or decoded.
    """
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
        problem = "contains a number that is too long"
    except RecursionError:
        problem = "is not valid JSON: it is nested too deeply"
    except MemoryError:
        problem = "needs more memory than is available"
    raise ConfigurationError(f"{source}: {problem}")


def plain_json(text: str) -> str:
    """Blank out comments and trailing commas; every character stays in its line and column."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(_blanked_unless_string, text)
    return text


def _blanked_unless_string(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])
