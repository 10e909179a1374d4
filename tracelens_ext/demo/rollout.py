"""Generation between training steps: captured decoding graphs, and the host code around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.demo.engine import MEMSET, GraphNode
from tracelens_ext.demo.model import FEED_FORWARD, VOCABULARY, WIDTH
from tracelens_ext.demo.tensors import FLOAT, LONG, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.demo.ops import Ops
    from tracelens_ext.demo.vendors import Vendor

SEQUENCES = 16
TOKENS = 8
_LAYERS = 6
_CACHED = 1024
_SCORED = 64


def decode_graph(vendor: Vendor) -> list[GraphNode]:
    """The kernels of one decoding step, as captured: layer after layer, then the sampling."""
    nodes = [GraphNode(MEMSET, 1.3, 4 * SEQUENCES)]
    for _ in range(_LAYERS):
        nodes.extend(_layer(vendor))
    hidden = SEQUENCES * WIDTH
    scores = SEQUENCES * VOCABULARY
    nodes.append(GraphNode("rms_norm", 2.6, hidden))
    nodes.append(_gemm(vendor, "gemm_head_decode", VOCABULARY, WIDTH))
    nodes.append(GraphNode("gemv", vendor.gemm_us(1, WIDTH, WIDTH), WIDTH))
    nodes.append(GraphNode("temperature", vendor.traffic_us(8 * scores), scores))
    nodes.append(GraphNode("sample", 14.0, scores))
    return nodes


def _layer(vendor: Vendor) -> Iterator[GraphNode]:
    hidden = SEQUENCES * WIDTH
    cache = 2 * 2 * SEQUENCES * _CACHED * WIDTH // 4
    yield GraphNode("rms_norm", 2.6, hidden)
    yield _gemm(vendor, "gemm_decode", 3 * WIDTH, WIDTH)
    yield GraphNode("rope_decode", 2.1, 2 * hidden)
    yield GraphNode("kv_write", 1.9, 2 * hidden)
    yield GraphNode("attention_decode", vendor.traffic_us(cache) + 4.0, cache // 64)
    yield _gemm(vendor, "gemm_decode", WIDTH, WIDTH)
    yield GraphNode("rms_norm", 2.6, hidden)
    yield _gemm(vendor, "gemm_decode", 2 * FEED_FORWARD, WIDTH)
    yield GraphNode("silu_and_mul", 2.0, SEQUENCES * FEED_FORWARD)
    yield _gemm(vendor, "gemm_decode", WIDTH, FEED_FORWARD)
    yield GraphNode("scale_decode", 1.6, hidden)


def _gemm(vendor: Vendor, role: str, outer: int, inner: int) -> GraphNode:
    return GraphNode(role, vendor.gemm_us(SEQUENCES, outer, inner), SEQUENCES * outer)


class Rollout:
    """Generates a few tokens with the captured graph, then scores them on the host.

    Args:
        ops: the operations.
    """

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._graph = decode_graph(ops.sim.vendor)

    def run(self) -> None:
        """Generate and score."""
        sim = self._ops.sim
        with sim.annotation("rollout"), sim.frame("rollout.py(73): generate"):
            for _ in range(TOKENS):
                self._token()
            # Nothing is queued while the host computes rewards: the device waits for Python.
            with sim.frame("reward.py(28): score_batch"):
                for _ in range(_SCORED):
                    with (
                        sim.frame("reward.py(14): score", us=9.0),
                        sim.frame("<built-in method findall of re.Pattern object>", us=26.0),
                    ):
                        pass
            weights = Tensor((SEQUENCES, VOCABULARY), FLOAT)
            self._ops.run("token_weights", [weights, weights], weights)

    def _token(self) -> None:
        ops, sim = self._ops, self._ops.sim
        with sim.frame("rollout.py(51): decode_step"):
            noise = Tensor((SEQUENCES, VOCABULARY), FLOAT)
            ops.run("uniform", [noise], noise)
            # Triton and extension kernels started straight from Python have no operation.
            with sim.frame("rollout.py(33): prepare_indices"):
                sim.launch("kv_indices", 2.4, SEQUENCES * _CACHED)
                sim.launch("prefix_lookup", 3.1, SEQUENCES * 64)
            with sim.frame("torch/cuda/graphs.py(88): replay"):
                sim.launch_graph(self._graph)
            ops.item(Tensor((SEQUENCES,), LONG))
            with sim.frame("rollout.py(44): append_tokens", us=46.0):
                pass
