"""The configuration file, in the format of GPU Performance Analyser: inputs and a class map.

    {"inputs": [{"format": "csv", "title": …, "nsys_csv_file_path": {"kernel_sum": …},
                 "analysis_args": {"num_of_iters": 5, "num_of_gpus": 1, "nvtx_tag_of_iter": …}}],
     "kernel_to_class_map": {"part_of_kernel_name": "class"}}

The file is JSON that may contain comments and trailing commas. Inputs with the formats `nsys-rep`
and `sqlite` have the section `nsys_report` (`path`, `with_nvtx`, `with_mem`) instead of
`nsys_csv_file_path`. A relative path is searched in the folder of the configuration file, then in
the current folder.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tracelens_ext.analysis.nsys_statistics.commented_json import read_commented_json
from tracelens_ext.errors import ConfigurationError

_TEXT = Annotated[str, Meta(min_length=1)]
_COUNT = Annotated[int, Meta(ge=1)]
_FORMAT = Annotated[str, Meta(pattern="(?i)^(csv|nsys-rep|sqlite)$")]


class _SectionKey(NamedTuple):
    """The value that a key of a section must have: its type for msgspec, and in words."""

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
#: Arguments of GPU Performance Analyser about columns and units. They are ignored here, because
#: columns and units are recognized by the header of a table.
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
    """One input, which is either a set of tables or a trace.

    Attributes:
        trace: the trace; None for tables.
        kernels: the `cuda_gpu_kern_sum` CSV; None for a trace.
        nvtx: the `nvtx_gpu_proj_trace` CSV, if there is one.
        mem: the `cuda_gpu_mem_time_sum` CSV, if there is one.
        mem_size: the `cuda_gpu_mem_size_sum` CSV of the same recording, if there is one.
        class_map: file of the class map for this input; None to use the one for all inputs.
        iterations: number of iterations; None for the number of ranges on each GPU.
        gpus: number of GPUs; None for the number that ran kernels in a trace, and 1 for tables.
        iteration_range: name of the NVTX ranges of iterations; None for no ranges.
        title: the heading; None for the name of the file.
        with_memory: whether to count memory operations of a trace.
        missing: a sentence about files of the input that do not exist; empty if all exist.
        remarks: sentences for the user about arguments that are ignored.
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
        """The heading above the tables of the input."""
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
    """The content of a configuration file.

    Attributes:
        inputs: the inputs, at least one.
        class_map: part of a kernel name → class; None if the file has no class map.
    """

    inputs: tuple[InputSpec, ...]
    class_map: Mapping[str, str] | None


def load_configuration(path: str | os.PathLike[str]) -> Configuration:
    """Read a configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is not allowed.
    """
    source = os.fspath(path)
    document = _check_section(
        keys=_DOCUMENT, value=read_commented_json(path), place=f"{source}: "
    )
    if not document["inputs"]:
        raise ConfigurationError(
            f"{source}: inputs: expected at least one input, got none"
        )
    folder = Path(source).parent
    inputs = []
    for index, section in enumerate(document["inputs"]):
        place = f"{source}: inputs[{index}]"
        reader = _InputReader(section=section, place=place, folder=folder)
        inputs.append(reader.read())
    return Configuration(
        inputs=tuple(inputs), class_map=document["kernel_to_class_map"]
    )


def load_class_map(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Read a class map: a JSON object, or a configuration file that contains one.

    Raises:
        ConfigurationError: the file cannot be read, or is not a class map.
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
        section: the decoded section of the input.
        place: the file and the place in it, for messages.
        folder: the folder of the configuration file.
    """

    def __init__(self, section: object, place: str, folder: Path) -> None:
        self._section = _check_section(_INPUT, section, place)
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
        """Return the arguments of the analysis, and remarks about those that are ignored."""
        section = self._section["analysis_args"]
        remarks: tuple[str, ...] = ()
        if isinstance(section, dict):
            not_needed = [key for key in section if key in _NOT_NEEDED]
            if not_needed:
                section = {
                    key: section[key] for key in section if key not in not_needed
                }
                keys = ", ".join(not_needed)
                remarks = (
                    f"{keys}: not needed; the columns are recognized by their titles",
                )
        arguments = _check_section(_ARGUMENTS, section, f"{self._place}.analysis_args")
        return arguments, remarks

    def _tables(self, arguments: Mapping[str, Any]) -> InputSpec:
        """Return an input that consists of tables."""
        section = "nsys_csv_file_path"
        files = _check_section(
            keys=_TABLES, value=self._section[section], place=f"{self._place}.{section}"
        )
        paths = {
            key: self._path_of_file(f"{section}.{key}", name)
            for key, name in files.items()
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
        """Return an input that is a report of Nsight Systems, or its export to SQLite."""
        report = _check_section(
            keys=_REPORT,
            value=self._section["nsys_report"],
            place=f"{self._place}.nsys_report",
        )
        if report["with_nvtx"]:
            self._check_tag(arguments)
        has_ranges = report["with_nvtx"] is not False
        return InputSpec(
            trace=self._path_of_file("nsys_report.path", report["path"]),
            gpus=arguments["num_of_gpus"],
            iteration_range=arguments["nvtx_tag_of_iter"] if has_ranges else None,
            with_memory=report["with_mem"] is not False,
        )

    def _check_tag(self, arguments: Mapping[str, Any]) -> None:
        """Raise a `ConfigurationError` if the name of the NVTX ranges is missing."""
        if arguments["nvtx_tag_of_iter"] is None:
            raise ConfigurationError(
                f"{self._place}.analysis_args.nvtx_tag_of_iter: expected the name of the NVTX"
                " ranges, got nothing"
            )

    def _path_of_file(self, key: str, name: str | None) -> Path | None:
        """Return the path of a file, in the folder of the configuration or the current folder.

        A file that exists in neither is added to the missing ones.

        Args:
            key: the key of the file in the input, for the message.
            name: the file as the configuration names it; None for no file.
        """
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


def _check_section(keys: _Keys, value: object, place: str) -> dict[str, Any]:
    """Return the values of a section by key; None for keys that the section does not have.

    Args:
        keys: the keys that the section may have.
        value: the decoded section.
        place: the file and the place in it, for messages; it ends in ": " for the whole file.

    Raises:
        ConfigurationError: the section is not an object, has an unknown key, or a wrong value.
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
    # Keys of the section come first, in the order of the file: the first error is about the first.
    for name in {**value, **keys}:
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
    """Return a value as text for a message, cut off if it is long."""
    if value is None:
        return "nothing"
    return f"{value!r:.60}"
