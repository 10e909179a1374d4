"""Captures of CUDA graphs: the launches in each graph, and the host events around them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import EventKind, Int32Array, Int64Array

#: Names of nodes that are copies or fills, and of kernels whose name was not recorded. The leading
#: zero byte keeps them apart from the names of real kernels.
MEMCPY = "\0memcpy"
MEMSET = "\0memset"
NAMELESS = "\0kernel"

#: Finds the first dimension of the first input that has any, in a text such as `[[], [8, 4]]`.
_FIRST_DIMENSION: Final = re.compile(r"[\[\], ]*(\d{1,9})")


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph as it was captured: k launches in order, within a tree of h host events."""

    names: list[str]  #: names of the host events, parents before children, (h,)
    kind: npt.NDArray[np.uint8]  #: the `EventKind` of each host event, (h,)
    #: index of each host event's parent, `ROOT` for the outermost events, (h,)
    parent: Int32Array
    #: argument → the host events that have the argument, and its raw JSON text for each of them
    args: dict[str, tuple[Int64Array, list[str]]]
    launches: Int64Array  #: index of each launch among the host events, (k,)
    #: the name of the kernel that each launch adds, or `MEMCPY`, `MEMSET`, `NAMELESS`, (k,)
    nodes: list[str]
    #: `nodes`, in which a nameless kernel has the name of the kernel that the same code launches
    #: outside of graphs, if that is known, (k,)
    likely_nodes: list[str]

    @property
    def op_names(self) -> list[str]:
        """The names of the CPU ops in the graph, in order."""
        ops = np.flatnonzero(self.kind == EventKind.CPU_OP)
        return [self.names[op] for op in ops.tolist()]

    @cached_property
    def operations(self) -> int:
        """A hash of the CPU ops and their arguments, equal for graphs that agree in both."""
        args = []
        for name, (rows, raw_texts) in self.args.items():
            args.append((name, *rows.tolist(), *raw_texts))
        return hash((*self.op_names, *sorted(args)))

    @cached_property
    def common_size(self) -> int | None:
        """The most frequent first dimension of the operations' first inputs, None without shapes.

        It is the number of tokens or requests that the graph was captured for.
        """
        _, shapes = self.args.get("Input Dims", (None, []))
        sizes: Counter[int] = Counter()
        for shape in shapes:
            first_dimension = _FIRST_DIMENSION.match(shape)
            if first_dimension:
                size = int(first_dimension[1])
                sizes[size] += 1
        if not sizes:
            return None
        return sizes.most_common(1)[0][0]


@dataclass(frozen=True, eq=False)
class Capture:
    """Graphs that were captured together, in order: one for the whole model, or one per piece."""

    file: str  #: the trace that contains the capture
    #: the number of requests or tokens that the graphs were captured for; None if unknown
    batch_size: int | None
    mode: str  #: such as `FULL` or `PIECEWISE`; empty if unknown
    graphs: list[CapturedGraph]
    #: the batch size that the shapes of the operations suggest; None if unknown
    likely_size: int | None = None
