from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

OPERATIONS = []
#: operations that cannot be reproduced: number, name and why
NOT_REPRODUCED = []
#: what runs an operation that a backend has no kernel for: name, function and backends
STAND_INS = []


class Operation:
    """An operation of the trace, and how long it took there.

    Attributes:
        number: its number in this script.
        name: as in the trace.
        make: makes its inputs, and returns them as a `Call`.
        arguments: its arguments, in short.
        calls: how often the trace has it.
        recorded_us: median, shortest and longest GPU time of its calls there, in microseconds.
        before_us: the same in the earlier of two traces.
        flops: floating point operations of a call, where they are known.
        moved_bytes: bytes that a call must move at the least, where they are known.
    """

    def __init__(self, number, name, make, arguments, facts):
        self.number = number
        self.name = name
        self.make = make
        self.arguments = arguments
        self.calls = facts.get("calls")
        self.recorded_us = facts.get("recorded_us")
        self.before_us = facts.get("before_us")
        self.flops = facts.get("flops")
        self.moved_bytes = facts.get("moved_bytes")


def not_reproduced(number, name, reason):
    """Add an operation to those that this script names, but cannot run."""
    NOT_REPRODUCED.append((number, name, reason))


def operation(number, name, arguments, **facts):
    """Return a decorator that adds a function to the operations of this script."""

    def add(make):
        OPERATIONS.append(Operation(number, name, make, arguments, facts))
        return make

    return add


class Call:
    """An operation with its arguments, ready to run."""

    def __init__(self, function, *arguments, **keywords):
        self.function = function
        self.arguments = list(arguments)
        self.keywords = keywords

    def __call__(self):
        return self.function(*self.arguments, **self.keywords)

    def changed(self, change):
        """Return the same call with each of its arguments changed."""
        arguments = [change_all(argument, change) for argument in self.arguments]
        keywords = {
            name: change_all(argument, change)
            for name, argument in self.keywords.items()
        }
        return Call(self.function, *arguments, **keywords)

    def tensors(self):
        """Return all tensors among the arguments."""
        return tensors_in([*self.arguments, *self.keywords.values()])


def change_all(value, change):
    """Return an argument, or a list of them, changed."""
    if isinstance(value, (list, tuple)):
        return [change_all(item, change) for item in value]
    return change(value)


