"""Simulated jobs of known truth: the traces of their ranks, and what is true of every call.

The simulation has one global clock in ns. The file of each rank is written with the clock of its
node. Run as a script, it writes many fleets for `../shared/check/fleet_oracle.py`:
`fleet_maker.py FOLDER SEEDS`.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FIRST_STEP = 5
NS_PER_US = 1000
NS_PER_MS = 1_000_000
#: The time at which the simulation begins, ns since 1970.
BASE_NS = 1_106_963_996_000_000_000
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
KERNEL_OF_COLLECTIVE = {
    "allreduce": "AllReduce_Sum_bf16_RING_LL",
    "_allgather_base": "AllGather_RING_LL",
    "_reduce_scatter_base": "ReduceScatter_Sum_bf16_RING_LL",
}
#: The track of CPU events; those of the GPU are numbers of streams.
CPU = "cpu"
COMPUTE_STREAM = 7
COMMUNICATION_STREAM = 20


@dataclass
class Fleet:
    """The job to simulate, and the fault that it has."""

    seed: int = 1
    tp: int = 2  #: ranks of a tensor parallel group
    pp: int = 1  #: stages of the pipeline
    dp: int = 4  #: ranks of a data parallel group
    steps: int = 4
    node: int = 4  #: ranks of a node
    fault: str = "clean"  #: one of `FAULTS`
    factor: float = 1.3  #: how many times as long slow ranks and links take
    seq: str = ""  #: the numbers in `Seq`: `right`, `wrong`, or empty for none
    #: the events that describe collectives: `kernel`, `record` (the CPU operation) or `none`
    args: str = "kernel"
    clocks: bool = True  #: the clocks of nodes differ
    drift: bool = False  #: the clocks of nodes run at different speeds
    rccl: bool = False  #: all communication kernels have the same name
    moe: bool = False  #: there are all-to-alls
    batched: bool = False  #: sends and receives are not described
    #: how long the others wait for a hanging rank; 0 if nothing is recorded
    hang_ms: int = 600
    layers: int = 2
    more: dict[str, Any] = field(default_factory=dict)  #: further options of faults


# The program of a rank.


@dataclass(frozen=True)
class LoadData:
    """Load a batch."""


@dataclass(frozen=True)
class Compute:
    """Run two GEMMs."""

    us: float


@dataclass(frozen=True)
class Collective:
    """Call a collective of the rank's group of some kind."""

    group_kind: str
    name: str
    elements_in: int
    elements_out: int


@dataclass(frozen=True)
class SendReceive:
    """Send from one rank to another; both of them do this operation."""

    source: int
    target: int


@dataclass(frozen=True)
class Synchronize:
    """Wait for the GPU."""


Operation = LoadData | Compute | Collective | SendReceive | Synchronize


class ProcessGroups:
    """The process groups of a fleet: tensor parallel, data parallel, and pipelines."""

    def __init__(self, fleet: Fleet) -> None:
        self.ranks_of_group: dict[str, list[int]] = {}
        self.group_of: dict[tuple[str, int], str] = {}
        self.kind_of_group: dict[str, str] = {}

        def rank_at(d: int, p: int, t: int) -> int:
            return (d * fleet.pp + p) * fleet.tp + t

        for d in range(fleet.dp):
            for p in range(fleet.pp):
                self._add("tp", [rank_at(d, p, t) for t in range(fleet.tp)])
        for p in range(fleet.pp):
            for t in range(fleet.tp):
                self._add("dp", [rank_at(d, p, t) for d in range(fleet.dp)])
        for d in range(fleet.dp):
            for t in range(fleet.tp):
                self._add("pp", [rank_at(d, p, t) for p in range(fleet.pp)])

    def _add(self, kind: str, ranks: list[int]) -> None:
        """Add a group, unless it has a single rank."""
        if len(ranks) < 2:
            return
        name = str(len(self.ranks_of_group) + 1)
        self.ranks_of_group[name] = ranks
        self.kind_of_group[name] = kind
        for rank in ranks:
            self.group_of[kind, rank] = name


