"""Writes dumps of PyTorch's flight recorder for simulated jobs, in every version of the format."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = [f"2.{minor}" for minor in range(11)]
FRAMES = [
    ("all_reduce", "/opt/venv/lib/python3.12/site-packages/torch/distributed/c10d.py"),
    ("step", "/home/user/train.py"),
]
START = 1_700_000_000_000_000_000


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


@dataclass
class FlightJob:
    """The calls of the ranks of a job.

    Attributes:
        world: the number of ranks.
        version: the version of the format.
        groups: name of a process group → its description and ranks.
        entries: rank → the entries of its dump.
    """

    world: int = 4
    version: str = "2.10"
    groups: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    entries: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups.setdefault("0", ("default_pg", list(range(self.world))))
        self._sequences: dict[tuple[int, str, bool], int] = {}
        for rank in range(self.world):
            self.entries.setdefault(rank, [])

    def call(
        self,
        rank: int,
        operation: str = "all_reduce",
        *,
        group: str = "0",
        size: int = 1024,
        output: int | None = None,
        dtype: str = "BFloat16",
        state: str = "completed",
        p2p: bool = False,
    ) -> None:
        """Let a rank make the next call of a group."""
        key = (rank, group, p2p)
        sequence = self._sequences.get(key, 0) + 1
        self._sequences[key] = sequence
        description, _ = self.groups[group]
        created = START + 1_000_000 * len(self.entries[rank])
        completed = created + 9 if state == "completed" else None
        entry: dict[str, Any] = {
            "record_id": len(self.entries[rank]),
            "pg_id": list(self.groups).index(group),
            "process_group": (group, description),
            "collective_seq_id": sequence if not p2p else 0,
            "p2p_seq_id": sequence if p2p else 0,
            "op_id": sequence,
            "profiling_name": f"nccl:{operation}",
            "time_created_ns": created,
            "input_sizes": [[size]],
            "input_dtypes": [dtype],
            "output_sizes": [[size if output is None else output]],
            "output_dtypes": [dtype],
            "state": state,
            "time_discovered_started_ns": None if state == "scheduled" else created + 5,
            "time_discovered_completed_ns": completed,
            "retired": state == "completed",
            "timeout_ms": 600_000,
            "is_p2p": p2p,
            "frames": [
                {"name": name, "filename": file, "line": 30 + rank}
                for name, file in FRAMES
            ],
        }
        minor = _minor(self.version)
        if minor < 2:
            del entry["pg_id"]
        if minor < 3:
            del entry["timeout_ms"]
        if minor < 1:
            del entry["is_p2p"]
        self.entries[rank].append(entry)

    def all_call(self, operation: str = "all_reduce", **options: Any) -> None:
        """Let all ranks of a group make the next call of the group."""
        for rank in self.groups[options.get("group", "0")][1]:
            self.call(rank, operation, **options)

    def dump(self, rank: int) -> dict[str, Any]:
        """Return the dump of a rank."""
        config = {
            name: {"name": name, "desc": description, "ranks": str(ranks)}
            for name, (description, ranks) in self.groups.items()
            if rank in ranks
        }
        document: dict[str, Any] = {
            "version": self.version,
            "pg_config": config,
            "entries": self.entries[rank],
        }
        minor = _minor(self.version)
        if minor >= 4:
            document["pg_status"] = {
                "0": {"last_enqueued_collective": "1", "last_completed_collective": "1"}
            }
        if minor >= 8:
            document |= {"rank": rank, "host_name": "host"}
        return document

    def write(self, folder: Path, *, form: str = "pickle", without: int = -1) -> Path:
        """Write the dumps of all ranks except the rank `without`; return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.world):
            if rank == without:
                continue
            document = self.dump(rank)
            if form == "pickle":
                path = folder / f"nccl_trace_rank_{rank}"
                path.write_bytes(pickle.dumps(document, protocol=2))
            else:
                path = folder / f"nccl_trace_rank_{rank}.json"
                path.write_text(json.dumps(document), encoding="utf-8")
        return folder


def healthy(version: str = "2.10", calls: int = 5) -> FlightJob:
    """A job in which all ranks make the same calls, and all calls end."""
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("tp", [0, 1])}
    groups["2"] = ("tp", [2, 3])
    job = FlightJob(version=version, groups=groups)
    for _ in range(calls):
        job.all_call("_all_gather_base", group="1", size=64, output=128)
        job.all_call("_all_gather_base", group="2", size=64, output=128)
        job.all_call("all_reduce")
        for source, target in ((0, 1), (2, 3)):
            job.call(source, f"send {source}->{target}", p2p=True)
            job.call(target, f"recv {target}<-{source}", p2p=True)
    return job


def hang(version: str = "2.10") -> FlightJob:
    """A job in which rank 2 hangs before call 6 of the default group.

    Ranks 0 and 1 wait for it in that call, and rank 3 waits for it in their tensor parallel group.
    """
    job = healthy(version)
    job.all_call("_all_gather_base", group="1", size=64, output=128)
    for rank in (0, 1):
        job.call(rank, "all_reduce", state="started")
    job.call(3, "_all_gather_base", group="2", size=64, output=128, state="started")
    return job


def size_mismatch(version: str = "2.10") -> FlightJob:
    """A job in which rank 1 has half of the elements in call 6 of the default group."""
    job = healthy(version)
    for rank in range(4):
        job.call(rank, "all_reduce", size=512 if rank == 1 else 1024, state="started")
    return job


def type_mismatch(version: str = "2.10") -> FlightJob:
    """A job in which rank 3 has a different type in call 6 of the default group."""
    job = healthy(version)
    for rank in range(4):
        dtype = "Float" if rank == 3 else "BFloat16"
        job.call(rank, "all_reduce", dtype=dtype, state="started")
    return job


def out_of_order(version: str = "2.10") -> FlightJob:
    """A job in which rank 2 swaps calls 6 and 7 of the default group."""
    job = healthy(version)
    for rank in range(4):
        operations = ["all_reduce", "broadcast"]
        for operation in reversed(operations) if rank == 2 else operations:
            job.call(rank, operation, state="scheduled")
    return job
