"""`Recorder`: counts the iterations of a process, records a few of them, and writes the trace.

All calls of the profiler are made on the thread whose iterations are recorded, because stopping the
profiler on another thread crashes the program. If anything fails here, the program goes on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Optional

from .counting import ThreadSteps
from .forking import ForkedEnd
from .options import Options
from .patches import TorchPatches, without_compiler
from .process_file import SNAPSHOT_SUFFIX, TRACE_SUFFIX, ProcessFile, compress, publish
from .ranks import group_size, process_rank, world_size
from .recording import (
    Recording,
    UnsupportedError,
    import_what_optimizers_import,
    import_what_the_profiler_imports,
)

#: Longest time that the end of the program waits for another thread to end its iteration, seconds.
_PATIENCE_S = 1.0
#: Longest time that it waits for a trace that another thread is writing, seconds.
_WRITING_S = 600.0
#: Time between the import of the profiler's modules and a recording by time, seconds.
_IMPORTING_S = 5.0


class Recorder:
    """Records one process.

    Args:
        torch: PyTorch.
        options: The options for recording.
        process_file: The files of this process.
    """

    def __init__(self, torch: Any, options: Options, process_file: ProcessFile) -> None:
        self._torch = torch
        self._options = options
        self._file = process_file
        self._patches = TorchPatches(torch, self)
        self._lock = threading.RLock()
        #: True if the parent process was recording when it forked this one
        self._inherits_profiler = False
        #: lets forked processes end, once a profiler has been prepared in this process
        self._forked_end: Optional[ForkedEnd] = None
        self._begin_counting()

    def _begin_counting(self) -> None:
        """Start counting from zero."""
        self.is_over = False
        #: True while this recorder, and not the program, creates or uses a profiler
        self.is_at_work = False
        self.recording: Optional[Recording] = None
        self._thread_steps: Dict[int, ThreadSteps] = {}
        #: optimizers that were created and have not stepped, by identity
        self._unused: Dict[int, Any] = {}
        self._has_optimizer = self._options.steps_by == "optimizer"
        self._owner = 0  #: identity of the thread whose iterations are recorded
        self._first_number = 0  #: number of the first iteration to record
        self._must_stop = threading.Event()
        #: why the recording thread must discard the recording; empty to keep it
        self._drop_reason = ""
        self._timed_thread: Optional[threading.Thread] = None
        #: path of a trace of inference, which a trace of training will replace
        self._written = ""

    # Beginning and end of the process

    def install(self) -> None:
        """Start counting the iterations of this process."""
        self._patches.put_on(calls=not self._has_optimizer)
        atexit.register(self._end_process)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_afresh_in_child)
        self._file.write(state="waiting", torch=str(self._torch.__version__))
        if self._options.is_by_time:
            self._start_timed_thread()

    def _begin_afresh_in_child(self) -> None:
        """Forget the iterations of the parent after `fork`."""
        if self._forked_end is not None:
            self._forked_end.apply()
            self._forked_end = None  # processes that this one forks end in the same way
        inherited = self.recording
        is_inherited = inherited is not None and not inherited.is_stopped
        self._inherits_profiler = self._inherits_profiler or is_inherited
        self._lock = threading.RLock()
        self._file.begin_afresh()
        self._begin_counting()
        if is_inherited and sys.getprofile() is not None:
            sys.setprofile(None)  # PyTorch's function, which records Python frames
        self._patches.put_on(calls=not self._has_optimizer)
        if self._options.is_by_time:
            self._start_timed_thread()

    def _end_process(self) -> None:
        """Write the trace of what was recorded so far, because the process ends."""
        recording = self.recording
        if recording is not None and not self.is_over:
            self._must_stop.set()
            if self._owner == threading.get_ident():
                self._guarded(self._finish)
            else:
                self._wait_for_owner()
        if not self.is_over and not self._written:
            self._file.write(ended=time.time(), iterations=self._most_iterations())
        if self._file.facts["state"] != "worker":
            self._file.write(exited=time.time())

    def _wait_for_owner(self) -> None:
        """Wait until the recording thread has stopped, which it does at its next iteration."""
        deadline = time.monotonic() + _PATIENCE_S
        if self._timed_thread is not None:
            deadline += _WRITING_S
        while not self.is_over and time.monotonic() < deadline:
            if self.recording is not None and self.recording.is_stopped:
                deadline += _WRITING_S
            time.sleep(0.01)

    def _most_iterations(self) -> int:
        """Return the number of iterations of the thread that has most of them."""
        return max((steps.number for steps in self._thread_steps.values()), default=0)

    # What the program does

    @property
    def counts_calls(self) -> bool:
        """True if calls of modules count as iterations, because there is no optimizer."""
        return not self._has_optimizer and not self._options.is_by_time

    def optimizer_was_made(self, optimizer: Any) -> None:
        """Wait for the steps of a new optimizer, too."""
        if not self._counts_optimizers():
            return
        self._unused[id(optimizer)] = weakref.ref(optimizer)
        for steps in self._thread_steps.values():
            steps.optimizers.add(optimizer)
        self._first_optimizer_was_made()
        if self._options.skip == 0:
            self._guarded(import_what_optimizers_import)
        self._guarded(self._begin_at_once)

    def optimizer_begins(self, optimizer: Any) -> bool:
        """Note that a step begins; return False within another step of the same optimizer."""
        steps = self._steps_of_thread()
        if id(optimizer) in steps.stepping:
            return False
        steps.stepping.append(id(optimizer))
        return True

    def optimizer_ends(self, optimizer: Any, *, has_stepped: bool) -> None:
        """Count a step of an optimizer that has ended, unless it failed."""
        steps = self._steps_of_thread()
        if id(optimizer) in steps.stepping:
            steps.stepping.remove(id(optimizer))
        if not has_stepped or not self._counts_optimizers():
            return
        self._first_optimizer_was_made()
        if self._unused.pop(id(optimizer), None) is not None:
            for steps_of_thread in self._thread_steps.values():
                if steps_of_thread is not steps:
                    steps_of_thread.optimizers.forget(optimizer)
        steps.optimizers.has_stepped(optimizer)
        if not steps.stepping and steps.optimizers.end_iteration_if_complete():
            steps.end_iteration(steps.optimizers.number)
            self._guarded(lambda: self._advance(steps))

    def call_begins(self) -> None:
        """Note that a call of the outermost module begins."""
        if self.counts_calls:
            self._guarded(self._begin_at_once)

    def call_ends(self) -> None:
        """Count a call of the outermost module that has ended."""
        if self.is_over or not self.counts_calls:
            return
        steps = self._steps_of_thread()
        steps.end_iteration()
        self._guarded(lambda: self._advance(steps))

    def program_profiles(self) -> None:
        """Stop recording, because the program creates a profiler itself."""
        if self.is_over or self.is_at_work:
            return
        self._drop("the program creates its own profiler")

    def _counts_optimizers(self) -> bool:
        by_optimizer = self._options.steps_by in ("auto", "optimizer")
        return by_optimizer and not self.is_over

    def _first_optimizer_was_made(self) -> None:
        """Count steps of optimizers instead of calls of modules from now on."""
        if self._has_optimizer:
            return
        self._guarded(self._drop_recording)
        self._has_optimizer = True
        self._patches.take_off_calls()
        thread = threading.get_ident()
        self._thread_steps = {thread: self._steps_with_unused_optimizers()}

    def _steps_of_thread(self) -> ThreadSteps:
        """Return the steps of the current thread."""
        identity = threading.get_ident()
        steps = self._thread_steps.get(identity)
        if steps is None:
            steps = self._steps_with_unused_optimizers()
            self._thread_steps[identity] = steps
        return steps

    def _steps_with_unused_optimizers(self) -> ThreadSteps:
        """Return the steps of a new thread, which may use any optimizer that has not stepped."""
        steps = ThreadSteps()
        for reference in list(self._unused.values()):
            optimizer = reference()
            if optimizer is not None:
                steps.optimizers.add(optimizer)
        return steps

    # The recording

    def _begin_at_once(self) -> None:
        """Prepare the profiler before the first iteration, if no iteration is to be skipped."""
        if self._options.skip == 0 and self.recording is None and not self.is_over:
            self._advance(self._steps_of_thread())

    def _advance(self, steps: ThreadSteps) -> None:
        """Prepare, start, continue or finish the recording after an iteration of this thread."""
        recording = self.recording
        if recording is None:
            if steps.number < self._options.skip or not self._claim():
                return
            if not self._may_record():
                return
            recording = self._prepare()
            self._first_number = steps.number + self._options.warmup
            if self.is_over:  # meanwhile, another thread has created a profiler
                recording.stop({})
                return
        elif self._owner != threading.get_ident():
            return
        if recording.is_started:
            recording.end_iteration()
            is_enough = len(recording.recorded_ms) >= self._options.steps
            if is_enough or self._must_stop.is_set():
                self._finish()
                return
            recording.begin_iteration(steps.number)
        elif self._must_stop.is_set():
            self._finish()
        elif steps.number >= self._first_number:
            with self._patches.original_call():
                recording.start()
            recording.begin_iteration(steps.number)

    def _claim(self) -> bool:
        """Make this thread the one that records; return False if there is one already."""
        with self._lock:
            if self._owner:
                return False
            self._owner = threading.get_ident()
        return True

    def _may_record(self) -> bool:
        """Return True if this process is to be recorded; otherwise, stop counting."""
        worker = sys.modules.get("torch.utils.data")
        if worker is not None and worker.get_worker_info() is not None:
            self._end("worker", "it is a data loader worker", is_written=False)
            return False
        rank = process_rank(self._torch)
        ranks = self._options.ranks
        if ranks is not None and (rank or 0) not in ranks:
            self._end("unselected", "its rank is not in --ranks")
            return False
        if self._is_profiled():
            self._end("dropped", "another profiler is active")
            return False
        return True

    def _is_profiled(self) -> bool:
        """Return True if another profiler is active; stop one that the parent left by `fork`."""
        autograd = self._torch._C._autograd
        if self._inherits_profiler and not self._torch.cuda.is_initialized():
            self._inherits_profiler = False
            if autograd._profiler_enabled():
                autograd._disable_profiler()
        return bool(autograd._profiler_enabled())

    def _prepare(self, *, all_threads: bool = False) -> Recording:
        """Prepare the profiler on this thread."""
        if hasattr(os, "fork"):
            self._forked_end = ForkedEnd()
        recording = Recording(self._torch, self._options, all_threads=all_threads)
        self.recording = recording
        self._finish_with_thread()
        self._finish_with_worker()
        self._file.write(state="recording", rank=process_rank(self._torch))
        return recording

    def _finish_with_thread(self) -> None:
        """Make this thread stop the profiler when it ends."""
        thread: Any = threading.current_thread()
        if thread is threading.main_thread():
            return
        unregister = getattr(thread, "_delete", None)
        if unregister is None:
            return

        def finish_and_unregister() -> None:
            if self._owner == threading.get_ident() and not self.is_over:
                self._guarded(self._finish)
            unregister()

        thread._delete = finish_and_unregister

    def _finish_with_worker(self) -> None:
        """Write the trace at the end of a process of `multiprocessing`, which skips `atexit`."""
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None:
            process = os.getpid()

            def finish() -> None:
                if os.getpid() == process:
                    self._end_process()

            util.Finalize(None, finish, exitpriority=100)

    def _finish(self) -> None:
        """Stop the profiler, and write the trace of what was recorded so far."""
        recording = self.recording
        if recording is None:
            return
        if self._drop_reason:
            self._drop(self._drop_reason)
            return
        steps = self._steps_of_thread()
        if not recording.is_started:
            self._drop_recording()
            self._end("waiting", "", iterations=steps.number)
            return
        facts = self._recording_facts(recording, steps)
        if not recording.is_stopped:
            recording.stop(facts)
        if not recording.recorded_ms and not self._options.is_by_time:
            # The trace has only an iteration that was cut off, which is better than no trace.
            facts["cut_off_only"] = True
        trace = self._write_trace(recording)
        if trace is None:
            self._end("waiting", "", **facts)
        else:
            self._end("written", "", trace=os.path.basename(trace), **facts)
        self._come_back_for_training(trace)

    def _recording_facts(
        self, recording: Recording, steps: ThreadSteps
    ) -> Dict[str, Any]:
        """Return facts about a recording for the reporting program, and for the trace file."""
        return {
            "iterations": steps.number,
            "first_iteration": self._first_number,
            "recorded_ms": recording.recorded_ms,
            "before_ms": steps.typical_duration_ms(),
            "steps_by": self._kind_of_steps(),
            "world_size": group_size(self._torch),
            "stacks_off_because": recording.stacks_off_because,
            "snapshot_problem": recording.snapshot_problem,
        }

    def _kind_of_steps(self) -> str:
        """Return what counted as an iteration: `optimizer`, `forward`, or `time` for nothing."""
        if self._options.is_by_time:
            return "time"
        return "optimizer" if self._has_optimizer else "forward"

    def _write_trace(self, recording: Recording) -> Optional[str]:
        """Write the trace of this process, and return its path; None if nothing was recorded.

        The trace gets its name when it is complete.
        """
        plain = self._file.scratch(".json-trace")
        packed = self._file.scratch(TRACE_SUFFIX)
        snapshot = self._file.scratch(SNAPSHOT_SUFFIX)
        try:
            recording.export(plain)
            has_operations = compress(plain, packed, recording.current)
            if not has_operations and self._options.is_by_time:
                return None
            trace = self._publish(packed)
            if recording.write_snapshot(snapshot):
                target = trace[: -len(TRACE_SUFFIX)] + SNAPSHOT_SUFFIX
                os.replace(snapshot, target)
            return trace
        finally:
            for path in (plain, packed, snapshot):
                if os.path.exists(path):
                    os.unlink(path)

    def _publish(self, packed: str) -> str:
        """Move a complete trace to its name, and return its path."""
        if self._written:
            os.replace(packed, self._written)
            return self._written
        rank = process_rank(self._torch)
        first_free = 0 if rank is None else max(world_size(self._torch), rank + 1)
        return publish(packed, self._file.output_folder, rank, first_free)

    def _drop(self, reason: str) -> None:
        """Discard the recording of this process, or let the thread that records do so."""
        is_elsewhere = self._owner != threading.get_ident()
        if self.recording is not None and is_elsewhere:
            self._drop_reason = reason
            self._must_stop.set()
            return
        self._guarded(self._drop_recording)
        self._end("dropped", reason)

    def _drop_recording(self) -> None:
        """Stop the profiler of this thread, and discard its recording."""
        recording = self.recording
        if recording is None or self._owner != threading.get_ident():
            return
        self.recording = None
        self._owner = 0
        if not recording.is_stopped:
            recording.stop({})

    def _end(
        self, state: str, reason: str, *, is_written: bool = True, **facts: Any
    ) -> None:
        """Stop counting, undo the replacements in PyTorch, and write the state of the process.

        Args:
            state: The state; see `ProcessOutcome`.
            reason: Why nothing was recorded; empty if something was.
            is_written: False to remove the file about this process instead.
            facts: More facts for that file.
        """
        if not is_written:
            self._file.forget(state)
        elif not self._is_less_than_written(state):
            ended = time.time()
            self._file.write(state=state, reason=reason, ended=ended, **facts)
        self.is_over = True
        self.recording = None
        self._thread_steps.clear()
        self._patches.take_off()

    def _is_less_than_written(self, state: str) -> bool:
        """Return True if a trace of inference exists, and this state is not about a new trace."""
        return bool(self._written) and state != "written"

    def _come_back_for_training(self, trace: Optional[str]) -> None:
        """Record training, too, if the program trains after the inference that was recorded."""
        is_inference = self._options.steps_by == "auto" and not self._has_optimizer
        if trace is None or not is_inference or self._must_stop.is_set():
            return
        self._begin_counting()
        self._has_optimizer = True
        self._written = trace
        self._patches.put_on(calls=False)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action; if it fails, the recording ends, and the program goes on."""
        was_at_work = self.is_at_work
        self.is_at_work = True
        try:
            with without_compiler():
                action()
        except UnsupportedError as error:
            self._end("unsupported", str(error))
        except Exception as error:
            self._end("failed", "{}: {}".format(type(error).__name__, error))
        finally:
            self.is_at_work = was_at_work

    # By time

    def _start_timed_thread(self) -> None:
        """Start the thread that records for a period of time."""
        self._timed_thread = threading.Thread(
            target=self._record_for_a_time, name="tracelens-ext", daemon=True
        )
        self._timed_thread.start()

    def _record_for_a_time(self) -> None:
        """Wait, record all threads for a period of time, and write the trace."""
        must_stop = self._must_stop
        start = time.monotonic() + self._options.after_s
        if must_stop.wait(max(self._options.after_s - _IMPORTING_S, 0.0)):
            return
        self._guarded(lambda: import_what_the_profiler_imports(self._torch))
        if must_stop.wait(max(start - time.monotonic(), 0.0)):
            return
        self._guarded(self._start_timed_recording)
        if self.recording is not None:
            must_stop.wait(self._options.for_s)
            self._guarded(self._finish)

    def _start_timed_recording(self) -> None:
        """Start recording all threads, if this process is to be recorded."""
        if self.is_over or not self._claim() or not self._may_record():
            return
        recording = self._prepare(all_threads=True)
        with self._patches.original_call():
            recording.start()
