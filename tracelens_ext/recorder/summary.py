"""The result of a recording in sentences, and which traces belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens_ext.analysis.recording_cost import recording_cost_sentence
from tracelens_ext.recorder.hook_folder import ProcessOutcome
from tracelens_ext.recorder.other_profilers import installed_profiler
from tracelens_ext.recorder.record_options import RecordOptions, StepsBy
from tracelens_ext.text import counted

_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
#: Python's one-letter options that make it ignore `PYTHONPATH` or `sitecustomize`.
_ISOLATING = "IES"
#: Python's one-letter options that take a value.
_WITH_VALUE = "WX"
#: Python's one-letter options after which no more options of Python follow.
_ENDING = "cm"
_BY_TIME = "record a period of time instead: --after 30s --for 5s"


@dataclass(frozen=True)
class RecordingSummary:
    """The result of recording a program, once the program has ended."""

    command: Sequence[str]
    options: RecordOptions
    outcomes: Sequence[ProcessOutcome]
    python_ran: bool
    problems: Sequence[str]  #: the reasons why the hook could not be loaded

    @property
    def written(self) -> list[ProcessOutcome]:
        """The processes that wrote a trace, by rank."""
        written = [outcome for outcome in self.outcomes if outcome.trace]
        return sorted(written, key=lambda outcome: (outcome.rank or 0, outcome.trace))

    def sentences(self) -> list[str]:
        """Return sentences about failures and limits of the recording, without full stops."""
        sentences = [
            f"the recorder could not be loaded: {problem}; please report this"
            for problem in self.problems
        ]
        sentences += self._failures()
        if not self.written:
            return sentences or [self._reason_for_nothing()]
        for outcome in self.written:
            sentences += self._limits(outcome)
        return list(dict.fromkeys(sentences))

    def _failures(self) -> list[str]:
        """Return sentences about processes that failed to record."""
        sentences = []
        for outcome in self.outcomes:
            process = f"process {outcome.pid} recorded nothing"
            if outcome.state == "failed":
                reason = f"{outcome.reason}; please report this"
                sentences.append(f"{process}: {reason}")
            elif outcome.state == "unsupported":
                sentences.append(f"{process}: {outcome.reason}")
            elif outcome.state == "dropped":
                remedy = "use the trace of that profiler, or turn it off"
                sentences.append(f"{process}: {outcome.reason}; {remedy}")
            elif outcome.state == "recording":
                reason = "it ended before its recording was written"
                remedy = (
                    "os._exit, SIGTERM, SIGKILL and crashes leave no time for that; record"
                    " earlier with --skip and --steps"
                )
                sentences.append(f"{process}: {reason}; {remedy}")
        return sentences

    def _reason_for_nothing(self) -> str:
        """Return a sentence that explains why there is no trace."""
        if not self.python_ran:
            return f"nothing was recorded: {self._reason_for_no_python()}"
        if not self.outcomes:
            return "nothing was recorded: the program did not import PyTorch"
        if all(outcome.state == "unselected" for outcome in self.outcomes):
            return "nothing was recorded: no process has a rank that --ranks selects"
        iterations = max(outcome.iterations for outcome in self.outcomes)
        if self.options.steps_by is StepsBy.time:
            start = f"{self.options.after_s:g} s"
            return (
                f"nothing was recorded: the program ran no PyTorch operation later than {start}"
                " after importing PyTorch; record earlier with --after, or longer with --for"
            )
        if iterations:
            return self._too_few_iterations(iterations)
        if any(outcome.ended is None for outcome in self.outcomes):
            return (
                "nothing was recorded: the program was killed before the recording began; let it"
                f" run longer, record earlier with --skip, or {_BY_TIME}"
            )
        return (
            "nothing was recorded: no optimizer step and no module call was made from "
            f"Python; {_BY_TIME}"
        )

    def _too_few_iterations(self, iterations: int) -> str:
        """Return a sentence: the program ended before the first iteration to record."""
        first = self.options.first_recorded
        completed = counted(iterations, "iteration")
        earlier = max(iterations // 3, 0)
        return (
            f"nothing was recorded: the program ended after {completed}, and the recording begins"
            f" after {first} (--skip {self.options.skip} --warmup {self.options.warmup});"
            f" record earlier, for example with --skip {earlier} --warmup 0, or {_BY_TIME}"
        )

    def _reason_for_no_python(self) -> str:
        """Return the reason why no Python process loaded the hook."""
        option = isolating_option(self.command)
        if option is not None:
            return (
                f"{self.command[0]} {option} ignores PYTHONPATH or sitecustomize, "
                "which recording needs; run it without that option"
            )
        return (
            "no Python process loaded the recorder. python -I, -E and -S cannot be recorded, nor"
            " can processes that do not inherit the environment (sudo, containers, Ray)."
            f" {_offer_for_other_programs()}"
        )

    def cost_sentences(self) -> list[str]:
        """Return, for each process, a sentence about how much longer recorded iterations took."""
        sentences = []
        for outcome in self.written:
            cost = recording_cost_sentence(outcome.recorded_ms, outcome.before_ms)
            if cost:
                sentences.append(f"{outcome.trace}: {cost}")
        return sentences

    def _limits(self, outcome: ProcessOutcome) -> list[str]:
        """Return sentences about data that the trace of a process lacks."""
        sentences = []
        requested = self.options.steps
        if outcome.recorded < requested and not self.options.is_by_time:
            completed = counted(outcome.iterations, "iteration")
            sentences.append(
                f"{outcome.trace} has {outcome.recorded} of {requested} iterations "
                f"because the process ended after {completed}"
            )
        if outcome.stacks_off_because:
            profiler = outcome.stacks_off_because
            sentences.append(
                f"{outcome.trace} has no Python stacks because another Python "
                f"profiler ({profiler}) was active"
            )
        if outcome.snapshot_problem:
            problem = outcome.snapshot_problem
            sentences.append(f"the memory snapshot could not be written: {problem}")
        return sentences

    def is_part_of_job(self) -> bool:
        """Return True if the traces are of some of the ranks of a larger job."""
        world_sizes = {outcome.world_size for outcome in self.written}
        return self.are_one_job() and max(world_sizes) > len(self.written)

    def are_one_job(self) -> bool:
        """Return True if the traces are of ranks of one job, or of processes that ran together."""
        written = self.written
        world_sizes = {outcome.world_size for outcome in written}
        ranks = {outcome.rank for outcome in written}
        are_distributed = len(world_sizes) == 1 and world_sizes != {0}
        if are_distributed and len(ranks) == len(written):
            return True
        return _ran_together(written)


def _offer_for_other_programs() -> str:
    """Return advice on recording a program that is not Python, for an installed profiler if any."""
    profiler = installed_profiler()
    if profiler is None:
        return (
            "A program that is not Python needs nsys or rocprofv3 on the PATH: record it with"
            " --with nsys or --with rocprofv3"
        )
    return (
        f"If the program is not Python, record it with {profiler.product}:"
        f" --with {profiler.value}"
    )


def _ran_together(outcomes: Sequence[ProcessOutcome]) -> bool:
    """Return True if there was a time at which all processes ran."""
    last_start = max(outcome.started for outcome in outcomes)
    first_end = min(outcome.ended or outcome.started for outcome in outcomes)
    return last_start <= first_end


def isolating_option(command: Sequence[str]) -> str | None:
    """Return the option of Python in a command that prevents recording; None without one."""
    if not _PYTHON.fullmatch(os.path.basename(command[0])):  # noqa: PTH119
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--"):
            return None
        for position, letter in enumerate(word[1:], start=2):
            if letter in _ISOLATING:
                return f"-{letter}"
            if letter in _ENDING:
                return None
            if letter in _WITH_VALUE:
                if position == len(word):
                    next(words, None)
                break
    return None
