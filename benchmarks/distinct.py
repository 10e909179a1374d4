"""Small files in which everything is another: none may take long, or much memory."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import programs
from measuring import best

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 4_900_000
_MOST_S = 20
_MOST_PEAK = 4 * 10**9
_AT_ONCE = 2000
_EVENTS = (
    '{{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":{op_ts},"dur":{op_dur},"pid":9,"tid":1,"args":'
    '{{"Input Dims":[[{shape},8],[8,{shape}]],"Input type":["float","float"]}}}},'
    '{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","ts":{ts},"dur":1,"pid":9,"tid":1,'
    '"args":{{"correlation":{n}}}}},'
    '{{"ph":"X","cat":"kernel","name":"k{name}","ts":{gpu_ts},"dur":1,"pid":{device},"tid":{stream},'
    '"args":{{"correlation":{linked},"device":{device},"stream":{stream}}}}}'
)
#: What differs from operation to operation; a machine has at most 128 devices.
CASES = {
    "names": {"name": 1},
    "shapes": {"shape": 1},
    "names and shapes": {"name": 1, "shape": 1},
    "streams": {"stream": 1},
    "devices": {"device": 128},
    "correlations that link nothing": {"linked": 1},
    "depths": {"depth": 1},
}


def table(folder: Path, repeat: int) -> str:
    """What a report of each takes."""
    lines = [
        "| distinct | operations | CPU s | peak anonymous, MB | at most 20 s and 4 GB |",
        "|---|---|---|---|---|",
    ]
    for name, differs in CASES.items():
        path = folder / f"distinct_{name.replace(' ', '_')}.json.gz"
        count = written(path, differs)
        ours = best(programs.REPORT, str(path), repeat=min(repeat, 1), key="cpu")
        seconds = ours.figures["cpu"]
        met = "met" if seconds <= _MOST_S and ours.peak <= _MOST_PEAK else "missed"
        lines.append(
            f"| {name} | {count:,} | {seconds:.1f} | {ours.peak / 1e6:.0f} | {met} |"
        )
    return "\n".join(lines)


def written(path: Path, differs: dict[str, int], most: int = _MOST_BYTES) -> int:
    """Write a trace of so many bytes; the number of its operations.

    Args:
        path: the file.
        differs: what differs from operation to operation → 1, or how many values there are.
        most: its size.
    """
    count = 0
    with (
        path.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6) as file,
    ):
        file.write(
            b'{"traceEvents":[{"ph":"M","name":"process_name","pid":9,"args":{"name":"a"}}'
        )
        while raw.tell() < most:
            for n in range(count, count + _AT_ONCE):
                file.write(b"," + _operation(n, differs).encode())
            count += _AT_ONCE
        file.write(b"]}")
    return count


def _operation(n: int, differs: dict[str, int]) -> str:
    values = {key: n if most == 1 else n % most for key, most in differs.items()}
    # each operation within the one before, and its launch in it
    deep = "depth" in differs
    return _EVENTS.format(
        n=n + 1,
        ts=n * 5 + 1,
        op_ts=n * 5,
        op_dur=10**8 - n * 10 if deep else 3,
        gpu_ts=n * 5 + 3,
        name=values.get("name", 0),
        shape=values.get("shape", 7) + 1,
        stream=values.get("stream", 7),
        device=values.get("device", 0),
        linked=-n - 2 if "linked" in differs else n + 1,
    )
