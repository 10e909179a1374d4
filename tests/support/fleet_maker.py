"""Simulated jobs of known truth: the traces of their ranks, and what is true of every call.

A global time line in ns; each rank's file is written with its own clock. Run as a script it writes
many fleets for `../shared/check/fleet_oracle.py`: `fleet_maker.py FOLDER SEEDS`.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST = 5
NS = 1000
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
KERNELS = {
    "allreduce": "AllReduce_Sum_bf16_RING_LL",
    "_allgather_base": "AllGather_RING_LL",
    "_reduce_scatter_base": "ReduceScatter_Sum_bf16_RING_LL",
}


@dataclass
class Fleet:
    """What to simulate."""

    seed: int = 1
    tp: int = 2
    pp: int = 1
    dp: int = 4
    steps: int = 4
    node: int = 4
    fault: str = "clean"
    factor: float = 1.3
    seq: str = ""  #: `right`, `wrong` or none
    args: str = "kernel"  #: or `record`, `none`
    clocks: bool = True
    drift: bool = False
    rccl: bool = False
    moe: bool = False
    batched: bool = False
    hang_ms: int = 600
    layers: int = 2
    more: dict[str, Any] = field(default_factory=dict)


class Simulation:
    """One job."""

    def __init__(self, fleet: Fleet) -> None:
        f = self.f = fleet
        self.random = random.Random(f.seed)
        self.ranks = f.tp * f.pp * f.dp
        self.groups: dict[str, list[int]] = {}
        self.of: dict[tuple[str, int], str] = {}

        def at(d: int, p: int, t: int) -> int:
            return (d * f.pp + p) * f.tp + t

        sets = {
            "tp": [
                [at(d, p, t) for t in range(f.tp)]
                for d in range(f.dp)
                for p in range(f.pp)
            ],
            "dp": [
                [at(d, p, t) for d in range(f.dp)]
                for p in range(f.pp)
                for t in range(f.tp)
            ],
            "pp": [
                [at(d, p, t) for p in range(f.pp)]
                for d in range(f.dp)
                for t in range(f.tp)
            ],
        }
        for kind, lists in sets.items():
            for ranks in lists:
                if len(ranks) > 1:
                    name = str(len(self.groups) + 1)
                    self.groups[name] = ranks
                    for r in ranks:
                        self.of[kind, r] = name
        self.kind_of = {name: kind for (kind, _), name in self.of.items()}
        self.events: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.cpu = [
            1_000_000 + self.random.randrange(200_000) for _ in range(self.ranks)
        ]
        self.gpu = list(self.cpu)
        self.calls: list[dict[str, Any]] = []
        self.correlation = [1000] * self.ranks
        self.bad = self.random.randrange(self.ranks)
        self.moving = [self.random.randrange(self.ranks)]
        while len(self.moving) < f.steps:
            r = self.random.randrange(self.ranks)
            self.moving += [r] if r != self.moving[-1] else []
        dps = sorted(
            {self.of["dp", r] for r in range(self.ranks) if ("dp", r) in self.of}
        )
        self.link = self.random.choice(dps) if dps else ""
        self.counts: dict[Any, int] = defaultdict(int)

    def program(self, rank: int) -> list[tuple[Any, ...]]:  # noqa: C901
        """What a rank does in a step."""
        f = self.f
        ops: list[tuple[Any, ...]] = [("load",)]
        stage = rank // f.tp % f.pp
        up = rank - f.tp
        down = rank + f.tp
        micro = 2 if f.pp > 1 else 1

        def pair(src: int, dst: int) -> None:
            ops.append(("p2p", src, dst))

        def layer(us: float) -> None:
            for _ in range(f.layers):
                ops.append(("compute", us))
                if f.tp > 1:
                    ops.append(("call", "tp", "allreduce", 2_097_152, 2_097_152))
                if f.moe and f.dp > 1:
                    ops.append(("call", "dp", "all_to_allv", 1_000_000, 1_000_000))

        for _ in range(micro):
            if stage:
                pair(up, rank)
            layer(400)
            if stage < f.pp - 1:
                pair(rank, down)
        for _ in range(micro):
            if stage < f.pp - 1:
                pair(down, rank)
            layer(700)
            if stage:
                pair(rank, up)
        if f.dp > 1:
            n = 4_194_304
            ops.append(("call", "dp", "_reduce_scatter_base", n, n // f.dp))
            ops.append(("call", "dp", "allreduce", 1024, 1024))
            ops.append(("compute", 150))
            ops.append(("call", "dp", "_allgather_base", n // f.dp, n))
        return [*ops, ("sync",)]

    def run(self) -> None:
        """Simulate all steps."""
        for step in range(self.f.steps):
            programs = [self.program(r) for r in range(self.ranks)]
            begin = list(self.cpu)
            at = [0] * self.ranks
            waiting: dict[Any, dict[int, tuple[Any, ...]]] = defaultdict(dict)
            todo = list(range(self.ranks))
            while todo:
                r = todo.pop()
                while at[r] < len(programs[r]):
                    op = programs[r][at[r]]
                    at[r] += 1
                    if op[0] in ("call", "p2p"):
                        group = (
                            self.of["pp", r] if op[0] == "p2p" else self.of[op[1], r]
                        )
                        members = (
                            list(op[1:3]) if op[0] == "p2p" else self.groups[group]
                        )
                        key = (group, *(op[1:3] if op[0] == "p2p" else ()))
                        waiting[key][r] = op
                        if len(waiting[key]) == len(members):
                            self.rendezvous(step, group, members, waiting.pop(key))
                            todo += [m for m in members if m != r]
                            continue
                        break
                    self.local(r, op, step)
            assert not waiting
            for r in range(self.ranks):
                self.events[r].append(
                    {
                        "ph": "X",
                        "cat": "user_annotation",
                        "step": step,
                        "name": f"ProfilerStep#{FIRST + step}",
                        "tid": "cpu",
                        "start": begin[r] - 500,
                        "dur": self.cpu[r] - begin[r] + 400,
                    }
                )

    def local(self, r: int, op: tuple[Any, ...], step: int) -> None:
        f = self.f
        rnd = self.random
        if op[0] == "load":
            ns = int(
                300_000
                * rnd.uniform(0.97, 1.03)
                * (
                    f.more.get("loader", 3.9)
                    if f.fault == "slow_loader" and r == self.bad
                    else 1
                )
            )
            self.host(
                r,
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "user_annotation",
                ns,
                step,
            )
            self.cpu[r] += ns + 5000
        elif op[0] == "sync":
            until = max(self.gpu[r], self.cpu[r]) + 5000
            c = self.next(r)
            self.host(
                r,
                "cudaDeviceSynchronize",
                "cuda_runtime",
                until - self.cpu[r],
                step,
                correlation=c,
            )
            self.cpu[r] = until + 2000
        else:
            slow = (f.fault == "slow_rank" and r == self.bad) or (
                f.fault == "moving" and r == self.moving[step]
            )
            for share in (0.6, 0.4):
                ns = int(
                    op[1]
                    * 1000
                    * share
                    * rnd.uniform(0.99, 1.01)
                    * (f.factor if slow else 1)
                )
                launch, c = self.launch(r, "aten::mm", {}, step)
                start = max(self.gpu[r], launch + 5000)
                self.kernel(r, GEMM, start, ns, c, 7, {}, step)
                self.gpu[r] = start + ns

    def next(self, r: int) -> int:
        self.correlation[r] += 1
        return self.correlation[r]

    def host(
        self, r: int, name: str, cat: str, dur: int, step: int, **args: Any
    ) -> None:
        self.events[r].append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "tid": "cpu",
                "step": step,
                "start": self.cpu[r],
                "dur": dur,
                "args": args,
            }
        )

    def launch(
        self, r: int, op: str, args: dict[str, Any], step: int, call: int = -1
    ) -> tuple[int, int]:
        c = self.next(r)
        self.events[r].append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": op,
                "tid": "cpu",
                "step": step,
                "start": self.cpu[r],
                "dur": 12_000,
                "call": call,
                "args": {"External id": c, **args},
            }
        )
        self.events[r].append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "tid": "cpu",
                "step": step,
                "start": self.cpu[r] + 2000,
                "dur": 4000,
                "call": call,
                "args": {"External id": c, "correlation": c},
            }
        )
        self.cpu[r] += 15_000
        return self.cpu[r] - 13_000, c

    def kernel(
        self,
        r: int,
        name: str,
        start: int,
        dur: int,
        c: int,
        stream: int,
        args: dict[str, Any],
        step: int,
        call: int = -1,
    ) -> None:
        self.events[r].append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "tid": stream,
                "step": step,
                "start": start,
                "dur": dur,
                "call": call,
                "args": {
                    "External id": c,
                    "device": r % self.f.node,
                    "stream": stream,
                    "correlation": c,
                    **args,
                },
            }
        )

    def rendezvous(
        self, step: int, group: str, members: list[int], ops: dict[int, tuple[Any, ...]]
    ) -> None:
        f = self.f
        rnd = self.random
        number = len(self.calls)
        p2p = next(iter(ops.values()))[0] == "p2p"
        n = len(members)
        nodes = {r // f.node for r in members}
        kinds = {
            r: ("send" if r == members[0] else "recv") if p2p else ops[r][2]
            for r in members
        }
        sizes = {r: (1_048_576, 1_048_576) if p2p else ops[r][3:5] for r in members}
        if not p2p and ops[members[0]][2] == "all_to_allv":
            sizes = {
                r: (
                    rnd.randrange(500_000, 1_000_000),
                    rnd.randrange(500_000, 1_000_000),
                )
                for r in members
            }
        bytes_ = 2 * max(max(s) for s in sizes.values())
        gb = 100.0 if len(nodes) == 1 else 45.0
        slow = f.fault == "slow_link" and group == self.link
        transfer = int(
            (12_000 + bytes_ / gb) * rnd.uniform(0.98, 1.02) * (f.factor if slow else 1)
        )
        starts = {}
        launched = {}
        for r in members:
            a = {
                "Collective name": kinds[r],
                "In msg nelems": sizes[r][0],
                "Out msg nelems": sizes[r][1],
                "Group size": len(self.groups[group]),
                "dtype": "BFloat16",
                "Process Group Name": group,
                "Process Group Description": f"mesh_{self.kind_of[group]}",
                "Process Group Ranks": str(self.groups[group]),
            }
            if p2p:
                a |= (
                    {"Dst Rank": members[1]}
                    if kinds[r] == "send"
                    else {"Src Rank": members[0]}
                )
            if f.seq == "right":
                key = (r, group, *(members if p2p else ()))
                self.counts[key] += 1
                a["Seq"] = self.counts[key]
            elif f.seq == "wrong":
                self.counts[r] += 2
                a["Seq"] = self.counts[r]
            bare = f.batched and p2p
            op = {} if bare or f.args == "none" else a
            launch, c = self.launch(r, "record_param_comms", op, step, number)
            starts[r] = max(self.gpu[r], launch + 5000)
            launched[r] = (c, a if f.args == "kernel" and not bare else {})
        end = max(starts.values()) + transfer
        durations = {}
        for r in members:
            durations[r] = end + rnd.randrange(300) - starts[r]
            self.gpu[r] = end + 300
            name = KERNELS.get(kinds[r], "SendRecv")
            name = "ncclDevKernel_Generic_1" if f.rccl else f"ncclDevKernel_{name}"
            name += "(ncclDevKernelArgsStorage<4096ul>)"
            self.kernel(
                r,
                name,
                starts[r],
                durations[r],
                launched[r][0],
                20,
                launched[r][1],
                step,
                number,
            )
        call = {
            "process_group": group,
            "collective": "send/recv" if p2p else ops[members[0]][2],
            "dtype": "BFloat16",
            "group_size": n,
            "bytes": bytes_,
            "sizes": sizes,
            "state": "complete",
            "span": "node" if len(nodes) == 1 else "across",
            "iteration": step,
            "ranks": {
                r: {"start_ns": starts[r], "dur_ns": durations[r]} for r in members
            },
        }
        if p2p:
            call |= {"src": members[0], "dst": members[1]}
        self.calls.append(call)

    # Faults of the recording.

    def break_(self) -> list[dict[str, Any]]:  # noqa: C901  # a branch a fault
        """Apply the fault; answers the verdicts that must be given, and fills those that may."""
        f = self.f
        rnd = self.random
        bad = self.bad
        self.allowed: list[dict[str, Any]] = []
        self.lost: set[int] = set()

        def verdict(kind: str, **fields: object) -> dict[str, Any]:
            names = ("rank", "process_group", "iteration", "cause")
            return {"verdict": kind, **dict.fromkeys(names), **fields}

        if f.fault == "slow_rank":
            return [verdict("slow_rank", rank=bad, cause="computation")]
        if f.fault == "slow_loader":
            return [verdict("slow_rank", rank=bad, cause="data_loader")]
        if f.fault == "slow_link":
            return [
                verdict("slow_link", process_group=self.link, cause="slow_transfer")
            ]
        if f.fault == "moving":

            def say(of: int, at: int) -> dict[str, Any]:
                where = {"rank": self.moving[of], "iteration": str(FIRST + at)}
                return verdict("moving_straggler", **where, cause="computation")

            self.allowed = [say(s, i) for s in range(f.steps) for i in (s, s + 1)]
            return [say(s, s) for s in range(1, f.steps)]
        if f.fault == "lost_rank":
            self.lost.add(bad)
            self.drop(lambda _, r: r == bad)
            return [verdict("missing_rank", rank=bad)]
        if f.fault == "late_start":
            first = rnd.randrange(1, f.steps - 1)
            self.drop(
                lambda number, r: r == bad and self.calls[number]["iteration"] < first
            )
            self.events[bad] = [e for e in self.events[bad] if e["step"] >= first]
            return [verdict("late_start", rank=bad, iteration=str(FIRST + first))]
        if f.fault in ("lost_call", "lost_equal", "mismatch"):
            kinds = {
                "lost_equal": ("allreduce",),
                "mismatch": ("allreduce", "_allgather_base"),
            }
            numbers = [
                i
                for i, c in enumerate(self.calls)
                if c["iteration"] in range(1, f.steps - 1)
                and c["collective"]
                in kinds.get(
                    f.fault, ("allreduce", "_reduce_scatter_base", "send/recv")
                )
                and c["bytes"] > 4096
            ]
            numbers = numbers or [
                i
                for i, c in enumerate(self.calls)
                if c["iteration"] == 1 and c["collective"] == "_reduce_scatter_base"
            ]
            number = rnd.choice(numbers)
            call = self.calls[number]
            bad = self.bad = rnd.choice(sorted(call["ranks"]))
            where = {
                "rank": bad,
                "process_group": call["process_group"],
                "iteration": str(FIRST + call["iteration"]),
            }
            if f.fault == "mismatch":
                for e in self.events[bad]:
                    if e.get("call") == number and "In msg nelems" in e["args"]:
                        e["args"] |= {
                            "In msg nelems": e["args"]["In msg nelems"] // 2,
                            "Out msg nelems": e["args"]["Out msg nelems"] // 2,
                        }
                call["state"] = "mismatch"
                return [verdict("mismatch", **where)]
            self.drop(lambda n, r: n == number and r == bad)
            return [verdict("lost_call", **where)]
        if f.fault == "hang":
            number = max(
                i
                for i, c in enumerate(self.calls)
                if c["process_group"] == self.of["dp", bad]
            )
            call = self.calls[number]
            times = {r: v["start_ns"] for r, v in call["ranks"].items()}
            mark = times[bad]
            if f.hang_ms:
                del call["ranks"][bad]
            for r in times:
                for e in list(self.events[r]):
                    if e.get("call") != number:
                        continue
                    if r == bad or (e["cat"] == "kernel" and not f.hang_ms):
                        self.events[r].remove(e)
                    elif e["cat"] == "kernel":
                        e["dur"] = f.hang_ms * 1_000_000 + self.random.randrange(300)
                        call["ranks"][r]["dur_ns"] = e["dur"]
            if not f.hang_ms:
                call["ranks"] = {}
            call["state"] = "hang"
            assert mark
            return [
                verdict(
                    "hang",
                    rank=bad,
                    process_group=call["process_group"],
                    iteration=str(FIRST + call["iteration"]),
                )
            ]
        return []

    def drop(self, gone: Any) -> None:
        for number, call in enumerate(self.calls):
            lost = [r for r in call["ranks"] if gone(number, r)]
            for r in lost:
                del call["ranks"][r], call["sizes"][r]
                call["bytes"] = 2 * max(
                    (max(s) for s in call["sizes"].values()), default=0
                )
                self.events[r] = [e for e in self.events[r] if e.get("call") != number]
            if lost:
                call["state"] = "incomplete"

    def write(self, folder: Path) -> None:
        """Write the traces and `truth.json`."""
        f = self.f
        rnd = self.random
        self.run()
        required = self.break_()
        node_clocks = [
            (
                rnd.randrange(-5_000_000, 5_000_000) if f.clocks and n else 0,
                rnd.uniform(-20, 20) if f.drift and n else 0.0,
            )
            for n in range(self.ranks // f.node + 1)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        base = 1_106_963_996_000_000_000
        for r in range(self.ranks):
            if r in self.lost:
                continue
            offset, ppm = node_clocks[r // f.node]
            events = []
            for e in self.events[r]:
                ns = base + e["start"] + offset + int(e["start"] * ppm / 1e6)
                pid = 4000 + r if e["tid"] == "cpu" else r % f.node
                events.append(
                    {
                        "ph": "X",
                        "cat": e["cat"],
                        "name": e["name"],
                        "pid": pid,
                        "tid": pid if e["tid"] == "cpu" else e["tid"],
                        "ts": f"@{ns // NS}.{ns % NS:03d}@",
                        "dur": e["dur"] / NS,
                        "args": e.get("args", {}),
                    }
                )
            config = [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "ranks": list(range(self.ranks)),
                }
            ]
            config += [
                {"pg_name": n, "pg_desc": self.kind_of[n], "ranks": g}
                for n, g in self.groups.items()
                if r in g
            ]
            doc = {
                "schemaVersion": 1,
                "distributedInfo": {
                    "backend": "nccl",
                    "rank": r,
                    "world_size": self.ranks,
                    "pg_config": config,
                },
                "traceEvents": events,
            }
            text = json.dumps(doc).replace('"@', "").replace('@"', "")
            (folder / f"rank{r}.json.gz").write_bytes(
                gzip.compress(text.encode(), 1, mtime=0)
            )
        (folder / "truth.json").write_text(
            json.dumps(self.truth(required, node_clocks))
        )

    def truth(self, required: Any, node_clocks: Any) -> dict[str, Any]:
        factors: dict[str, Any] = {
            "allreduce": lambda n: 2 * (n - 1) / n,
            "send/recv": lambda _: 1.0,
        }
        for call in self.calls:
            times = {r: v["dur_ns"] for r, v in call["ranks"].items()}
            fast = call["in_sync_ns"] = min(times.values(), default=0) or None
            call["waits_ns"] = {r: v - (fast or 0) for r, v in times.items()}
            n = call["group_size"]
            factor = factors.get(call["collective"], lambda n: (n - 1) / n)(n)
            rate = call["algorithm_bandwidth_gb_s"] = (
                call["bytes"] / fast if fast else None
            )
            call["bus_bandwidth_gb_s"] = rate and rate * factor
        f = self.f
        fault = {"none": "no_args"}.get(f.args, "coalesced?" if f.batched else f.fault)
        return {
            "fault": fault,
            "schema": "nccl2"
            if f.seq == "wrong"
            else "2.12"
            if f.seq == "right" and f.fault == "clean" and not f.batched
            else "x",
            "ranks_of_job": self.ranks,
            "iterations": f.steps,
            "options": {"batched_p2p": f.batched},
            "groups": {n: {"ranks": g} for n, g in self.groups.items()},
            "calls": self.calls,
            "clocks": {
                str(r): {
                    "offset_ns": node_clocks[r // f.node][0],
                    "drift_ppm": node_clocks[r // f.node][1],
                }
                for r in range(self.ranks)
            },
            "verdicts": {"required": required, "allowed": self.allowed},
        }


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
    """A fleet of a random shape."""
    r = random.Random(seed)
    while True:
        tp = r.choice((1, 2, 4))
        pp = r.choice((1, 2, 4))
        dp = r.choice((2, 4, 8))
        fault_ = fault or r.choice(FAULTS)
        if (
            not 8 <= tp * pp * dp <= 32
            or (fault_ == "slow_link" and tp * pp < 2)
            or (fault_ in ("slow_rank", "slow_loader", "moving") and dp * tp < 3)
        ):
            continue
        factor = (
            r.choice((1.15, 1.3, 2.0))
            if fault_ != "slow_link"
            else r.choice((3.0, 4.0, 6.0))
        )
        args = r.choice(("kernel", "kernel", "record"))
        if fault_ == "clean" and r.random() < 0.3:
            args = "none"
        return Fleet(
            seed,
            tp,
            pp,
            dp,
            4,
            r.choice((2, 4, 8)),
            fault_,
            factor,
            r.choice(("", "right", "wrong")),
            args,
            r.random() < 0.7,
            r.random() < 0.4,
            r.random() < 0.3,
            r.random() < 0.3,
            pp > 1 and r.random() < 0.2,
            r.choice((0, 600)),
        )


if __name__ == "__main__":
    first, _, last = sys.argv[2].partition("-")
    for number in range(int(first), int(last or first) + 1):
        chosen = any_fleet(number, FAULTS[number % len(FAULTS)])
        print(number, chosen)  # noqa: T201
        Simulation(chosen).write(Path(sys.argv[1]) / f"{number:03}-{chosen.fault}")
