"""The training script: what happens in a step, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.demo.collectives import Collectives, GradientReducer
from tracelens_ext.demo.model import (
    BATCH,
    LABELS,
    LENGTH,
    PIXELS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    HybridTransformer,
)
from tracelens_ext.demo.ops import Ops
from tracelens_ext.demo.rollout import Rollout
from tracelens_ext.demo.tape import Tape
from tracelens_ext.demo.tensors import FLOAT, Argument, Tensor

if TYPE_CHECKING:
    from tracelens_ext.demo.engine import Simulator
    from tracelens_ext.demo.records import Recording

FIRST_STEP = 5

_SCALAR = Tensor((), FLOAT)
# The fused optimizer takes this many parameters a launch, and reads and writes this much each.
_OPTIMIZER_CHUNK = 32_000_000
_OPTIMIZER_BYTES = 18
_EMA_RATES = 3
_SMALL = 100_000
_LOADER = "torch/utils/data/dataloader.py"


class TrainingScript:
    """Trains the model for some steps on the simulated machine, under the profiler.

    Args:
        simulator: the machine.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.sim = simulator
        self.tape = Tape(simulator)
        self.ops = Ops(simulator, self.tape)
        self.collectives = Collectives(simulator)
        self.model = HybridTransformer(self.collectives)
        self.reducer = GradientReducer(self.collectives, self.model.parameters)
        self.rollout = Rollout(self.ops)

    def run(self, steps: int) -> Recording:
        """The recording of that many steps."""
        sim = self.sim
        self._queue_work_before_the_profiler()
        sim.start_profiler()
        with (
            sim.frame("train.py(214): <module>"),
            sim.frame("train.py(196): main"),
            sim.frame("train.py(151): train"),
        ):
            for step in range(FIRST_STEP, FIRST_STEP + steps):
                with sim.annotation(f"ProfilerStep#{step}"):
                    self._step()
        return sim.stop_profiler()

    def _queue_work_before_the_profiler(self) -> None:
        """Part of an earlier step, so that the profiler starts in the middle of its kernels."""
        x = Tensor((BATCH, LENGTH, WIDTH))
        for block in self.model.blocks[:1]:
            block(self.ops, x)
        self.tape.backward(self.reducer.gradient_ready, self.collectives.wait)

    def _step(self) -> None:
        sim = self.sim
        self._load_batch()
        with sim.frame("train.py(96): train_step"):
            self._move_batch()
            self.rollout.run()
            self._zero_gradients()
            logits = self._forward()
            self._backward()
            self._clip_gradients()
            self._optimizer_step()
            self._average_weights()
            self._report(logits)

    def _load_batch(self) -> None:
        """Wait for the loader's worker, with nothing queued on the device."""
        sim = self.sim
        with (
            sim.frame(f"{_LOADER}(733): __next__"),
            sim.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
            sim.frame(f"{_LOADER}(1482): _next_data"),
            sim.frame(f"{_LOADER}(1434): _get_data"),
            sim.frame("queue.py(180): get"),
            sim.frame("threading.py(359): wait"),
            sim.frame("<built-in method acquire of _thread.lock object at 0x7f3a90ffb2c0>"),
        ):
            sim.spend(6400.0)

    def _move_batch(self) -> None:
        """Tokens on the compute stream; images on their own, hidden behind the rollout."""
        sim = self.sim
        with sim.frame("train.py(71): to_device"):
            for source, pinned, stream in (
                (TOKENS, False, sim.compute),
                (PIXELS, True, sim.copies),
            ):
                inputs: list[Argument] = [source, 15, 0, None, pinned, False, None]
                with (
                    sim.op("aten::to", inputs, us=2.0),
                    sim.op("aten::_to_copy", inputs, us=2.0),
                ):
                    self.ops.empty(source, None)
                    with sim.op("aten::copy_", [source, source, pinned]):
                        sim.copy("HtoD", source.nbytes, stream=stream, pinned=pinned)
                        if not pinned:
                            sim.synchronize(stream)

    def _zero_gradients(self) -> None:
        sim = self.sim
        sizes: dict[int, int] = {}
        for parameter in self.model.parameters:
            bucket = -1 if parameter.bucket is None else parameter.bucket
            sizes[bucket] = sizes.get(bucket, 0) + parameter.tensor.nbytes
        with (
            sim.frame("torch/optim/optimizer.py(962): zero_grad"),
            sim.annotation("Optimizer.zero_grad#AdamW.zero_grad"),
        ):
            for nbytes in sizes.values():
                with sim.op("aten::zero_", [Tensor((nbytes // 2,))]):
                    sim.fill(nbytes)

    def _forward(self) -> Tensor:
        sim = self.sim
        with (
            sim.frame("torch/nn/parallel/distributed.py(1637): forward"),
            sim.annotation("DistributedDataParallel.forward"),
        ):
            # The running statistics of the stem's norms follow rank 0.
            with sim.frame("torch/nn/parallel/distributed.py(2160): _sync_buffers"):
                self.collectives.launch("broadcast", Tensor((640,), FLOAT))
                self.collectives.wait()
            sim.order(sim.copies, sim.compute)
            return self.model(self.ops, TOKENS, PIXELS)

    def _backward(self) -> None:
        sim = self.sim
        logits = Tensor((BATCH, LENGTH, VOCABULARY))
        with sim.frame("train.py(60): loss_function"):
            self.ops.cross_entropy(logits, LABELS)
        engine = "<built-in method run_backward of torch._C._EngineBase object at 0x7f3b2d0c4e80>"
        with (
            sim.frame("torch/_tensor.py(614): backward"),
            sim.frame("torch/autograd/__init__.py(292): backward"),
        ):
            self.ops.run("fill", [_SCALAR], _SCALAR)
            with sim.frame(engine):
                self.tape.backward(self.reducer.gradient_ready, self.collectives.wait)

    def _clip_gradients(self) -> None:
        """The norm of all gradients is read back, so the host waits for the whole backward."""
        sim, vendor = self.sim, self.sim.vendor
        total = sum(parameter.tensor.elements for parameter in self.model.parameters)
        chunk = total // 8
        with sim.frame("torch/nn/utils/clip_grad.py(221): clip_grad_norm_"):
            for _ in range(8):
                inputs: list[Argument] = [Tensor((chunk,)), 2.0, None, False, 6]
                us = vendor.traffic_us(2 * chunk)
                self.ops.launch_in("aten::linalg_vector_norm", inputs, "norm", us, chunk)
            stacked = Tensor((8,), FLOAT)
            self.ops.launch_in("aten::linalg_vector_norm", [stacked, 2.0], "norm", 2.0, 8)
            self.ops.item(_SCALAR)
            us = vendor.traffic_us(4 * total)
            self.ops.launch_in("aten::_foreach_mul_", [[Tensor((total,))]], "clip", us, total)

    def _optimizer_step(self) -> None:
        sim, vendor = self.sim, self.sim.vendor
        left = sum(parameter.tensor.elements for parameter in self.model.parameters)
        with (
            sim.frame("torch/optim/optimizer.py(475): wrapper"),
            sim.annotation("Optimizer.step#AdamW.step"),
            sim.frame("torch/optim/adamw.py(220): step"),
            sim.frame("torch/optim/adam.py(802): _fused_adam"),
        ):
            while left > 0:
                chunk = min(left, _OPTIMIZER_CHUNK)
                left -= chunk
                us = vendor.traffic_us(_OPTIMIZER_BYTES * chunk)
                group: list[Argument] = [[Tensor((chunk,), FLOAT)]] * 4
                self.ops.launch_in("aten::_fused_adamw_", group, "adamw", us, chunk)

    def _average_weights(self) -> None:
        """One tiny launch a tensor: the device waits for every single one."""
        sim = self.sim
        self.ops.item(_SCALAR)
        small = [p.tensor for p in self.model.parameters if p.tensor.elements < _SMALL]
        with sim.annotation("weight_average"), sim.frame("ema.py(18): update"):
            for tensor in small * _EMA_RATES:
                inputs: list[Argument] = [tensor, tensor, 0.01]
                with sim.frame("ema.py(11): lerp"):
                    self.ops.launch_in("aten::lerp_", inputs, "lerp", 1.6, tensor.elements)

    def _report(self, logits: Tensor) -> None:
        """Metrics over all ranks, and the end of the step."""
        sim = self.sim
        sample = Tensor((256, logits.shape[-1]), FLOAT)
        with sim.annotation("metrics"), sim.frame("metrics.py(35): update"):
            self.ops.run("topk", [sample, 5, -1, True, True], sample)
            self.ops.run("sum", [sample, [0], False, None], sample)
            self.collectives.launch("all_gather", Tensor((64,), FLOAT), out_factor=16)
            self.collectives.wait()
            self.ops.item(_SCALAR)
            with sim.frame("logging.py(1519): info", us=35.0):
                pass
        with sim.frame("torch/cuda/__init__.py(985): synchronize"):
            sim.synchronize()
