"""`Recording`: one recording with PyTorch's profiler."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional

from .options import Options

#: The member of the trace file with facts about the recording.
METADATA_KEY = "tracelens_ext_recording"
#: Environment variable with the lowest level of messages that Kineto, PyTorch's profiling library,
#: writes.
_KINETO_LEVEL = "KINETO_LOG_LEVEL"
#: A level above those of all messages.
_KINETO_SILENCE = "99"
#: A message that Kineto writes whatever its level.
_KINETO_LINE = b"External init callback must run in same thread"
#: The file descriptor of standard error.
_STANDARD_ERROR = 2
#: The largest number of events in a snapshot of memory.
_SNAPSHOT_ENTRIES = 200_000
_PROFILER_TOOL = 2  # `sys.monitoring.PROFILER_ID`
#: An entry of `warnings.filters` that ignores all warnings.
_IGNORED_WARNING = ("ignore", None, Warning, None, 0)


class UnsupportedError(Exception):
    """This version of PyTorch does not support the recording; the message says what to do."""


class Recording:
    """The profiler, from its preparation to the trace. All calls must be on the same thread.

    Args:
        torch: PyTorch.
        options: The options for recording.
        all_threads: Record the operations of all threads instead of only the calling one.
        activities: The activities to record; by default, those of the CPU and of the accelerators
            that the program already uses.
    """

    def __init__(
        self,
        torch: Any,
        options: Options,
        *,
        all_threads: bool,
        activities: Optional[List[Any]] = None,
    ) -> None:
        self._torch = torch
        self._options = options
        self._activities = activities or self._used_activities()
        self._mark: Any = None  #: the annotation of the current iteration
        self._mark_start = 0.0  #: when it began, s
        self.stacks_off_because = other_profiler() if options.stacks else None
        self.is_started = False
        self.is_stopped = False
        self.recorded_ms: List[float] = []  #: the duration of each recorded iteration
        #: number of the iteration that is being recorded; after the end of the recording, of the
        #: iteration that the end cut off
        self.current: Optional[int] = None
        self.snapshot_problem = ""
        with _quiet():
            self._profile = self._make_profile(all_threads=all_threads)
            self._start_snapshot()
            import_what_the_profiler_imports(self._torch)
            with _without_lines_of_kineto():
                self._profile.prepare_trace()

    def _make_profile(self, *, all_threads: bool) -> Any:
        """Return a profiler of PyTorch with the options of this recording."""
        profiler = self._torch.profiler
        arguments: Dict[str, Any] = {}
        if all_threads:
            config = self._torch._C._profiler._ExperimentalConfig
            try:
                arguments["experimental_config"] = config(profile_all_threads=True)
            except TypeError:
                version = self._torch.__version__
                message = (
                    "PyTorch {} cannot record all threads for a period of time; update it, or"
                    " record iterations with --steps-by".format(version)
                )
                raise UnsupportedError(message) from None
        return profiler._KinetoProfile(
            activities=self._activities,
            record_shapes=True,
            profile_memory=self._options.memory,
            with_stack=self._options.stacks and self.stacks_off_because is None,
            **arguments,
        )

    def _used_activities(self) -> List[Any]:
        """Return the activities of the CPU, and of the accelerators that the program uses."""
        kinds = self._torch.profiler.ProfilerActivity
        accelerators = [
            getattr(kinds, name.upper())
            for name in ("cuda", "xpu")
            if self._uses(name) and hasattr(kinds, name.upper())
        ]
        return [kinds.CPU, *accelerators]

    def _uses(self, accelerator: str) -> bool:
        """Return True if the program already uses an accelerator; this does not initialize it."""
        module = getattr(self._torch, accelerator, None)
        is_initialized = getattr(module, "is_initialized", None)
        return is_initialized is not None and is_initialized()

    def start(self) -> None:
        """Start recording, after the iterations of the warm-up."""
        with _quiet():
            self._profile.start_trace()
        self.is_started = True

    def begin_iteration(self, number: int) -> None:
        """Mark the beginning of an iteration."""
        record_function = self._torch.autograd.profiler.record_function
        self._mark = record_function("ProfilerStep#{}".format(number))
        self.current = number
        self._mark.__enter__()
        self._mark_start = time.perf_counter()

    def end_iteration(self) -> None:
        """Mark the end of the iteration."""
        duration_s = time.perf_counter() - self._mark_start
        self._mark.__exit__(None, None, None)
        self._mark = None
        self.current = None
        self.recorded_ms.append(1000 * duration_s)

    def stop(self, facts: Dict[str, Any]) -> None:
        """Stop the profiler, and add facts to the trace."""
        if self._mark is not None:
            # An annotation that ends after the profiler would write into freed memory. The
            # iteration stays `current`, so that its annotation is renamed later.
            self._mark.__exit__(None, None, None)
            self._mark = None
        with _quiet():
            if not self.is_started:
                # PyTorch cannot stop a profiler that was only prepared.
                self._profile.start_trace()
            self._profile.add_metadata_json(METADATA_KEY, json.dumps(facts))
            self._profile.stop_trace()
        self.is_stopped = True

    def export(self, path: str) -> None:
        """Write the trace as JSON."""
        with _quiet():
            self._profile.export_chrome_trace(path)

    def _start_snapshot(self) -> None:
        """Start recording the history of the GPU's memory, if a snapshot is requested."""
        if not self._options.memory_snapshot:
            return
        if not self._uses("cuda"):
            self.snapshot_problem = "the program does not use CUDA or ROCm"
            return
        self._torch.cuda.memory._record_memory_history(max_entries=_SNAPSHOT_ENTRIES)

    def write_snapshot(self, path: str) -> bool:
        """Write the snapshot of memory if one is requested and possible; return True if so."""
        if not self._options.memory_snapshot or self.snapshot_problem:
            return False
        self._torch.cuda.memory._dump_snapshot(path)
        self._torch.cuda.memory._record_memory_history(enabled=None)
        return True


