"""Simulated pipeline-parallel jobs: the traces of their ranks, and the true time of each kind.

Each rank runs a program of computations and exchanges. A transfer begins when both of its ranks
have posted it, and lasts as long as its link takes; the kernels of an exchange run from their post
to the end of its last transfer, as those of NCCL do.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FIRST_ITERATION = 3
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
)
_BASE_NS = 1_106_963_996_000_000_000
_KERNELS_OF_A_COMPUTATION = 3
_LAUNCH_LEAD_NS = 200_000
_LAUNCH_NS = 4_000
_ITERATION_GAP_NS = 900_000


@dataclass(frozen=True, kw_only=True)
class PipelineJob:
    """What to simulate."""

    stages: int = 4
    micro_batches: int = 8
    iterations: int = 2
    schedule: str = "1f1b"  #: or `gpipe`, `interleaved`, `zero_bubble`
    chunks: int = 2  #: of a stage, in an interleaved schedule
    forward_us: float = 1000.0
    backward_us: float = 2000.0
    transfer_us: float = 60.0
    #: stage → how many times as long as usual it computes
    stage_factors: Mapping[int, float] = field(default_factory=dict)
    #: pair of stages → how many times as long as usual transfers between them take
    link_factors: Mapping[frozenset[int], float] = field(default_factory=dict)
    tensor_parallel: int = 1
    data_parallel: int = 1
    #: sends that run beside the computation, or the batched exchanges of Megatron-LM
    is_batched: bool = False
    noise: float = 0.005
    seed: int = 1
    peers: str = "global"  #: or `relative`, `annotation`, `none`
    #: or `pair`, a process group for each two neighbors; or `none`, not recorded
    groups: str = "pipeline"
    #: or `record`; `before` (recorded before a bare batch); `none` (batches tell nothing);
    #: `absent` (no exchange tells anything)
    labels: str = "kernel"
    clock_offset_us: float = 0.0  #: how far the clocks of neighboring stages are apart
    optimizer_us: float = 0.0
    has_iterations: bool = True

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.stages * self.tensor_parallel * self.data_parallel


class Compute(NamedTuple):
    """A computation of a stage."""

    kind: str  #: `F`, `B` or `W`
    duration: int  #: ns


class Part(NamedTuple):
    """One transfer of an exchange."""

    is_send: bool
    peer: int  #: a stage
    tag: tuple[Any, ...]  #: the same on both sides


class Exchange(NamedTuple):
    """Transfers in one kernel."""

    parts: tuple[Part, ...]
    is_blocking: bool


class Work(NamedTuple):
    """A micro-batch of a chunk in one direction."""

    kind: str
    micro_batch: int
    chunk: int


class Span(NamedTuple):
    """A kernel."""

    start: int  #: ns
    end: int
    exchange: Exchange | None  #: None for a computation


@dataclass
class StageTruth:
    """Where the time of a stage went in an iteration, ns."""

    computation: int = 0
    transfer: int = 0
    wait_previous: int = 0
    wait_next: int = 0
    warmup: int = 0
    drain: int = 0
    window: int = 0

    @property
    def bubble(self) -> int:
        """The time in which the stage waits for the schedule."""
        return self.wait_previous + self.wait_next + self.warmup + self.drain


def work_of_stage(job: PipelineJob, stage: int) -> list[Work]:
    """Return the order in which a stage does its work."""
    count = job.micro_batches
    if job.schedule == "interleaved":
        return _interleaved_work(job, stage)
    if job.schedule == "gpipe":
        forward = [Work("F", number, 0) for number in range(count)]
        return forward + [Work("B", number, 0) for number in range(count)]
    warmup = min(job.stages - stage - 1, count)
    order = [Work("F", number, 0) for number in range(warmup)]
    for number in range(count):
        if number + warmup < count:
            order.append(Work("F", number + warmup, 0))
        order.append(Work("B", number, 0))
        if job.schedule == "zero_bubble" and number >= stage:
            order.append(Work("W", number - stage, 0))
    if job.schedule == "zero_bubble":
        first_left = max(count - stage, 0)
        order += [Work("W", number, 0) for number in range(first_left, count)]
    return order


def _interleaved_work(job: PipelineJob, stage: int) -> list[Work]:
    """Return the order of Megatron-LM's interleaved schedule."""
    stages = job.stages
    chunks = job.chunks
    total = job.micro_batches * chunks
    group = stages * chunks

    def work(step: int, kind: str) -> Work:
        place = step % group
        chunk = place // stages
        if kind == "B":
            chunk = chunks - 1 - chunk
        return Work(kind, step // group * stages + place % stages, chunk)

    warmup = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [work(step, "F") for step in range(warmup)]
    for step in range(total):
        if step + warmup < total:
            order.append(work(step + warmup, "F"))
        order.append(work(step, "B"))
    return order


class Simulation:
    """The replicas of a pipeline, each on its own."""

    def __init__(self, job: PipelineJob) -> None:
        self.job = job
        self.random = random.Random(job.seed)
        self.spans: dict[tuple[int, int, int], list[Span]] = {}
        self.truth: dict[tuple[int, int, int], StageTruth] = {}
        self.windows: dict[int, tuple[int, int]] = {}
        replicas = job.tensor_parallel * job.data_parallel
        start = 1_000_000
        for iteration in range(job.iterations):
            ends = [self._run(iteration, replica, start) for replica in range(replicas)]
            end = max(ends) + round(job.optimizer_us * 1000)
            self.windows[iteration] = (start, end)
            start = end + _ITERATION_GAP_NS

    # The programs of the stages.

    def _duration(self, kind: str, stage: int) -> int:
        job = self.job
        microseconds = job.forward_us if kind == "F" else job.backward_us
        if job.schedule == "zero_bubble" and kind != "F":
            microseconds /= 2
        if job.schedule == "interleaved":
            microseconds /= job.chunks
        factor = job.stage_factors.get(stage, 1.0)
        factor *= self.random.uniform(1 - job.noise, 1 + job.noise)
        return round(microseconds * factor * 1000)

    def _chunk_count(self) -> int:
        return self.job.chunks if self.job.schedule == "interleaved" else 1

    def _incoming(self, stage: int, work: Work) -> Part | None:
        """What a stage receives before it does some work."""
        stages = self.job.stages
        place = work.chunk * stages + stage
        last = stages * self._chunk_count() - 1
        if work.kind == "F" and place > 0:
            return Part(False, (place - 1) % stages, ("F", work.micro_batch, place - 1))
        if work.kind == "B" and place < last:
            return Part(False, (place + 1) % stages, ("B", work.micro_batch, place + 1))
        return None

    def _outgoing(self, stage: int, work: Work) -> Part | None:
        """What a stage sends after it has done some work."""
        stages = self.job.stages
        place = work.chunk * stages + stage
        last = stages * self._chunk_count() - 1
        if work.kind == "F" and place < last:
            return Part(True, (place + 1) % stages, ("F", work.micro_batch, place))
        if work.kind == "B" and place > 0:
            return Part(True, (place - 1) % stages, ("B", work.micro_batch, place))
        return None

    def _program(self, stage: int) -> list[Compute | Exchange]:
        order = work_of_stage(self.job, stage)
        if self.job.is_batched:
            return self._batched_program(stage, order)
        program: list[Compute | Exchange] = []
        for work in order:
            incoming = self._incoming(stage, work)
            if incoming is not None:
                program.append(Exchange((incoming,), is_blocking=True))
            program.append(Compute(work.kind, self._duration(work.kind, stage)))
            outgoing = self._outgoing(stage, work)
            if outgoing is not None:
                program.append(Exchange((outgoing,), is_blocking=False))
        return program

    def _batched_program(
        self, stage: int, order: Sequence[Work]
    ) -> list[Compute | Exchange]:
        """Return a program that sends and receives with one neighbor in one kernel."""
        if self.job.schedule == "interleaved":
            return self._interleaved_batches(stage, order)
        program: list[Compute | Exchange] = []
        pending: Part | None = None
        for work in order:
            incoming = self._incoming(stage, work)
            is_one_batch = (
                pending is not None
                and incoming is not None
                and pending.peer == incoming.peer
                and pending.tag[0] != incoming.tag[0]
            )
            if is_one_batch and pending is not None and incoming is not None:
                program.append(Exchange((pending, incoming), is_blocking=True))
            else:
                parts = [part for part in (pending, incoming) if part is not None]
                program += [Exchange((part,), is_blocking=True) for part in parts]
            program.append(Compute(work.kind, self._duration(work.kind, stage)))
            pending = self._outgoing(stage, work)
        if pending is not None:
            program.append(Exchange((pending,), is_blocking=True))
        return program

    def _interleaved_batches(
        self, stage: int, order: Sequence[Work]
    ) -> list[Compute | Exchange]:
        """Return Megatron-LM's program: one kernel exchanges with both neighbors.

        In the warm-up it comes after each forward pass, then after each pair of a forward and a
        backward pass, and at the end after each backward pass.
        """
        forward = [work for work in order if work.kind == "F"]
        warmup = [work.kind for work in order].index("B") - 1
        steps: list[Sequence[Work]] = [[work] for work in order[:warmup]]
        pairs = 2 * (len(forward) - warmup)
        starts = range(warmup, warmup + pairs, 2)
        steps += [order[start : start + 2] for start in starts]
        steps += [[work] for work in order[warmup + pairs :]]
        program = self._batch([self._incoming(stage, order[0])])
        for step, following in zip(steps, [*steps[1:], []], strict=True):
            program += [
                Compute(work.kind, self._duration(work.kind, stage)) for work in step
            ]
            parts = [self._outgoing(stage, work) for work in step]
            parts += [self._incoming(stage, work) for work in following]
            program += self._batch(parts)
        return program

    def _batch(self, parts: Sequence[Part | None]) -> list[Compute | Exchange]:
        """Return the kernel that does some transfers; nothing for none."""
        transfers = tuple(part for part in parts if part is not None)
        return [Exchange(transfers, is_blocking=True)] if transfers else []

    # The run.

    def _transfer_ns(self, stage: int, peer: int) -> int:
        factor = self.job.link_factors.get(frozenset((stage, peer)), 1.0)
        return round(self.job.transfer_us * 1000 * factor)

    def _run(self, iteration: int, replica: int, start: int) -> int:
        """Run an iteration of a replica; return when it ends."""
        stages = range(self.job.stages)
        programs = [self._program(stage) for stage in stages]
        replica_run = _ReplicaRun(programs, start, self._transfer_ns)
        replica_run.finish()
        posts = replica_run.posts
        ends = replica_run.ends
        window_end = max(run.last_end for run in replica_run.stages)
        for stage, run in enumerate(replica_run.stages):
            key = (iteration, replica, stage)
            self.spans[key] = run.all_spans(posts, ends)
            self.truth[key] = self._account(stage, run, posts, ends, start, window_end)
        return window_end

    def _account(
        self,
        stage: int,
        run: _StageRun,
        posts: Mapping[tuple[bool, tuple[Any, ...]], int],
        ends: Mapping[tuple[Any, ...], int],
        start: int,
        window_end: int,
    ) -> StageTruth:
        truth = StageTruth(window=window_end - start)
        last_compute = max(span.end for span in run.spans if span.exchange is None)
        has_received = stage == 0
        for span in run.spans:
            if span.exchange is None:
                truth.computation += span.end - span.start
                continue
            if not span.exchange.is_blocking:
                continue
            part = max(span.exchange.parts, key=lambda part: ends[part.tag])
            other = posts[not part.is_send, part.tag]
            wait = max(other - span.start, 0)
            truth.transfer += span.end - span.start - wait
            if span.start >= last_compute:
                truth.drain += wait
            elif not has_received:
                truth.warmup += wait
                has_received = True
            elif part.tag[0] == ("B" if part.is_send else "F"):
                truth.wait_previous += wait
            else:
                truth.wait_next += wait
        truth.drain += window_end - run.last_end
        return truth

    # The files.

    def rank_of(self, replica: int, stage: int) -> int:
        """Return the rank of a stage of a replica, as Megatron-LM counts."""
        job = self.job
        data_index = replica // job.tensor_parallel
        tensor_index = replica % job.tensor_parallel
        block = stage * job.data_parallel + data_index
        return block * job.tensor_parallel + tensor_index

    def write(self, folder: Path) -> None:
        """Write `rankN.json.gz` of all ranks."""
        folder.mkdir(parents=True, exist_ok=True)
        for replica in range(self.job.tensor_parallel * self.job.data_parallel):
            for stage in range(self.job.stages):
                document = _RankDocument(self, replica, stage).document()
                text = json.dumps(document).replace('"@', "").replace('@"', "")
                rank = self.rank_of(replica, stage)
                content = gzip.compress(text.encode(), 1, mtime=0)
                (folder / f"rank{rank}.json.gz").write_bytes(content)

    def averages(self) -> dict[tuple[int, int], dict[str, float]]:
        """Return the true ms of each stage and iteration, its replicas averaged."""
        rows: dict[tuple[int, int], list[StageTruth]] = defaultdict(list)
        for (iteration, _, stage), truth in self.truth.items():
            rows[stage, iteration + FIRST_ITERATION].append(truth)
        return {key: _mean(truths) for key, truths in rows.items()}


def _mean(truths: Sequence[StageTruth]) -> dict[str, float]:
    names = ["computation", "transfer", "wait_previous", "wait_next"]
    names += ["warmup", "drain", "bubble", "window"]
    means = {}
    for name in names:
        total = sum(getattr(truth, name) for truth in truths)
        means[name] = total / len(truths) / 1e6
    return means


class _ReplicaRun:
    """An iteration of a replica under way."""

    def __init__(
        self,
        programs: Sequence[Sequence[Compute | Exchange]],
        start: int,
        transfer_ns: Callable[[int, int], int],
    ) -> None:
        self.programs = programs
        self.stages = [_StageRun(start) for _ in programs]
        #: (it is a send, tag) → when that side was posted
        self.posts: dict[tuple[bool, tuple[Any, ...]], int] = {}
        self.ends: dict[tuple[Any, ...], int] = {}
        self._tags_of_link: dict[tuple[int, int], list[tuple[Any, ...]]]
        self._tags_of_link = defaultdict(list)
        self._transfer_ns = transfer_ns

    def finish(self) -> None:
        """Run all stages to their ends."""
        stages = range(len(self.programs))
        has_changed = True
        while has_changed:
            changes = [self._advance(stage) for stage in stages]
            has_changed = any(changes)
        for source, target in list(self._tags_of_link):
            self._resolve(source, target)
        for stage in stages:
            assert self.stages[stage].next == len(self.programs[stage])

    def _advance(self, stage: int) -> bool:
        """Run a stage until it has to wait; tell whether anything happened."""
        run = self.stages[stage]
        program = self.programs[stage]
        has_changed = False
        while run.next < len(program):
            step = program[run.next]
            if isinstance(step, Compute):
                run.compute(step)
            else:
                has_changed |= self._post(stage, step)
                if step.is_blocking and not self._is_over(stage, step):
                    return has_changed
                run.pass_exchange(step, self.posts, self.ends)
            has_changed = True
        return has_changed

    def _post(self, stage: int, exchange: Exchange) -> bool:
        """Post an exchange, unless that was done before; tell whether it was posted now."""
        run = self.stages[stage]
        if run.has_posted:
            return False
        for part in exchange.parts:
            self.posts[part.is_send, part.tag] = run.now
            if part.is_send:
                self._tags_of_link[stage, part.peer].append(part.tag)
        run.has_posted = True
        return True

    def _is_over(self, stage: int, exchange: Exchange) -> bool:
        """Tell whether all transfers of an exchange have an end."""
        for part in exchange.parts:
            if part.is_send:
                self._resolve(stage, part.peer)
            else:
                self._resolve(part.peer, stage)
        return all(part.tag in self.ends for part in exchange.parts)

    def _resolve(self, source: int, target: int) -> None:
        """Set the ends of the transfers of a link, each after the one before it."""
        free = 0
        for tag in self._tags_of_link[source, target]:
            if tag not in self.ends:
                if (False, tag) not in self.posts:
                    return
                self.posts[True, tag] = max(self.posts[True, tag], free)
                begin = max(self.posts[True, tag], self.posts[False, tag])
                self.ends[tag] = begin + self._transfer_ns(source, target)
            free = self.ends[tag]


class _StageRun:
    """How far a stage has come."""

    def __init__(self, start: int) -> None:
        self.now = start
        self.next = 0
        self.has_posted = False
        self.spans: list[Span] = []
        self._sends: list[Exchange] = []

    @property
    def last_end(self) -> int:
        """When its last computation or blocking exchange ended."""
        return max(span.end for span in self.spans)

    def compute(self, step: Compute) -> None:
        """Do a computation."""
        self.spans.append(Span(self.now, self.now + step.duration, None))
        self.now += step.duration
        self.next += 1

    def pass_exchange(
        self,
        step: Exchange,
        posts: Mapping[tuple[bool, tuple[Any, ...]], int],
        ends: Mapping[tuple[Any, ...], int],
    ) -> None:
        """Go on after an exchange, at its end if it blocks."""
        if step.is_blocking:
            end = max(ends[part.tag] for part in step.parts)
            start = max(
                [self.now]
                + [posts[True, part.tag] for part in step.parts if part.is_send]
            )
            self.spans.append(Span(min(start, self.now), end, step))
            self.now = end
        else:
            self._sends.append(step)
        self.has_posted = False
        self.next += 1

    def all_spans(
        self,
        posts: Mapping[tuple[bool, tuple[Any, ...]], int],
        ends: Mapping[tuple[Any, ...], int],
    ) -> list[Span]:
        """Return its kernels, in the order of start."""
        sends = []
        for exchange in self._sends:
            tag = exchange.parts[0].tag
            sends.append(Span(posts[True, tag], ends[tag], exchange))
        return sorted([*self.spans, *sends], key=lambda span: span[:2])


class _RankDocument:
    """The trace of one rank."""

    def __init__(self, simulation: Simulation, replica: int, stage: int) -> None:
        self.simulation = simulation
        self.job = simulation.job
        self.replica = replica
        self.stage = stage
        self.rank = simulation.rank_of(replica, stage)
        self.correlation = 100 * self.rank
        self.events: list[dict[str, Any]] = []
        self.host_time = 0
        self.groups: dict[str, list[int]] = {"0": list(range(self.job.ranks))}
        self.counts: dict[str, int] = defaultdict(int)

    def document(self) -> dict[str, Any]:
        """Return the trace."""
        for iteration in range(self.job.iterations):
            self._write_iteration(iteration)
        config = [
            {"pg_name": name, "pg_desc": self._description(name), "ranks": ranks}
            for name, ranks in self.groups.items()
        ]
        return {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.job.ranks,
                "pg_config": config,
            },
            "traceEvents": self.events,
        }

    def _description(self, name: str) -> str:
        if name == "0":
            return "default_pg"
        if name.startswith("data"):
            return "DATA_PARALLEL_GROUP"
        return "PIPELINE_MODEL_PARALLEL_GROUP"

    def _write_iteration(self, iteration: int) -> None:
        simulation = self.simulation
        spans = simulation.spans[iteration, self.replica, self.stage]
        start, end = simulation.windows[iteration]
        self.host_time = start - _LAUNCH_LEAD_NS - 50_000
        for span in spans:
            if span.exchange is None:
                self._write_computation(span.start, span.end)
            else:
                self._write_exchange(span)
        truth = simulation.truth[iteration, self.replica, self.stage]
        optimizer_ns = round(self.job.optimizer_us * 1000)
        if optimizer_ns:
            self._write_optimizer(start + truth.window, optimizer_ns)
        if self.job.has_iterations:
            begin = start - _LAUNCH_LEAD_NS - 100_000
            name = f"ProfilerStep#{FIRST_ITERATION + iteration}"
            finish = max(end, self.host_time) + 50_000
            self._host("user_annotation", name, begin, finish - begin, {})

    def _write_computation(self, start: int, end: int) -> None:
        """Write the kernels of a computation, one right after the other."""
        step = (end - start) // _KERNELS_OF_A_COMPUTATION
        for index in range(_KERNELS_OF_A_COMPUTATION):
            begin = start + index * step
            finish = end if index == _KERNELS_OF_A_COMPUTATION - 1 else begin + step
            correlation = self._launch("aten::mm", begin, {})
            self._kernel(GEMM, begin, finish, correlation, 7, {})

    def _write_optimizer(self, start: int, duration: int) -> None:
        """Write an all-reduce of the replicas and the step of the optimizer."""
        begin = start
        if self.job.data_parallel > 1:
            begin = start + duration // 2
            ranks = self._data_parallel_ranks()
            self.groups["data"] = ranks
            arguments = self._arguments("allreduce", "data", ranks)
            correlation = self._launch("record_param_comms", start, arguments)
            self._kernel(ALL_REDUCE, start, begin, correlation, 24, arguments)
        marker = self.host_time
        correlation = self._launch("aten::_fused_adamw_", begin, {})
        self._host(
            "user_annotation",
            "Optimizer.step#AdamW.step",
            marker + 1,
            self.host_time - marker - 2,
            {},
        )
        adam = "multi_tensor_apply_kernel<FusedAdamMathFunctor>"
        self._kernel(adam, begin, start + duration, correlation, 7, {})

    def _data_parallel_ranks(self) -> list[int]:
        size = self.job.tensor_parallel
        tensor_index = self.replica % size
        return [
            self.simulation.rank_of(index * size + tensor_index, self.stage)
            for index in range(self.job.data_parallel)
        ]

    def _write_exchange(self, span: Span) -> None:
        exchange = span.exchange
        assert exchange is not None
        records = [self._record(part) for part in exchange.parts]
        sends = any(part.is_send for part in exchange.parts)
        stream = 20 + 2 * exchange.parts[0].peer + (0 if sends else 1)
        is_batch = len(records) > 1 or self.job.labels == "before"
        if is_batch:
            if self.job.labels in ("none", "absent"):
                records = []
            for arguments in records:
                self.host_time += 1_000
                self._host(
                    "cpu_op", "record_param_comms", self.host_time, 900, arguments
                )
            self.host_time += 1_000
            correlation = self._launch("c10d::coalesced", span.start, {})
            self._kernel(SEND_RECV, span.start, span.end, correlation, stream, {})
            return
        arguments = records[0]
        if self.job.labels == "absent":
            arguments = {}
        name = "record_param_comms"
        correlation = self._launch(name, span.start, arguments)
        if self.job.peers == "annotation":
            self._annotate(exchange.parts[0])
        on_kernel = arguments if self.job.labels == "kernel" else {}
        self._kernel(SEND_RECV, span.start, span.end, correlation, stream, on_kernel)

    def _annotate(self, part: Part) -> None:
        """Write the annotation around the last launch."""
        pair = f"{self.stage}->{part.peer}" if part.is_send else ""
        if not part.is_send:
            pair = f"{self.stage}<-{part.peer}"
        kind = "send" if part.is_send else "recv"
        self._host(
            "cpu_op",
            f"nccl:{kind} {pair}",
            self.host_time - _LAUNCH_NS - 1_400,
            _LAUNCH_NS + 1_300,
            {},
        )

    def _record(self, part: Part) -> dict[str, Any]:
        peer_rank = self.simulation.rank_of(self.replica, part.peer)
        ranks = [
            self.simulation.rank_of(self.replica, stage)
            for stage in range(self.job.stages)
        ]
        if self.job.groups == "pair":
            ranks = sorted((self.rank, peer_rank))
        name = "pp_" + "_".join(map(str, ranks))
        self.groups[name] = ranks
        kind = "send" if part.is_send else "recv"
        arguments = self._arguments(kind, name, ranks)
        key = "Dst Rank" if part.is_send else "Src Rank"
        if self.job.peers == "global":
            arguments[key] = peer_rank
        if self.job.peers == "relative":
            arguments[key] = ranks.index(peer_rank)
        self.counts[name] += 1
        arguments["Seq"] = self.counts[name]
        if self.job.groups == "none":
            for key in ("Name", "Description", "Ranks"):
                del arguments[f"Process Group {key}"]
        return arguments

    def _arguments(self, kind: str, name: str, ranks: list[int]) -> dict[str, Any]:
        return {
            "Collective name": kind,
            "In msg nelems": 4_194_304,
            "Out msg nelems": 4_194_304,
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "Process Group Name": name,
            "Process Group Description": self._description(name),
            "Process Group Ranks": str(ranks),
        }

    def _launch(self, name: str, kernel_start: int, arguments: dict[str, Any]) -> int:
        """Write an operation with a launch; return the number that a kernel shares with it."""
        self.correlation += 1
        earliest = kernel_start - _LAUNCH_LEAD_NS
        begin = max(self.host_time + 1_500, earliest)
        self.host_time = begin + _LAUNCH_NS
        shared = {"External id": self.correlation}
        self._host("cpu_op", name, begin, _LAUNCH_NS, {**shared, **arguments})
        launch = {**shared, "correlation": self.correlation}
        self._host("cuda_runtime", "cudaLaunchKernelExC", begin + 500, 3_000, launch)
        return self.correlation

    def _host(
        self, category: str, name: str, start: int, duration: int, arguments: object
    ) -> None:
        self._event(category, name, start, duration, 4000 + self.rank, arguments)

    def _kernel(
        self,
        name: str,
        start: int,
        end: int,
        correlation: int,
        stream: int,
        arguments: Mapping[str, Any],
    ) -> None:
        shared = {
            "External id": correlation,
            "correlation": correlation,
            "device": self.rank % 8,
            "stream": stream,
        }
        self._event("kernel", name, start, end - start, stream, {**shared, **arguments})

    def _event(
        self,
        category: str,
        name: str,
        start: int,
        duration: int,
        thread: int,
        arguments: object,
    ) -> None:
        offset = round(self.stage * self.job.clock_offset_us * 1000)
        time = _BASE_NS + start + offset
        process = self.rank % 8 if category == "kernel" else 4000 + self.rank
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": process,
            "tid": thread,
            "ts": f"@{time // 1000}.{time % 1000:03d}@",
            "dur": duration / 1000,
            "args": arguments,
        }
        self.events.append(event)