def tensors_in(value):
    """Return the tensors in an argument, or in a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def stand_in(name, *backends):
    """Return a decorator for what runs an operation where a backend has no kernel for it."""

    def add(function):
        STAND_INS.append((name, function, backends))
        return function

    return add


# OPERATIONS


# STAND-INS


@stand_in("aten::cudnn_convolution", "Meta", "CPU", "CUDA")
def cudnn_convolution(
    self, weight, padding, stride, dilation, groups, *_benchmark_deterministic_tf32
):
    """Run the general convolution."""
    no_padding = [0] * len(padding)
    return torch.ops.aten.convolution.default(
        self, weight, None, stride, padding, dilation, False, no_padding, groups
    )


@stand_in("aten::miopen_convolution", "Meta", "CPU", "CUDA")
def miopen_convolution(
    self, weight, bias, padding, stride, dilation, groups, *_benchmark_deterministic
):
    """Run the general convolution."""
    no_padding = [0] * len(padding)
    return torch.ops.aten.convolution.default(
        self, weight, bias, stride, padding, dilation, False, no_padding, groups
    )


@stand_in("aten::miopen_depthwise_convolution", "Meta", "CPU", "CUDA")
def miopen_depthwise_convolution(
    self, weight, bias, padding, stride, dilation, groups, *_benchmark_deterministic
):
    """Run the general convolution."""
    no_padding = [0] * len(padding)
    return torch.ops.aten.convolution.default(
        self, weight, bias, stride, padding, dilation, False, no_padding, groups
    )


@stand_in("aten::cudnn_convolution_transpose", "Meta", "CPU", "CUDA")
def cudnn_convolution_transpose(
    self,
    weight,
    padding,
    output_padding,
    stride,
    dilation,
    groups,
    *_benchmark_deterministic_tf32,
):
    """Run the general convolution."""
    return torch.ops.aten.convolution.default(
        self, weight, None, stride, padding, dilation, True, output_padding, groups
    )


@stand_in("aten::miopen_convolution_transpose", "Meta", "CPU", "CUDA")
def miopen_convolution_transpose(
    self,
    weight,
    bias,
    padding,
    output_padding,
    stride,
    dilation,
    groups,
    *_benchmark_deterministic,
):
    """Run the general convolution."""
    return torch.ops.aten.convolution.default(
        self, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


@stand_in("aten::cudnn_batch_norm", "Meta", "CPU", "CUDA")
def cudnn_batch_norm(
    self, weight, bias, running_mean, running_var, training, momentum, epsilon
):
    """Run the general batch norm."""
    results = torch.ops.aten.native_batch_norm.default(
        self, weight, bias, running_mean, running_var, training, momentum, epsilon
    )
    return (*results, self.new_empty(0, dtype=torch.uint8))


@stand_in("aten::cudnn_batch_norm_backward", "Meta", "CPU", "CUDA")
def cudnn_batch_norm_backward(
    self, grad, weight, running_mean, running_var, mean, variance, epsilon, _reserve
):
    """Run the general backward of a batch norm."""
    statistics_of_batch = (running_mean, running_var, mean, variance)
    return torch.ops.aten.native_batch_norm_backward.default(
        grad, self, weight, *statistics_of_batch, True, epsilon, [True, True, True]
    )


@stand_in("aten::miopen_batch_norm", "Meta", "CPU", "CUDA")
def miopen_batch_norm(
    self, weight, bias, running_mean, running_var, training, momentum, epsilon
):
    """Run the general batch norm."""
    return torch.ops.aten.native_batch_norm.default(
        self, weight, bias, running_mean, running_var, training, momentum, epsilon
    )


@stand_in("aten::miopen_batch_norm_backward", "Meta", "CPU", "CUDA")
def miopen_batch_norm_backward(
    self, grad, weight, running_mean, running_var, mean, variance, epsilon
):
    """Run the general backward of a batch norm."""
    statistics_of_batch = (running_mean, running_var, mean, variance)
    return torch.ops.aten.native_batch_norm_backward.default(
        grad, self, weight, *statistics_of_batch, True, epsilon, [True, True, True]
    )


@stand_in("aten::_flash_attention_forward", "CPU")
def flash_attention_forward(
    query,
    key,
    value,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    return_debug_mask,
    *,
    scale=None,
    **_others,
):
    """Run the general attention; sequences of different lengths count as one."""
    result = general_attention((query, key, value), None, dropout_p, is_causal, scale)
    sums = query.new_zeros(query.shape[:-1], dtype=torch.float32)
    nothing = query.new_zeros(2, dtype=torch.uint64)
    return result, sums, nothing, nothing[0].clone(), query.new_empty(0)


@stand_in("aten::_efficient_attention_forward", "CPU")
def efficient_attention_forward(
    query,
    key,
    value,
    bias,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    custom_mask_type,
    compute_log_sumexp=False,
    *,
    scale=None,
    **_others,
):
    """Run the general attention; sequences of different lengths count as one."""
    is_causal = custom_mask_type != 0 and bias is None
    result = general_attention((query, key, value), bias, dropout_p, is_causal, scale)
    sums = query.new_zeros(query.shape[:-1], dtype=torch.float32)
    nothing = query.new_zeros((), dtype=torch.int64)
    return result, sums, nothing, nothing.clone(), query.shape[1], key.shape[1]


def general_attention(tensors, bias, dropout_p, is_causal, scale):
    """Return attention of tensors (batch, sequence, heads, size), or without a batch."""
    is_packed = tensors[0].dim() == 3
    batched = [tensor[None] if is_packed else tensor for tensor in tensors]
    query, key, value = (tensor.transpose(1, 2) for tensor in batched)
    result = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        bias,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    result = result.transpose(1, 2)
    return result[0] if is_packed else result


# MEASUREMENT


class Inputs:
    """Makes the inputs of an operation: the same ones in each run."""

    def __init__(self, device, scale=None):
        self.device = torch.device(device)
        self.scale = scale
        torch.manual_seed(0)

    def normal(self, sizes, dtype, strides=None, **place):
        """Return a tensor of normally distributed numbers."""
        return self._tensor(sizes, dtype, strides, place, _normal)

    def positive(self, sizes, dtype, strides=None, **place):
        """Return a tensor of positive numbers, from 0.5 to 1.5."""
        return self._tensor(sizes, dtype, strides, place, _positive)

    def share(self, sizes, dtype, strides=None, **place):
        """Return a tensor of numbers between 0 and 1."""
        return self._tensor(sizes, dtype, strides, place, _share)

    def constant(self, value, sizes, dtype, strides=None, **place):
        """Return a tensor that has one value everywhere."""

        def make(count, device):
            return torch.full((count,), value, device=device)

        return self._tensor(sizes, dtype, strides, place, make)

    def integers(self, sizes, dtype, strides=None, low=0, high=10, **place):
        """Return a tensor of whole numbers, from `low` to less than `high`."""
        high = self._scaled_limit(high)

        def make(count, device):
            return torch.randint(low, max(high, low + 1), (count,), device=device)

        return self._tensor(sizes, dtype, strides, place, make)

    def mask(self, sizes, strides=None, true_count=None, **place):
        """Return truth values: half of them true, or so many."""

        def make(count, device):
            order = torch.rand(count, device=device).argsort()
            wanted = count // 2 if true_count is None else true_count
            return order < wanted

        return self._tensor(sizes, torch.bool, strides, place, make)

    def distinct(self, sizes, dtype, strides=None, high=None, **place):
        """Return whole numbers that differ from each other, where `high` lets them."""

        def make(count, device):
            several = max(high or count, count)
            return torch.randperm(several, device=device)[:count] % max(
                high or count, 1
            )

        return self._tensor(sizes, dtype, strides, place, make)

    def ascending(self, sizes, dtype, strides=None, low=0, high=1, **place):
        """Return evenly spaced numbers, from `low` to `high`, along the last dimension."""
        steps = sizes[-1] if sizes else 1

        def make(count, device):
            row = torch.linspace(low, high, steps, device=device, dtype=torch.float64)
            return row.repeat(max(count // max(steps, 1), 1))[:count]

        return self._tensor(sizes, dtype, strides, place, make)

    def positive_definite(self, sizes, dtype, strides=None, **place):
        """Return matrices that have a Cholesky factor."""
        tensor = self.normal(sizes, dtype, strides, **place)
        if tensor.device.type != "meta":
            product = tensor @ tensor.mH
            product.diagonal(dim1=-2, dim2=-1).add_(sizes[-1])
            tensor.copy_(product)
        return tensor

    def quantized(self, sizes, dtype):
        """Return a quantized tensor; neither its scale nor its zero point is recorded."""
        return torch._empty_affine_quantized(
            sizes, scale=0.1, zero_point=0, dtype=dtype, device=self.device
        )

    def _tensor(self, sizes, dtype, strides, place, make):
        """Return a tensor whose elements a function makes, for the number of them."""
        device = torch.device("cpu") if place.get("on_host") else self.device
        if self.device.type == "meta":
            device = self.device
        sizes, strides = self._scaled(sizes, strides)
        if device.type == "meta":
            if strides is None:
                return torch.empty(sizes, dtype=dtype, device=device)
            return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        count = math.prod(sizes)
        if strides is not None and count:
            # Strides may overlap: what is made is the memory, which the tensor then looks at.
            reach = [(size - 1) * stride for size, stride in zip(sizes, strides)]
            needed = 1 + sum(reach)
        else:
            needed = count
        elements = make(needed, device).to(dtype)
        if place.get("pinned") and self.device.type == "cuda":
            elements = elements.pin_memory()
        if strides is None:
            return elements.reshape(sizes)
        return elements.as_strided(sizes, strides)

    def _scaled(self, sizes, strides):
        """Return sizes and strides after `--scale`."""
        if self.scale is None or not sizes:
            return sizes, strides
        scaled = [self.scale.of_size(size) for size in sizes]
        if strides is None or scaled == list(sizes):
            return scaled, strides
        return scaled, self.scale.of_strides(sizes, strides)

    def _scaled_limit(self, limit):
        return limit if self.scale is None else self.scale.of_size(limit)


def _normal(count, device):
    return torch.randn(count, device=device)


def _positive(count, device):
    return torch.rand(count, device=device) + 0.5


def _share(count, device):
    return torch.rand(count, device=device)


class Scale:
    """Makes the largest size of an operation smaller, wherever it occurs."""

    def __init__(self, factor, largest):
        self.factor = factor
        self.largest = largest

    def of_size(self, size):
        """Return a size, a limit or another whole number after scaling."""
        if size != self.largest:
            return size
        return max(1, int(size * self.factor))

    def of_strides(self, sizes, strides):
        """Return strides in the same order as before, without what is between rows."""
        result = list(strides)
        step = 1
        for index in sorted(range(len(sizes)), key=lambda index: strides[index]):
            if strides[index]:
                result[index] = step
                step *= self.of_size(sizes[index])
        return result

    def of_argument(self, argument):
        """Return an argument of a call after scaling."""
        if type(argument) is int and self.largest > 64:
            return self.of_size(argument)
        return argument


class SkippedError(Exception):
    """An operation cannot run here; says why."""


def package_operation(name, package):
    """Return an operation that a package adds to PyTorch.

    Raises:
        SkippedError: the package is not installed, or has no such operation.
    """
    namespace, _, short_name = name.partition("::")
    # A package may fail in any way while it is imported; that costs its operations only.
    with contextlib.suppress(Exception):
        importlib.import_module(package)
    found = getattr(getattr(torch.ops, namespace), short_name, None)
    if found is None:
        raise SkippedError(f"the package {package} is not installed, or has no {name}")
    return found


def package_call(name, package, *arguments):
    """Return the call of an operation of a package, with its arguments in recorded order."""
    packet = package_operation(name, package)
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        parameters = overload._schema.arguments
        if len(parameters) < len(arguments):
            continue
        given = list(zip(parameters, arguments))
        positional = [value for parameter, value in given if not parameter.kwarg_only]
        keywords = {
            parameter.name: value for parameter, value in given if parameter.kwarg_only
        }
        return Call(overload, *positional, **keywords)
    raise SkippedError(f"no {name} of this version takes {len(arguments)} arguments")


class Measured:
    """What a run has measured, in microseconds a call."""

    def __init__(self, times_us, back_to_back_us=None):
        self.times_us = times_us
        self.back_to_back_us = back_to_back_us

    @property
    def median(self):
        return statistics.median(self.times_us) if self.times_us else None


def largest_size(operation):
    """Return the largest size of the tensors of an operation."""
    tensors = operation.make(Inputs("meta")).tensors()
    return max((size for tensor in tensors for size in tensor.shape), default=1)


def made(operation, options):
    """Return the call of an operation, with new inputs."""
    if options.scale == 1.0:
        return operation.make(Inputs(options.device))
    scale = Scale(options.scale, largest_size(operation))
    call = operation.make(Inputs(options.device, scale))
    return call.changed(scale.of_argument)


def bytes_of(tensors):
    """Return the bytes that tensors take, each piece of memory once."""
    memory = {}
    for tensor in tensors:
        reach = [
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())
        ]
        elements = 1 + sum(reach) if tensor.numel() else 0
        memory[id(tensor)] = elements * tensor.element_size()
    return sum(memory.values())


def free_memory(device):
    """Return the bytes that are free on a device; None where that is not known."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def check_memory(operation, options):
    """Refuse an operation whose inputs need more than half of the free memory."""
    if options.device == "meta":
        return
    planned = made(operation, argparse.Namespace(device="meta", scale=options.scale))
    needed = bytes_of(planned.tensors())
    free = free_memory(options.device)
    if free is not None and needed > free / 2:
        raise SkippedError(
            f"its inputs need {needed / 1000000000.0:.1f} GB, more than half of the "
            f"{free / 1000000000.0:.1f} GB that are free; try --scale 0.5"
        )


