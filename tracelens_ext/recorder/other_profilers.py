"""Recording of programs with Nsight Systems or rocprofv3, instead of PyTorch's profiler."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from tracelens_ext.errors import UsageError
from tracelens_ext.recorder.record_options import RecordOptions, StepsBy

#: Beginning of the file names of recordings; the profiler adds the rest.
_NAME: Final = "profile"
#: rocprofv3 replaces this by the number of each process, so that processes do not overwrite each
#: other's files.
_PROCESS_NUMBER: Final = "%pid%"


class OtherProfiler(StrEnum):
    """A profiler that runs a program and records all of it, or a period of time."""

    nsys = "nsys"
    """Nsight Systems of NVIDIA."""
    rocprofv3 = "rocprofv3"
    """ROCprofiler of AMD."""

    @property
    def product(self) -> str:
        """The common name of the profiler."""
        return {"nsys": "Nsight Systems", "rocprofv3": "rocprofv3 of ROCm"}[self.value]

    def program(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the path of the profiler.

        Raises:
            UsageError: The profiler is not on the `PATH`.
        """
        path = shutil.which(self.value, path=environment.get("PATH"))
        if path is None:
            raise UsageError(
                f"{self.value} is not on the PATH; install {self.product}, or leave out"
                " --with to record with PyTorch's profiler"
            )
        return path

    def command(
        self, program: str, command: Sequence[str], folder: Path, options: RecordOptions
    ) -> list[str]:
        """Return the command that runs a program under the profiler.

        Args:
            program: The path of the profiler.
            command: The program to record, and its arguments.
            folder: The folder for the recordings.
            options: The options for recording; only the period of time is used.
        """
        if self is OtherProfiler.nsys:
            return _nsys_command(program, command, folder, options)
        return _rocprofv3_command(program, command, folder, options)

    def recordings(self, folder: Path, files_before: Collection[Path]) -> list[Path]:
        """Return the recordings that the profiler wrote, in the file format with most content.

        Args:
            folder: The folder of the recordings.
            files_before: The files that were in the folder before.
        """
        for pattern in _PATTERNS[self]:
            paths = set(folder.rglob(pattern)) - set(files_before)
            if paths:
                return sorted(paths)
        return []


#: The recordings of each profiler, by file format; the format with most content comes first.
_PATTERNS: Final[dict[OtherProfiler, Sequence[str]]] = {
    OtherProfiler.nsys: ("*.nsys-rep", "*.qdrep", "*.sqlite"),
    OtherProfiler.rocprofv3: (
        "*.db",
        "*_results.json",
        "*_kernel_trace.csv",
        "*_hip_api_trace.csv",
    ),
}


def installed_profiler() -> OtherProfiler | None:
    """Return the first of these profilers that is on the `PATH`; None if there is none."""
    for profiler in OtherProfiler:
        if shutil.which(profiler.value) is not None:
            return profiler
    return None


def check_options(profiler: OtherProfiler, options: RecordOptions) -> None:
    """Refuse options that only PyTorch's profiler supports.

    Raises:
        UsageError: An option is about iterations or about PyTorch.
    """
    defaults = RecordOptions()
    is_given = {
        "--skip": options.skip != defaults.skip,
        "--warmup": options.warmup != defaults.warmup,
        "--steps": options.steps != defaults.steps,
        "--steps-by": options.steps_by not in (StepsBy.auto, StepsBy.time),
        "--ranks": options.ranks is not None,
        "--no-stacks": not options.stacks,
        "--memory": options.memory,
        "--memory-snapshot": options.memory_snapshot,
    }
    unsupported = [name for name, given in is_given.items() if given]
    if unsupported:
        raise UsageError(
            f"{', '.join(unsupported)}: {profiler.value} records the whole program, or a period of"
            " time (--after, --for); leave the other options out"
        )


def _nsys_command(
    program: str, command: Sequence[str], folder: Path, options: RecordOptions
) -> list[str]:
    """Return the command that runs a program under Nsight Systems.

    It records each kernel within CUDA graphs, and the processes that the program forks, too.
    """
    arguments = [
        "profile",
        "-t",
        "cuda,nvtx,osrt",
        "-o",
        str(folder / _NAME),
        "-f",
        "true",
        "--cuda-graph-trace=node",
        "--trace-fork-before-exec=true",
    ]
    if options.is_by_time:
        delay_s = math.ceil(options.after_s)
        duration_s = max(math.ceil(options.for_s), 1)
        arguments += [
            f"--delay={delay_s}",
            f"--duration={duration_s}",
            "--kill=none",  # the program goes on after the period
        ]
    return [program] + arguments + list(command)


def _rocprofv3_command(
    program: str, command: Sequence[str], folder: Path, options: RecordOptions
) -> list[str]:
    """Return the command that runs a program under rocprofv3."""
    arguments = [
        "--kernel-trace",
        "--hip-trace",
        "--marker-trace",
        "--memory-copy-trace",
        "-d",
        str(folder),
        "-o",
        f"{_NAME}-{_PROCESS_NUMBER}",
    ]
    if options.is_by_time:
        delay_ms = round(1000 * options.after_s)
        duration_ms = max(round(1000 * options.for_s), 1)
        arguments += [
            "--collection-period",
            f"{delay_ms}:{duration_ms}:1",
            "--collection-period-unit",
            "msec",
        ]
    return [program] + arguments + ["--"] + list(command)