@dataclass
class Event:
    """An event of a rank, on the global clock."""

    category: str
    name: str
    track: str | int  #: `CPU`, or a stream
    step: int
    start: int  #: ns
    duration: int  #: ns
    args: dict[str, Any] = field(default_factory=dict)
    call: int = -1  #: the number of the call that the event belongs to; -1 for none


class Launch(NamedTuple):
    """A launched kernel."""

    time: int  #: ns
    correlation: int


class NodeClock(NamedTuple):
    """How far the clock of a node is off the global clock."""

    offset_ns: int
    drift_ppm: float


Verdicts = list[dict[str, Any]]


def verdict(kind: str, **fields: object) -> dict[str, Any]:
    """Return a verdict with all of its fields."""
    names = ("rank", "process_group", "iteration", "cause")
    return {"verdict": kind, **dict.fromkeys(names), **fields}


class Simulation:
    """The simulation of one job."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.random = random.Random(fleet.seed)
        self.rank_count = fleet.tp * fleet.pp * fleet.dp
        self.groups = ProcessGroups(fleet)
        self.events: dict[int, list[Event]] = defaultdict(list)
        self.calls: list[dict[str, Any]] = []
        #: the time until which each rank's CPU and GPU are simulated
        self.cpu_time = [
            1_000_000 + self.random.randrange(200_000) for _ in range(self.rank_count)
        ]
        self.gpu_time = list(self.cpu_time)
        self.last_correlation = [1000] * self.rank_count
        self.sequence_numbers: dict[Any, int] = defaultdict(int)
        self.faulty_rank = self._random_rank()
        #: the slow rank of each step, for the fault `moving`
        self.slow_rank_of_step = [self._random_rank()]
        while len(self.slow_rank_of_step) < fleet.steps:
            rank = self._random_rank()
            if rank != self.slow_rank_of_step[-1]:
                self.slow_rank_of_step.append(rank)
        data_parallel_groups = sorted(
            name for name, kind in self.groups.kind_of_group.items() if kind == "dp"
        )
        self.slow_group = ""
        if data_parallel_groups:
            self.slow_group = self.random.choice(data_parallel_groups)
        self.allowed_verdicts: Verdicts = []
        self.lost_ranks: set[int] = set()

    def _random_rank(self) -> int:
        return self.random.randrange(self.rank_count)

    # The job without the faults of its recording.

    def run(self) -> None:
        """Simulate all steps."""
        for step in range(self.fleet.steps):
            step_start = list(self.cpu_time)
            self._run_step(step)
            for rank in range(self.rank_count):
                annotation = Event(
                    category="user_annotation",
                    name=f"ProfilerStep#{FIRST_STEP + step}",
                    track=CPU,
                    step=step,
                    start=step_start[rank] - 500,
                    duration=self.cpu_time[rank] - step_start[rank] + 400,
                )
                self.events[rank].append(annotation)

    def _run_step(self, step: int) -> None:
        """Run the programs of all ranks; a rank pauses at a call until its other ranks arrive."""
        programs = [self._program(rank) for rank in range(self.rank_count)]
        position = [0] * self.rank_count
        arrived_ranks: dict[tuple[object, ...], dict[int, Operation]] = defaultdict(
            dict
        )
        runnable_ranks = list(range(self.rank_count))
        while runnable_ranks:
            rank = runnable_ranks.pop()
            while position[rank] < len(programs[rank]):
                operation = programs[rank][position[rank]]
                position[rank] += 1
                if not isinstance(operation, Collective | SendReceive):
                    self._run_alone(rank, operation, step)
                    continue
                call: tuple[object, ...]
                if isinstance(operation, SendReceive):
                    group = self.groups.group_of["pp", rank]
                    members = [operation.source, operation.target]
                    call = (group, operation.source, operation.target)
                else:
                    group = self.groups.group_of[operation.group_kind, rank]
                    members = self.groups.ranks_of_group[group]
                    call = (group,)
                arrived_ranks[call][rank] = operation
                if len(arrived_ranks[call]) < len(members):
                    break
                del arrived_ranks[call]
                self._communicate(step, group, members, operation)
                runnable_ranks += [member for member in members if member != rank]
        assert not arrived_ranks

    def _program(self, rank: int) -> list[Operation]:
        """Return the operations of a rank in a step: forward, backward, optimizer."""
        fleet = self.fleet
        stage = rank // fleet.tp % fleet.pp
        is_last_stage = stage == fleet.pp - 1
        previous_rank = rank - fleet.tp
        next_rank = rank + fleet.tp
        micro_batches = 2 if fleet.pp > 1 else 1
        operations: list[Operation] = [LoadData()]
        for _ in range(micro_batches):
            if stage:
                operations.append(SendReceive(previous_rank, rank))
            operations += self._layers(400)
            if not is_last_stage:
                operations.append(SendReceive(rank, next_rank))
        for _ in range(micro_batches):
            if not is_last_stage:
                operations.append(SendReceive(next_rank, rank))
            operations += self._layers(700)
            if stage:
                operations.append(SendReceive(rank, previous_rank))
        if fleet.dp > 1:
            size = 4_194_304
            part = size // fleet.dp
            operations += [
                Collective("dp", "_reduce_scatter_base", size, part),
                Collective("dp", "allreduce", 1024, 1024),
                Compute(150),
                Collective("dp", "_allgather_base", part, size),
            ]
        operations.append(Synchronize())
        return operations

    def _layers(self, us: float) -> list[Operation]:
        """Return the operations of all layers of a stage."""
        operations: list[Operation] = []
        for _ in range(self.fleet.layers):
            operations.append(Compute(us))
            if self.fleet.tp > 1:
                operations.append(Collective("tp", "allreduce", 2_097_152, 2_097_152))
            if self.fleet.moe and self.fleet.dp > 1:
                operations.append(Collective("dp", "all_to_allv", 1_000_000, 1_000_000))
        return operations

    def _run_alone(self, rank: int, operation: Operation, step: int) -> None:
        """Run an operation that needs no other rank."""
        if isinstance(operation, LoadData):
            self._load_data(rank, step)
        elif isinstance(operation, Synchronize):
            self._synchronize(rank, step)
        elif isinstance(operation, Compute):
            self._compute(rank, operation.us, step)

    def _load_data(self, rank: int, step: int) -> None:
        factor = 1.0
        if self.fleet.fault == "slow_loader" and rank == self.faulty_rank:
            factor = self.fleet.more.get("loader", 3.9)
        duration = int(300_000 * self.random.uniform(0.97, 1.03) * factor)
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self._add_cpu_event(rank, "user_annotation", name, duration, step)
        self.cpu_time[rank] += duration + 5000

    def _synchronize(self, rank: int, step: int) -> None:
        end = max(self.gpu_time[rank], self.cpu_time[rank]) + 5000
        event = self._add_cpu_event(
            rank,
            "cuda_runtime",
            "cudaDeviceSynchronize",
            end - self.cpu_time[rank],
            step,
        )
        event.args["correlation"] = self._next_correlation(rank)
        self.cpu_time[rank] = end + 2000

    def _compute(self, rank: int, us: float, step: int) -> None:
        is_slow = (self.fleet.fault == "slow_rank" and rank == self.faulty_rank) or (
            self.fleet.fault == "moving" and rank == self.slow_rank_of_step[step]
        )
        factor = self.fleet.factor if is_slow else 1
        for share in (0.6, 0.4):
            duration = int(
                us * NS_PER_US * share * self.random.uniform(0.99, 1.01) * factor
            )
            launch = self._launch(rank, "aten::mm", {}, step)
            start = max(self.gpu_time[rank], launch.time + 5000)
            kernel = Event(
                category="kernel",
                name=GEMM,
                track=COMPUTE_STREAM,
                step=step,
                start=start,
                duration=duration,
            )
            self._add_kernel(rank, kernel, launch.correlation, {})
            self.gpu_time[rank] = start + duration

    def _next_correlation(self, rank: int) -> int:
        self.last_correlation[rank] += 1
        return self.last_correlation[rank]

    def _add_cpu_event(
        self, rank: int, category: str, name: str, duration: int, step: int
    ) -> Event:
        """Add an event that starts now on the CPU of a rank."""
        event = Event(
            category=category,
            name=name,
            track=CPU,
            step=step,
            start=self.cpu_time[rank],
            duration=duration,
        )
        self.events[rank].append(event)
        return event

    def _launch(
        self, rank: int, operation: str, args: dict[str, Any], step: int, call: int = -1
    ) -> Launch:
        """Add a CPU operation that launches a kernel."""
        correlation = self._next_correlation(rank)
        op = self._add_cpu_event(rank, "cpu_op", operation, 12_000, step)
        op.call = call
        op.args = {"External id": correlation, **args}
        runtime_call = self._add_cpu_event(
            rank, "cuda_runtime", "cudaLaunchKernel", 4000, step
        )
        runtime_call.start += 2000
        runtime_call.call = call
        runtime_call.args = {"External id": correlation, "correlation": correlation}
        self.cpu_time[rank] += 15_000
        return Launch(self.cpu_time[rank] - 13_000, correlation)

    def _add_kernel(
        self, rank: int, kernel: Event, correlation: int, args: dict[str, Any]
    ) -> None:
        kernel.args = {
            "External id": correlation,
            "device": rank % self.fleet.node,
            "stream": kernel.track,
            "correlation": correlation,
            **args,
        }
        self.events[rank].append(kernel)

    # Calls of several ranks.

    def _communicate(
        self,
        step: int,
        group: str,
        members: list[int],
        operation: Collective | SendReceive,
    ) -> None:
        """Simulate a call that all of its members have reached."""
        number = len(self.calls)
        sizes = self._sizes(members, operation)
        size_in_bytes = 2 * max(max(sizes_of_rank) for sizes_of_rank in sizes.values())
        nodes = {rank // self.fleet.node for rank in members}
        transfer = self._transfer_ns(group, size_in_bytes, node_count=len(nodes))
        is_pair = isinstance(operation, SendReceive)
        starts = {}
        correlations = {}
        args_of_kernel: dict[int, dict[str, Any]] = {}
        for rank in members:
            args = self._args(rank, group, members, operation, sizes[rank])
            is_described = not (self.fleet.batched and is_pair)
            describes_op = is_described and self.fleet.args != "none"
            describes_kernel = is_described and self.fleet.args == "kernel"
            launch = self._launch(
                rank, "record_param_comms", args if describes_op else {}, step, number
            )
            starts[rank] = max(self.gpu_time[rank], launch.time + 5000)
            correlations[rank] = launch.correlation
            args_of_kernel[rank] = args if describes_kernel else {}
        end = max(starts.values()) + transfer
        durations = {}
        for rank in members:
            durations[rank] = end + self.random.randrange(300) - starts[rank]
            self.gpu_time[rank] = end + 300
            kernel = Event(
                category="kernel",
                name=self._kernel_name(operation),
                track=COMMUNICATION_STREAM,
                step=step,
                start=starts[rank],
                duration=durations[rank],
                call=number,
            )
            self._add_kernel(rank, kernel, correlations[rank], args_of_kernel[rank])
        call = {
            "process_group": group,
            "collective": "send/recv",
            "dtype": "BFloat16",
            "group_size": len(members),
            "bytes": size_in_bytes,
            "sizes": sizes,
            "state": "complete",
            "span": "node" if len(nodes) == 1 else "across",
            "iteration": step,
            "ranks": {
                rank: {"start_ns": starts[rank], "dur_ns": durations[rank]}
                for rank in members
            },
        }
        if isinstance(operation, SendReceive):
            call["src"] = operation.source
            call["dst"] = operation.target
        else:
            call["collective"] = operation.name
        self.calls.append(call)

    def _sizes(
        self, members: list[int], operation: Collective | SendReceive
    ) -> dict[int, tuple[int, int]]:
        """Return the input and output elements of each rank in a call."""
        if isinstance(operation, SendReceive):
            return dict.fromkeys(members, (1_048_576, 1_048_576))
        if operation.name != "all_to_allv":
            elements = (operation.elements_in, operation.elements_out)
            return dict.fromkeys(members, elements)
        sizes = {}
        for rank in members:
            elements_in = self.random.randrange(500_000, 1_000_000)
            elements_out = self.random.randrange(500_000, 1_000_000)
            sizes[rank] = (elements_in, elements_out)
        return sizes

    def _transfer_ns(self, group: str, size_in_bytes: int, *, node_count: int) -> int:
        """Return how long a call takes after the last rank has entered it."""
        gb_per_s = 100.0 if node_count == 1 else 45.0
        is_slow = self.fleet.fault == "slow_link" and group == self.slow_group
        factor = self.fleet.factor if is_slow else 1
        return int(
            (12_000 + size_in_bytes / gb_per_s)
            * self.random.uniform(0.98, 1.02)
            * factor
        )

    def _args(
        self,
        rank: int,
        group: str,
        members: list[int],
        operation: Collective | SendReceive,
        sizes: tuple[int, int],
    ) -> dict[str, Any]:
        """Return the arguments that the profiler records of a call."""
        is_pair = isinstance(operation, SendReceive)
        if isinstance(operation, Collective):
            name = operation.name
        else:
            name = "send" if rank == operation.source else "recv"
        ranks = self.groups.ranks_of_group[group]
        args = {
            "Collective name": name,
            "In msg nelems": sizes[0],
            "Out msg nelems": sizes[1],
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "Process Group Name": group,
            "Process Group Description": f"mesh_{self.groups.kind_of_group[group]}",
            "Process Group Ranks": str(ranks),
        }
        if name == "send":
            args["Dst Rank"] = members[1]
        elif name == "recv":
            args["Src Rank"] = members[0]
        if self.fleet.seq == "right":
            counter = (rank, group, tuple(members) if is_pair else ())
            self.sequence_numbers[counter] += 1
            args["Seq"] = self.sequence_numbers[counter]
        elif self.fleet.seq == "wrong":
            self.sequence_numbers[rank] += 2
            args["Seq"] = self.sequence_numbers[rank]
        return args

    def _kernel_name(self, operation: Collective | SendReceive) -> str:
        function = "SendRecv"
        if isinstance(operation, Collective):
            function = KERNEL_OF_COLLECTIVE.get(operation.name, "SendRecv")
        if self.fleet.rccl:
            function = "Generic_1"
        return f"ncclDevKernel_{function}(ncclDevKernelArgsStorage<4096ul>)"

    # Faults.

    def apply_fault(self) -> Verdicts:
        """Apply the fault to the recording; return the verdicts that must be found.

        Verdicts that may be found in addition are put into `allowed_verdicts`.
        """
        rank = self.faulty_rank
        functions: dict[str, Callable[[], Verdicts]] = {
            "slow_rank": lambda: [verdict("slow_rank", rank=rank, cause="computation")],
            "slow_loader": lambda: [
                verdict("slow_rank", rank=rank, cause="data_loader")
            ],
            "slow_link": lambda: [
                verdict(
                    "slow_link", process_group=self.slow_group, cause="slow_transfer"
                )
            ],
            "moving": self._moving_verdicts,
            "lost_rank": self._lose_rank,
            "late_start": self._start_late,
            "lost_call": self._lose_call,
            "lost_equal": self._lose_call,
            "mismatch": self._change_sizes,
            "hang": self._hang,
        }
        if self.fleet.fault not in functions:
            return []
        return functions[self.fleet.fault]()

    def _moving_verdicts(self) -> Verdicts:
        """Return the verdicts on the slow rank of each step; it may also show a step later."""

        def straggler(slow_step: int, step: int) -> dict[str, Any]:
            return verdict(
                "moving_straggler",
                rank=self.slow_rank_of_step[slow_step],
                iteration=str(FIRST_STEP + step),
                cause="computation",
            )

        steps = range(self.fleet.steps)
        for step in steps:
            self.allowed_verdicts.append(straggler(step, step))
            self.allowed_verdicts.append(straggler(step, step + 1))
        return [straggler(step, step) for step in steps[1:]]

    def _lose_rank(self) -> Verdicts:
        """Lose the trace of a rank."""
        self.lost_ranks.add(self.faulty_rank)
        self._drop_calls(lambda _number, rank: rank == self.faulty_rank)
        return [verdict("missing_rank", rank=self.faulty_rank)]

    def _start_late(self) -> Verdicts:
        """Let the recording of a rank begin in a later step."""
        rank = self.faulty_rank
        first_step = self.random.randrange(1, self.fleet.steps - 1)

        def is_before_recording(number: int, rank_of_call: int) -> bool:
            is_early = self.calls[number]["iteration"] < first_step
            return rank_of_call == rank and is_early

        self._drop_calls(is_before_recording)
        self.events[rank] = [
            event for event in self.events[rank] if event.step >= first_step
        ]
        iteration = str(FIRST_STEP + first_step)
        return [verdict("late_start", rank=rank, iteration=iteration)]

    def _lose_call(self) -> Verdicts:
        """Lose the kernel of one rank in one call."""
        number = self._choose_call()
        self._drop_calls(
            lambda dropped, rank: dropped == number and rank == self.faulty_rank
        )
        return [verdict("lost_call", **self._location_of_fault(number))]

    def _change_sizes(self) -> Verdicts:
        """Halve the sizes of one rank in one call."""
        number = self._choose_call()
        for event in self.events[self.faulty_rank]:
            if event.call == number and "In msg nelems" in event.args:
                event.args["In msg nelems"] //= 2
                event.args["Out msg nelems"] //= 2
        self.calls[number]["state"] = "mismatch"
        return [verdict("mismatch", **self._location_of_fault(number))]

    def _choose_call(self) -> int:
        """Choose a call and one of its ranks for the fault; return the number of the call."""
        collectives_of_fault = {
            "lost_equal": ("allreduce",),
            "mismatch": ("allreduce", "_allgather_base"),
            "lost_call": ("allreduce", "_reduce_scatter_base", "send/recv"),
        }
        collectives = collectives_of_fault[self.fleet.fault]
        middle_steps = range(1, self.fleet.steps - 1)
        numbers = [
            number
            for number, call in enumerate(self.calls)
            if call["iteration"] in middle_steps
            and call["collective"] in collectives
            and call["bytes"] > 4096
        ]
        if not numbers:
            numbers = [
                number
                for number, call in enumerate(self.calls)
                if call["iteration"] == 1
                and call["collective"] == "_reduce_scatter_base"
            ]
        number = self.random.choice(numbers)
        self.faulty_rank = self.random.choice(sorted(self.calls[number]["ranks"]))
        return number

    def _location_of_fault(self, number: int) -> dict[str, Any]:
        call = self.calls[number]
        return {
            "rank": self.faulty_rank,
            "process_group": call["process_group"],
            "iteration": str(FIRST_STEP + call["iteration"]),
        }

    def _hang(self) -> Verdicts:
        """Let a rank never enter the last call of its data parallel group."""
        group = self.groups.group_of["dp", self.faulty_rank]
        number = max(
            number
            for number, call in enumerate(self.calls)
            if call["process_group"] == group
        )
        call = self.calls[number]
        members = list(call["ranks"])
        is_recorded = self.fleet.hang_ms > 0
        for rank in members:
            for event in list(self.events[rank]):
                if event.call != number:
                    continue
                is_kernel = event.category == "kernel"
                if rank == self.faulty_rank or (is_kernel and not is_recorded):
                    self.events[rank].remove(event)
                elif is_kernel:
                    jitter = self.random.randrange(300)
                    event.duration = self.fleet.hang_ms * NS_PER_MS + jitter
                    call["ranks"][rank]["dur_ns"] = event.duration
        if is_recorded:
            del call["ranks"][self.faulty_rank]
        else:
            call["ranks"] = {}
        call["state"] = "hang"
        return [verdict("hang", **self._location_of_fault(number))]

    def _drop_calls(self, is_dropped: Callable[[int, int], bool]) -> None:
        """Drop the events of calls from the traces of ranks.

        Args:
            is_dropped: tells for the number of a call and a rank whether the events are dropped.
        """
        for number, call in enumerate(self.calls):
            dropped_ranks = [rank for rank in call["ranks"] if is_dropped(number, rank)]
            for rank in dropped_ranks:
                del call["ranks"][rank]
                del call["sizes"][rank]
                largest_sizes = [max(sizes) for sizes in call["sizes"].values()]
                call["bytes"] = 2 * max(largest_sizes, default=0)
                self.events[rank] = [
                    event for event in self.events[rank] if event.call != number
                ]
            if dropped_ranks:
                call["state"] = "incomplete"

    # Files.

    def write(self, folder: Path) -> None:
        """Run the simulation; write the traces and `truth.json`."""
        self.run()
        required_verdicts = self.apply_fault()
        node_clocks = self._node_clocks()
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.rank_count):
            if rank in self.lost_ranks:
                continue
            document = self._document(rank, node_clocks[rank // self.fleet.node])
            # Times are written as numbers with three decimals, which no float can hold.
            text = json.dumps(document).replace('"@', "").replace('@"', "")
            content = gzip.compress(text.encode(), 1, mtime=0)
            (folder / f"rank{rank}.json.gz").write_bytes(content)
        truth = self._truth(required_verdicts, node_clocks)
        (folder / "truth.json").write_text(json.dumps(truth))

    def _node_clocks(self) -> list[NodeClock]:
        """Return the clock of each node; that of the first node is the global clock."""
        clocks = []
        for node in range(self.rank_count // self.fleet.node + 1):
            offset_ns = 0
            drift_ppm = 0.0
            if self.fleet.clocks and node:
                offset_ns = self.random.randrange(-5_000_000, 5_000_000)
            if self.fleet.drift and node:
                drift_ppm = self.random.uniform(-20, 20)
            clocks.append(NodeClock(offset_ns, drift_ppm))
        return clocks

    def _document(self, rank: int, clock: NodeClock) -> dict[str, Any]:
        """Return the trace of a rank as PyTorch's profiler writes it."""
        default_group = {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "ranks": list(range(self.rank_count)),
        }
        groups = [default_group]
        for name, ranks in self.groups.ranks_of_group.items():
            if rank in ranks:
                kind = self.groups.kind_of_group[name]
                groups.append({"pg_name": name, "pg_desc": kind, "ranks": ranks})
        return {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": self.rank_count,
                "pg_config": groups,
            },
            "traceEvents": [
                self._trace_event(rank, event, clock) for event in self.events[rank]
            ],
        }

    def _trace_event(self, rank: int, event: Event, clock: NodeClock) -> dict[str, Any]:
        drift_ns = int(event.start * clock.drift_ppm / 1e6)
        ns = BASE_NS + event.start + clock.offset_ns + drift_ns
        is_cpu_event = event.track == CPU
        process = 4000 + rank if is_cpu_event else rank % self.fleet.node
        return {
            "ph": "X",
            "cat": event.category,
            "name": event.name,
            "pid": process,
            "tid": process if is_cpu_event else event.track,
            "ts": f"@{ns // NS_PER_US}.{ns % NS_PER_US:03d}@",
            "dur": event.duration / NS_PER_US,
            "args": event.args,
        }

    def _truth(
        self, required_verdicts: Verdicts, node_clocks: list[NodeClock]
    ) -> dict[str, Any]:
        """Return the content of `truth.json`."""
        for call in self.calls:
            _add_figures(call)
        clocks = {}
        for rank in range(self.rank_count):
            clock = node_clocks[rank // self.fleet.node]
            clocks[str(rank)] = {
                "offset_ns": clock.offset_ns,
                "drift_ppm": clock.drift_ppm,
            }
        return {
            "fault": self._fault_for_oracle(),
            "schema": self._schema_for_oracle(),
            "ranks_of_job": self.rank_count,
            "iterations": self.fleet.steps,
            "options": {"batched_p2p": self.fleet.batched},
            "groups": {
                name: {"ranks": ranks}
                for name, ranks in self.groups.ranks_of_group.items()
            },
            "calls": self.calls,
            "clocks": clocks,
            "verdicts": {
                "required": required_verdicts,
                "allowed": self.allowed_verdicts,
            },
        }

    def _fault_for_oracle(self) -> str:
        """Return the name of the fault in `fleet_oracle.py`."""
        if self.fleet.args == "none":
            return "no_args"
        if self.fleet.batched:
            return "coalesced?"
        return self.fleet.fault

    def _schema_for_oracle(self) -> str:
        """Return the version of PyTorch that `fleet_oracle.py` takes the traces for."""
        if self.fleet.seq == "wrong":
            return "nccl2"
        is_clean = self.fleet.fault == "clean" and not self.fleet.batched
        if self.fleet.seq == "right" and is_clean:
            return "2.12"
        return "x"


def _add_figures(call: dict[str, Any]) -> None:
    """Add the true transfer time, waits and bandwidths of a call."""
    duration_of_rank = {
        rank: kernel["dur_ns"] for rank, kernel in call["ranks"].items()
    }
    transfer_ns = min(duration_of_rank.values(), default=0) or None
    call["in_sync_ns"] = transfer_ns
    call["waits_ns"] = {
        rank: duration - (transfer_ns or 0)
        for rank, duration in duration_of_rank.items()
    }
    algorithm_bandwidth = None
    bus_bandwidth = None
    if transfer_ns:
        algorithm_bandwidth = call["bytes"] / transfer_ns
        factor = _bus_factor(call["collective"], call["group_size"])
        bus_bandwidth = algorithm_bandwidth and algorithm_bandwidth * factor
    call["algorithm_bandwidth_gb_s"] = algorithm_bandwidth
    call["bus_bandwidth_gb_s"] = bus_bandwidth


def _bus_factor(collective: str, rank_count: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests define it."""
    if collective == "send/recv":
        return 1.0
    if collective == "allreduce":
        return 2 * (rank_count - 1) / rank_count
    return (rank_count - 1) / rank_count


FAULTS = (
    "clean",
    "slow_rank",
    "slow_loader",
    "slow_link",
    "moving",
    "lost_rank",
    "lost_call",
    "lost_equal",
    "mismatch",
    "hang",
    "late_start",
)


def any_fleet(seed: int, fault: str | None = None) -> Fleet:
    """Return a fleet of a random shape, in which the fault can be found."""
    rng = random.Random(seed)
    while True:
        tp = rng.choice((1, 2, 4))
        pp = rng.choice((1, 2, 4))
        dp = rng.choice((2, 4, 8))
        chosen_fault = fault or rng.choice(FAULTS)
        has_usual_size = 8 <= tp * pp * dp <= 32
        # A slow link needs other links to compare it with; a slow rank needs other ranks.
        has_other_links = chosen_fault != "slow_link" or tp * pp >= 2
        is_slow_rank = chosen_fault in ("slow_rank", "slow_loader", "moving")
        has_other_ranks = not is_slow_rank or dp * tp >= 3
        if has_usual_size and has_other_links and has_other_ranks:
            break
    factors = (3.0, 4.0, 6.0) if chosen_fault == "slow_link" else (1.15, 1.3, 2.0)
    factor = rng.choice(factors)
    args = rng.choice(("kernel", "kernel", "record"))
    if chosen_fault == "clean" and rng.random() < 0.3:
        args = "none"
    return Fleet(
        seed=seed,
        tp=tp,
        pp=pp,
        dp=dp,
        node=rng.choice((2, 4, 8)),
        fault=chosen_fault,
        factor=factor,
        seq=rng.choice(("", "right", "wrong")),
        args=args,
        clocks=rng.random() < 0.7,
        drift=rng.random() < 0.4,
        rccl=rng.random() < 0.3,
        moe=rng.random() < 0.3,
        batched=pp > 1 and rng.random() < 0.2,
        hang_ms=rng.choice((0, 600)),
    )


def main(folder: Path, seeds: str) -> None:
    """Write fleets with the seeds of a range such as `3-20`."""
    first, _, last = seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        fleet = any_fleet(seed, FAULTS[seed % len(FAULTS)])
        print(seed, fleet)  # noqa: T201
        Simulation(fleet).write(folder / f"{seed:03}-{fleet.fault}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