BACKENDS = {"cuda": "CUDA", "cpu": "CPU", "meta": "Meta"}
#: the library that stand-ins are registered with: they stay as long as it does
LIBRARY = torch.library.Library("aten", "IMPL")
#: operations that a stand-in runs
REPLACED = set()


def has_kernel(name, backend):
    """Return whether PyTorch can run an operation on a backend."""
    keys = (backend, "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys
    )


def register_stand_ins(device):
    """Register the stand-ins of operations that PyTorch has no kernel for on this device."""
    used = {BACKENDS[device], "CPU"}
    for name, function, backends in STAND_INS:
        for backend in sorted(used.intersection(backends)):
            if has_kernel(name, backend):
                continue
            LIBRARY.impl(name, function, backend)
            if backend == BACKENDS[device]:
                REPLACED.add(name)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(operation, options):
    """Run an operation, and return how long it takes."""
    call = made(operation, options)
    call()
    synchronize(options.device)
    if options.device == "meta":
        return Measured([])
    if options.device == "cpu":
        return Measured(cpu_times(call))
    calls = rotation(operation, options, call)
    for warm_up in (calls * 3)[:10]:
        warm_up()
    torch.cuda.synchronize()
    return Measured(gpu_times(calls), back_to_back_time(calls))


def cpu_times(call, most=5, seconds=1.0):
    """Return the times of up to five calls, or of those of a second."""
    times = []
    while len(times) < most and sum(times) < seconds * 1e6:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def rotation(operation, options, call):
    """Return calls with different inputs, which together do not fit into the L2 cache."""
    if options.warm:
        return [call]
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 2**27
    own_bytes = max(bytes_of(call.tensors()), 1)
    count = math.ceil(2 * cache / own_bytes)
    affordable = int(free_memory(options.device) / 4 / own_bytes)
    more = min(count, affordable, 256) - 1
    return [call, *(made(operation, options) for _ in range(more))]