def import_what_the_profiler_imports(torch: Any) -> None:
    """Import the modules that the profiler would import when it starts.

    In some versions of PyTorch, the import takes seconds. Some versions import the modules while
    they record, and then write wrong names into the trace.
    """
    if hasattr(torch, "_inductor"):
        with suppress(ImportError):
            importlib.import_module("torch._inductor.config")


def import_what_optimizers_import() -> None:
    """Import the modules that every optimizer imports when it is created.

    If this happens while some versions of PyTorch record, they write wrong names and invalid JSON.
    """
    with suppress(ImportError):
        importlib.import_module("torch._dynamo")


def other_profiler() -> Optional[str]:
    """Return the name of the Python profiler that is active in this thread; None without one.

    To record Python frames, PyTorch would replace that profiler.
    """
    profiler = sys.getprofile()
    if profiler is not None:
        return type(profiler).__name__
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        name: Optional[str] = monitoring.get_tool(_PROFILER_TOOL)
        return name
    return None


@contextmanager
def _without_lines_of_kineto() -> Iterator[None]:
    """Remove a line that Kineto writes to standard error on threads other than the main one.

    Kineto's log level does not suppress it. All other text that the process writes to standard
    error during the block is written at its end.
    """
    if threading.current_thread() is threading.main_thread():
        yield
        return
    try:
        standard_error = os.dup(_STANDARD_ERROR)
    except OSError:  # it is closed
        yield
        return
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), _STANDARD_ERROR)
            try:
                yield
            finally:
                os.dup2(standard_error, _STANDARD_ERROR)
                file.seek(0)
                lines = file.readlines()
                other_lines = [line for line in lines if _KINETO_LINE not in line]
                if other_lines:
                    os.write(_STANDARD_ERROR, b"".join(other_lines))
    finally:
        os.close(standard_error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Kineto's messages and PyTorch's warnings during this block.

    `warnings.catch_warnings` is not used, because it makes Python forget which warnings it has
    shown: the program's own warnings would appear again.
    """
    is_silent = _KINETO_LEVEL in os.environ
    if not is_silent:
        os.environ[_KINETO_LEVEL] = _KINETO_SILENCE
    ignored: Any = _IGNORED_WARNING
    warnings.filters.insert(0, ignored)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if ignored in warnings.filters:
            warnings.filters.remove(ignored)  # type: ignore[attr-defined]
        if not is_silent:
            os.environ.pop(_KINETO_LEVEL, None)