def back_to_back_time(calls, least_ms=10.0):
    """Return the time of a call among calls without a pause, by the clock of the GPU."""
    repeats = 10
    while True:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        for number in range(repeats):
            calls[number % len(calls)]()
        end.record()
        torch.cuda.synchronize()
        elapsed_ms = start.elapsed_time(end)
        if elapsed_ms >= least_ms or repeats >= 100_000:
            return elapsed_ms * 1e3 / repeats
        repeats *= max(2, min(10, math.ceil(least_ms / max(elapsed_ms, 0.01))))


def gpu_times(calls, count=20):
    """Return the GPU time of calls, as the profiler records it for their kernels."""
    with recorder("cuda") as profiler:
        for number in range(count):
            with torch.profiler.record_function("measured call"):
                calls[number % len(calls)]()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return kernel_times(events)


def kernel_times(events):
    """Return the time of the kernels that each measured call has launched, in microseconds."""
    marks = [
        event
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] == "measured call"
    ]
    launches = {}
    kernels = {}
    for event in events:
        correlation = event.get("args", {}).get("correlation")
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            launches[correlation] = event["ts"]
        elif event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.setdefault(correlation, []).append((event["ts"], event["dur"]))
    times = []
    for mark in marks:
        end = mark["ts"] + mark["dur"]
        intervals = [
            interval
            for correlation, start in launches.items()
            if mark["ts"] <= start <= end
            for interval in kernels.get(correlation, ())
        ]
        times.append(united_length(intervals))
    return times


def united_length(intervals):
    """Return how long at least one of some intervals (start, duration) lasts."""
    total = 0.0
    reached = -math.inf
    for start, duration in sorted(intervals):
        end = start + duration
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def recorder(device):
    """Return a profiler that records shapes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True)


def record(operations, options):
    """Run each operation once with new inputs, and write a trace of that.

    Returns:
        Why an operation could not be recorded, by its number.
    """
    calls = {}
    failures = {}
    for chosen in operations:
        try:
            check_memory(chosen, options)
            calls[chosen.number] = made(chosen, options)
        except Exception as error:  # noqa: BLE001  # any kind
            failures[chosen.number] = one_line(error)
    with recorder(options.device) as profiler:
        for chosen in operations:
            if chosen.number not in calls:
                continue
            label = f"operation {chosen.number}: {chosen.name}"
            try:
                with torch.profiler.record_function(label):
                    calls[chosen.number]()
            except Exception as error:  # noqa: BLE001  # any kind
                failures[chosen.number] = one_line(error)
        synchronize(options.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if options.trace.endswith(".gz"):
            with path.open("rb") as text, gzip.open(options.trace, "wb") as packed:
                shutil.copyfileobj(text, packed)
        else:
            shutil.copyfile(path, options.trace)
    return failures


def check(operation, options):
    """Compare the results of an operation with those of the same operation in float64.

    Returns:
        Whether they agree (None: there is no reference), and a sentence.
    """
    call = made(operation, options)
    if torch.Tag.nondeterministic_seeded in getattr(call.function, "tags", ()):
        return None, "no reference: the operation is random"
    if "::empty" in operation.name or "::new_empty" in operation.name:
        return None, "no reference: its result has no defined values"
    try:
        reference = call.changed(as_float64)
        expected = results_of(reference)
    except Exception as error:  # noqa: BLE001  # any kind
        return None, f"no reference: {one_line(error)}"
    results = results_of(call)
    pairs = [
        (result.cpu(), wanted)
        for result, wanted in zip(results, expected)
        if is_float(result) and is_float(wanted) and result.shape == wanted.shape
    ]
    if not pairs:
        return None, "no reference: no result is a float"
    rounding = max(rounding_of(result.dtype, operation) for result, _ in pairs)
    worst = max(relative_difference(result, wanted) for result, wanted in pairs)
    sentence = f"differs from float64 by {worst / rounding:.2g} roundings"
    return worst <= 10 * rounding, sentence


def results_of(call):
    """Run a call, and return its results and the arguments that it changes."""
    results = tensors_in(call())
    schema = getattr(call.function, "_schema", None)
    if schema is None:
        return results
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, call.arguments), **call.keywords)
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            results += tensors_in(given.get(argument.name))
    return results


def as_float64(argument):
    """Return an argument of the reference: a float in float64, on the CPU."""
    if isinstance(argument, torch.Tensor):
        argument = argument.detach().clone().cpu()
        if argument.is_complex():
            return argument.to(torch.complex128)
        return argument.double() if argument.is_floating_point() else argument
    if isinstance(argument, torch.dtype) and argument.is_floating_point:
        return torch.float64
    return argument


def is_float(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def rounding_of(dtype, operation):
    """Return the rounding of a type; that of TF32 where PyTorch may compute with it."""
    is_convolution = "convolution" in operation.name
    allows_tf32 = torch.backends.cuda.matmul.allow_tf32
    if is_convolution:
        allows_tf32 = torch.backends.cudnn.allow_tf32
    if dtype == torch.float32 and torch.cuda.is_available() and allows_tf32:
        return 2.0**-10
    return torch.finfo(dtype).eps


def relative_difference(result, expected):
    """Return the norm of the difference, as a share of the norm of the expected result."""
    kind = torch.complex128 if result.is_complex() else torch.float64
    result = result.to(kind)
    expected = expected.to(kind)
    same = (result == expected) | (result.isnan() & expected.isnan())
    difference = torch.where(same, torch.zeros_like(expected), result - expected)
    size = torch.where(expected.isfinite(), expected, torch.zeros_like(expected))
    norm = float(torch.linalg.vector_norm(size))
    distance = float(torch.linalg.vector_norm(difference))
    if not math.isfinite(distance):
        return math.inf
    return distance / norm if norm else distance


def one_line(error):
    """Return an error as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def clocks():
    """Return the clocks of the GPU, where a tool of its vendor tells them."""
    commands = (
        [
            "nvidia-smi",
            "--query-gpu=name,clocks.sm,clocks.mem",
            "--format=csv,noheader",
        ],
        ["amd-smi", "metric", "--clock"],
    )
    for command in commands:
        if shutil.which(command[0]) is None:
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(  # noqa: S603  # one of the two above
                command, capture_output=True, text=True, timeout=20, check=True
            )
            lines = [
                line.strip() for line in answer.stdout.splitlines() if line.strip()
            ]
            return f"clocks ({command[0]}): " + "; ".join(lines[:8])
    return "clocks: unknown"


def spread_text(median, shortest, longest):
    """Return `12.3 (11.9-14.0)`."""
    return f"{median:,.1f} ({shortest:,.1f}-{longest:,.1f})"


def row_of(operation, measured, options):
    """Return the row of the table for an operation that ran."""
    row = {
        "N": str(operation.number),
        "operation": operation.name,
        "arguments": operation.arguments,
        "calls": str(operation.calls or ""),
    }
    if operation.before_us is not None:
        row["before µs"] = spread_text(*operation.before_us)
    if operation.recorded_us is not None:
        row["recorded µs"] = spread_text(*operation.recorded_us)
    if operation.name in REPLACED:
        row["note"] = "the general operation stands in"
    median = measured.median
    if median is None:
        return row | {"result": "ran"}
    row["measured µs"] = spread_text(
        median, min(measured.times_us), max(measured.times_us)
    )
    if measured.back_to_back_us is not None:
        row["back to back µs"] = f"{measured.back_to_back_us:,.1f}"
    if options.scale != 1.0 or not median:
        return row
    if operation.recorded_us is not None and options.device == "cuda":
        recorded_median = operation.recorded_us[0]
        if recorded_median:
            row["ratio"] = f"{median / recorded_median:.2f}"
    if operation.flops:
        row["TFLOP/s"] = f"{operation.flops / median / 1e6:,.2f}"
    if operation.moved_bytes:
        row["GB/s"] = f"{operation.moved_bytes / median / 1e3:,.1f}"
    return row


def print_table(rows):
    """Print rows below each other; a column that no row has is left out."""
    headers = list(dict.fromkeys(header for row in rows for header in row))
    widths = {
        header: max(len(header), *(len(row.get(header, "")) for row in rows))
        for header in headers
    }
    for row in [dict(zip(headers, headers)), *rows]:
        cells = []
        for header in headers:
            text = row.get(header, "")
            width = widths[header]
            is_text = header in ("operation", "arguments", "note", "result", "check")
            cells.append(text.ljust(width) if is_text else text.rjust(width))
        print("  ".join(cells).rstrip())


def parsed_options():
    parser = argparse.ArgumentParser(
        description="Run operations of a trace in isolation, and compare their times."
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu", "meta"), default=default)
    parser.add_argument(
        "--only", type=int, action="append", metavar="N", help="run only operation N"
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace of each operation, run once"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the results with float64"
    )
    parser.add_argument(
        "--warm", action="store_true", help="use the same inputs for each call"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="scale down the largest size, e.g. 0.5"
    )
    return parser.parse_args()


def chosen_operations(options):
    """Return the operations that `--only` names; all by default."""
    if not options.only:
        return OPERATIONS
    chosen = [entry for entry in OPERATIONS if entry.number in options.only]
    unknown = set(options.only) - {entry.number for entry in chosen}
    if unknown:
        sys.exit(
            f"--only {min(unknown)}: this script has no operation with this number"
        )
    return chosen


def print_machine(device):
    """Print what the operations run on."""
    if device == "cuda":
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
        print(clocks())
    else:
        print(f"{device}, PyTorch {torch.__version__}")


def run(operation, options):
    """Run an operation, and return its row of the table, and whether its results are right."""
    check_memory(operation, options)
    row = row_of(operation, measure(operation, options), options)
    if not options.check or options.device == "meta":
        return row, True
    agrees, sentence = check(operation, options)
    row["check"] = sentence if agrees is not False else f"WRONG: {sentence}"
    return row, agrees is not False


def main():
    options = parsed_options()
    if not 0.0 < options.scale <= 1.0:
        sys.exit("--scale: give a factor above 0 and up to 1, such as 0.5")
    operations = chosen_operations(options)
    print_machine(options.device)
    if not options.only:
        for number, name, reason in NOT_REPRODUCED:
            print(f"{number} {name}: skipped: {reason}")
    register_stand_ins(options.device)
    rows = []
    succeeded = True
    for entry in operations:
        try:
            row, is_right = run(entry, options)
            rows.append(row)
            succeeded = succeeded and is_right
        except SkippedError as error:
            print(f"{entry.number} {entry.name}: skipped: {one_line(error)}")
        except Exception as error:  # noqa: BLE001  # of any kind: the others still run
            print(f"{entry.number} {entry.name}: failed: {one_line(error)}")
            succeeded = False
    if rows:
        print_table(rows)
    if options.trace:
        for number, reason in record(operations, options).items():
            print(f"{number}: not in the trace: {reason}")
        print(f"{options.trace}: written")
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
