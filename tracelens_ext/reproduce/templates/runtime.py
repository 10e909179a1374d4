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

#: The operations of this script, in order.
OPERATIONS = []
#: Operations that this script cannot run: their number, name and the reason.
NOT_REPRODUCED = []
#: Replacements for operations without a kernel: the name, function and backends of each.
STAND_INS = []


class Operation:
    """An operation of the trace and its recorded times.

    Attributes:
        number: its number in this script.
        name: its name in the trace.
        make: creates its inputs and returns them as a `Call`.
        arguments: a summary of its arguments.
        calls: number of calls in the trace.
        recorded_us: median, shortest and longest recorded GPU time, in microseconds.
        before_us: the same in the earlier of two compared traces.
        flops: floating-point operations of one call, if known.
        moved_bytes: minimum number of bytes that one call moves, if known.
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


class Call:
    """A function of `torch.ops` with its arguments."""

    def __init__(self, function, *arguments, **keywords):
        self.function = function
        self.arguments = list(arguments)
        self.keywords = keywords

    def __call__(self):
        return self.function(*self.arguments, **self.keywords)

    def with_arguments(self, change):
        """Return the same call with `change` applied to each argument."""
        arguments = [apply(change, argument) for argument in self.arguments]
        keywords = {
            name: apply(change, argument) for name, argument in self.keywords.items()
        }
        return Call(self.function, *arguments, **keywords)

    def tensors(self):
        """Return all tensors among the arguments."""
        return tensors_in(self.arguments + list(self.keywords.values()))


def operation(number, name, arguments, **facts):
    """Register the decorated function as an operation of this script."""

    def register(make):
        OPERATIONS.append(Operation(number, name, make, arguments, facts))
        return make

    return register


def not_reproduced(number, name, reason):
    """Register an operation of the trace that this script cannot run."""
    NOT_REPRODUCED.append((number, name, reason))


def stand_in(name, *backends):
    """Register the decorated function for backends without a kernel for an operation."""

    def register(function):
        STAND_INS.append((name, function, backends))
        return function

    return register


def apply(change, argument):
    """Apply a function to an argument, or to each item of a list."""
    if isinstance(argument, (list, tuple)):
        return [apply(change, item) for item in argument]
    return change(argument)


def tensors_in(value):
    """Return the tensors in an argument or a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    tensors = []
    if isinstance(value, (list, tuple)):
        for item in value:
            tensors += tensors_in(item)
    return tensors


# OPERATIONS


# STAND-INS


@stand_in("aten::cudnn_convolution", "Meta", "CPU", "CUDA")
def cudnn_convolution(
    self, weight, padding, stride, dilation, groups, *_benchmark_deterministic_tf32
):
    """Run the general convolution."""
    return convolve(self, weight, None, stride, padding, dilation, groups)


@stand_in("aten::cudnn_convolution_relu", "Meta", "CPU", "CUDA")
def cudnn_convolution_relu(self, weight, bias, stride, padding, dilation, groups):
    """Run the general convolution and ReLU."""
    return convolve(self, weight, bias, stride, padding, dilation, groups).relu_()


@stand_in("aten::cudnn_convolution_add_relu", "Meta", "CPU", "CUDA")
def cudnn_convolution_add_relu(
    self, weight, z, alpha, bias, stride, padding, dilation, groups
):
    """Run the general convolution, addition and ReLU."""
    result = convolve(self, weight, bias, stride, padding, dilation, groups)
    scale = 1 if alpha is None else alpha
    return result.add_(z, alpha=scale).relu_()


@stand_in("aten::miopen_convolution", "Meta", "CPU", "CUDA")
def miopen_convolution(
    self, weight, bias, padding, stride, dilation, groups, *_benchmark_deterministic
):
    """Run the general convolution."""
    return convolve(self, weight, bias, stride, padding, dilation, groups)


@stand_in("aten::miopen_convolution_relu", "Meta", "CPU", "CUDA")
def miopen_convolution_relu(self, weight, bias, stride, padding, dilation, groups):
    """Run the general convolution and ReLU."""
    return convolve(self, weight, bias, stride, padding, dilation, groups).relu_()


@stand_in("aten::miopen_convolution_add_relu", "Meta", "CPU", "CUDA")
def miopen_convolution_add_relu(
    self, weight, z, alpha, bias, stride, padding, dilation, groups
):
    """Run the general convolution, addition and ReLU."""
    result = convolve(self, weight, bias, stride, padding, dilation, groups)
    scale = 1 if alpha is None else alpha
    return result.add_(z, alpha=scale).relu_()


@stand_in("aten::miopen_depthwise_convolution", "Meta", "CPU", "CUDA")
def miopen_depthwise_convolution(
    self, weight, bias, padding, stride, dilation, groups, *_benchmark_deterministic
):
    """Run the general convolution."""
    return convolve(self, weight, bias, stride, padding, dilation, groups)


@stand_in("aten::_conv_depthwise2d", "Meta", "CPU")
def conv_depthwise2d(self, weight, _kernel_size, bias, stride, padding, dilation):
    """Run the general convolution with a group per channel."""
    channels = self.shape[-3]
    return convolve(self, weight, bias, stride, padding, dilation, channels)


@stand_in("aten::conv_depthwise3d", "Meta", "CPU")
def conv_depthwise3d(self, weight, _kernel_size, bias, stride, padding, dilation):
    """Run the general convolution with a group per channel."""
    channels = self.shape[-4]
    return convolve(self, weight, bias, stride, padding, dilation, channels)


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
    """Run the general transposed convolution."""
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
    """Run the general transposed convolution."""
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
    """Run the general batch norm backward."""
    batch_statistics = (running_mean, running_var, mean, variance)
    return torch.ops.aten.native_batch_norm_backward.default(
        grad, self, weight, *batch_statistics, True, epsilon, [True, True, True]
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
    """Run the general batch norm backward."""
    batch_statistics = (running_mean, running_var, mean, variance)
    return torch.ops.aten.native_batch_norm_backward.default(
        grad, self, weight, *batch_statistics, True, epsilon, [True, True, True]
    )


@stand_in("aten::_softmax", "Meta", "CPU")
def softmax_to_float(self, dim, half_to_float):
    """Compute the softmax in float32: only CUDA converts within the operation."""
    values = self.float() if half_to_float else self
    exponentials = (values - values.amax(dim, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim, keepdim=True)


@stand_in("aten::_log_softmax", "Meta", "CPU")
def log_softmax_to_float(self, dim, half_to_float):
    """Compute the log softmax in float32: only CUDA converts within the operation."""
    values = self.float() if half_to_float else self
    return values - values.logsumexp(dim, keepdim=True)


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
    """Run general attention, with packed sequences as a single one."""
    mask = causal_mask(query, key, to_last=True) if is_causal else None
    result = attention(query, key, value, mask, dropout_p, scale)
    not_computed = query.new_empty(0)
    no_seed = query.new_zeros(2, dtype=torch.uint64)
    return result, not_computed, no_seed, no_seed[0].clone(), not_computed.clone()


@stand_in("aten::_flash_attention_backward", "CPU")
def flash_attention_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    rng_state,
    unused,
    *,
    scale=None,
    **_others,
):
    """Run the backward of general attention, with packed sequences as a single one."""
    mask = causal_mask(query, key, to_last=True) if is_causal else None
    return attention_gradients(grad_out, query, key, value, mask, scale)


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
    """Run general attention, with packed sequences as a single one."""
    mask = efficient_mask(query, key, bias, custom_mask_type)
    result = attention(query, key, value, mask, dropout_p, scale)
    not_computed = query.new_empty(0)
    no_seed = query.new_zeros((), dtype=torch.int64)
    lengths = (query.shape[1], key.shape[1])
    return (result, not_computed, no_seed, no_seed.clone()) + lengths


@stand_in("aten::_efficient_attention_backward", "CPU")
def efficient_attention_backward(
    grad_out,
    query,
    key,
    value,
    bias,
    out,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    logsumexp,
    dropout_p,
    philox_seed,
    philox_offset,
    custom_mask_type,
    bias_requires_grad,
    *,
    scale=None,
    **_others,
):
    """Run the backward of general attention, with packed sequences as a single one."""
    mask = efficient_mask(query, key, bias, custom_mask_type)
    gradients = attention_gradients(grad_out, query, key, value, mask, scale)
    bias_gradient_not_computed = query.new_empty(0)
    return gradients + (bias_gradient_not_computed,)


def convolve(image, weight, bias, stride, padding, dilation, groups):
    """Run the general convolution, which is not transposed."""
    no_output_padding = [0] * len(padding)
    return torch.ops.aten.convolution.default(
        image, weight, bias, stride, padding, dilation, False, no_output_padding, groups
    )


def causal_mask(query, key, to_last):
    """Return an additive mask that hides later keys.

    If there are more keys than queries, the last query sees all of them (`to_last`), or the first
    query sees one.
    """
    queries = query.shape[-3]
    keys = key.shape[-3]
    diagonal = keys - queries if to_last else 0
    hidden = query.new_full((queries, keys), -math.inf)
    return hidden.triu(diagonal + 1)


def efficient_mask(query, key, bias, custom_mask_type):
    """Return the additive mask of `_efficient_attention_forward`, or None for none."""
    if custom_mask_type == 0:
        return bias
    mask = causal_mask(query, key, to_last=custom_mask_type == 2)
    return mask if bias is None else bias + mask


def attention(query, key, value, mask, dropout_p, scale):
    """Run attention on tensors of shape (batch, sequence, heads, size), batch optional."""
    is_packed = query.dim() == 3
    if is_packed:
        query = query[None]
        key = key[None]
        value = value[None]
    group = query.shape[2] // key.shape[2]  # query heads that share a key head
    result = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.repeat_interleave(group, 2).transpose(1, 2),
        value.repeat_interleave(group, 2).transpose(1, 2),
        mask,
        dropout_p,
        scale=scale,
    )
    result = result.transpose(1, 2)
    return result[0] if is_packed else result


def attention_gradients(grad_out, query, key, value, mask, scale):
    """Return the gradients of attention without dropout for query, key and value."""
    grad = grad_out.transpose(-3, -2)
    query = query.transpose(-3, -2)
    group = query.shape[-3] // key.shape[-2]  # query heads that share a key head
    key = key.transpose(-3, -2).repeat_interleave(group, -3)
    value = value.transpose(-3, -2).repeat_interleave(group, -3)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = query @ key.mT * scale
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    grad_weights = grad @ value.mT
    mean = (grad_weights * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - mean) * scale
    grad_query = grad_scores @ key
    grad_key = (grad_scores.mT @ query).unflatten(-3, (-1, group)).sum(-3)
    grad_value = (weights.mT @ grad).unflatten(-3, (-1, group)).sum(-3)
    gradients = (grad_query, grad_key, grad_value)
    return tuple(gradient.transpose(-3, -2) for gradient in gradients)


# MEASUREMENT


class Inputs:
    """Creates the inputs of an operation, with the same values in each run."""

    def __init__(self, device, scale=None):
        self.device = torch.device(device)
        self.scale = scale
        torch.manual_seed(0)

    def normal(self, sizes, dtype, strides=None, **place):
        """Return a tensor of normally distributed numbers."""
        return self._tensor(sizes, dtype, strides, place, torch.randn)

    def positive(self, sizes, dtype, strides=None, **place):
        """Return a tensor of numbers from 0.5 to 1.5."""

        def values(count, *, device):
            return torch.rand(count, device=device) + 0.5

        return self._tensor(sizes, dtype, strides, place, values)

    def share(self, sizes, dtype, strides=None, **place):
        """Return a tensor of numbers between 0 and 1."""
        return self._tensor(sizes, dtype, strides, place, torch.rand)

    def constant(self, value, sizes, dtype, strides=None, **place):
        """Return a tensor with the same value everywhere."""

        def values(count, *, device):
            return torch.full((count,), value, device=device)

        return self._tensor(sizes, dtype, strides, place, values)

    def integers(self, sizes, dtype, strides=None, low=0, high=10, **place):
        """Return a tensor of integers of at least `low` and less than `high`."""
        limit = max(self._scaled_limit(high), low + 1)

        def values(count, *, device):
            return torch.randint(low, limit, (count,), device=device)

        return self._tensor(sizes, dtype, strides, place, values)

    def mask(self, sizes, strides=None, true_count=None, **place):
        """Return booleans, of which `true_count` are true: half of them by default."""

        def values(count, *, device):
            wanted = count // 2 if true_count is None else true_count
            order = torch.rand(count, device=device).argsort()
            return order < wanted

        return self._tensor(sizes, torch.bool, strides, place, values)

    def distinct(self, sizes, dtype, strides=None, high=None, **place):
        """Return integers below `high`, all different if there are enough of them."""

        def values(count, *, device):
            limit = max(high or count, 1)
            shuffled = torch.randperm(max(limit, count), device=device)
            return shuffled[:count] % limit

        return self._tensor(sizes, dtype, strides, place, values)

    def ascending(self, sizes, dtype, strides=None, low=0, high=1, **place):
        """Return evenly spaced numbers from `low` to `high` along the last dimension."""
        steps = sizes[-1] if sizes else 1

        def values(count, *, device):
            row = torch.linspace(low, high, steps, device=device, dtype=torch.float64)
            rows = max(count // max(steps, 1), 1)
            return row.repeat(rows)[:count]

        return self._tensor(sizes, dtype, strides, place, values)

    def positive_definite(self, sizes, dtype, strides=None, **place):
        """Return positive definite matrices."""
        matrices = self.normal(sizes, dtype, strides, **place)
        if matrices.device.type == "meta":
            return matrices
        product = matrices @ matrices.mH
        product.diagonal(dim1=-2, dim2=-1).add_(sizes[-1])
        return matrices.copy_(product)

    def quantized(self, sizes, dtype):
        """Return a quantized tensor; traces have neither its scale nor its zero point."""
        return torch._empty_affine_quantized(
            sizes, scale=0.1, zero_point=0, dtype=dtype, device=self.device
        )

    def number(self, value, dtype):
        """Return a number as a tensor without dimensions, which stays on the CPU."""
        device = "meta" if self.device.type == "meta" else "cpu"
        return torch.tensor(value, dtype=dtype, device=device)

    def _tensor(self, sizes, dtype, strides, place, values):
        """Return a tensor whose elements `values(count, device=…)` creates."""
        sizes, strides = self._scaled(sizes, strides)
        device = self.device
        if device.type == "meta" and strides is None:
            return torch.empty(sizes, dtype=dtype, device=device)
        if device.type == "meta":
            return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        if place.get("on_host"):
            device = torch.device("cpu")
        memory = values(elements_in_memory(sizes, strides), device=device).to(dtype)
        if place.get("pinned") and self.device.type == "cuda":
            memory = memory.pin_memory()
        if strides is None:
            return memory.reshape(sizes)
        return memory.as_strided(sizes, strides)

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


def elements_in_memory(sizes, strides):
    """Return how many elements of memory a tensor spans; strides may overlap."""
    count = math.prod(sizes)
    if strides is None or not count:
        return count
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))


class Scale:
    """Reduces the largest size of an operation wherever it occurs."""

    def __init__(self, factor, largest):
        self.factor = factor
        self.largest = largest

    def of_size(self, size):
        """Return a size after scaling."""
        if size != self.largest:
            return size
        return max(1, int(size * self.factor))

    def of_strides(self, sizes, strides):
        """Return strides in the same order as before, without padding between rows."""
        scaled = list(strides)
        step = 1
        for dimension in sorted(range(len(sizes)), key=strides.__getitem__):
            if strides[dimension]:
                scaled[dimension] = step
                step *= self.of_size(sizes[dimension])
        return scaled

    def of_argument(self, argument):
        """Return an argument after scaling."""
        if type(argument) is int and self.largest > 64:
            return self.of_size(argument)
        return argument


class SkippedError(Exception):
    """An operation cannot run here; the message says why."""


def package_call(name, package, *arguments):
    """Return the call of an operation that a package adds to PyTorch.

    Raises:
        SkippedError: the package is not installed or has no such operation.
    """
    # Whatever goes wrong while importing a package affects only its own operations.
    with contextlib.suppress(Exception):
        importlib.import_module(package)
    namespace, _, short_name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), short_name, None)
    if packet is None:
        raise SkippedError(f"the package {package} is not installed or has no {name}")
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        parameters = overload._schema.arguments
        if len(parameters) < len(arguments):
            continue
        positional = []
        keywords = {}
        for parameter, argument in zip(parameters, arguments):
            if parameter.kwarg_only:
                keywords[parameter.name] = argument
            else:
                positional.append(argument)
        return Call(overload, *positional, **keywords)
    raise SkippedError(
        f"the installed {package} has no {name} with {len(arguments)} arguments"
    )


def make_call(operation, device, factor=1.0):
    """Return the call of an operation with new inputs, scaled by a factor."""
    if factor == 1.0:
        return operation.make(Inputs(device))
    original = operation.make(Inputs("meta")).tensors()
    sizes = [size for tensor in original for size in tensor.shape]
    scale = Scale(factor, max(sizes, default=1))
    call = operation.make(Inputs(device, scale))
    return call.with_arguments(scale.of_argument)


def bytes_of(tensors):
    """Return the memory that tensors take, in bytes."""
    distinct_tensors = {id(tensor): tensor for tensor in tensors}
    total = 0
    for tensor in distinct_tensors.values():
        if tensor.layout != torch.strided:
            continue
        elements = elements_in_memory(tensor.shape, tensor.stride())
        total += elements * tensor.element_size()
    return total


def free_memory(device):
    """Return the free memory of a device in bytes, or None if it is unknown."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return free
    with contextlib.suppress(OSError, ValueError):
        return available_memory_of_linux()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def available_memory_of_linux():
    """Return the memory that programs can still use, caches included, in bytes.

    Raises:
        OSError: this is not Linux.
        ValueError: the kernel does not report it.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name != "MemAvailable":
            continue
        kilobytes, _ = amount.split()
        return int(kilobytes) * 1024
    raise ValueError("no MemAvailable in /proc/meminfo")


def check_memory(operation, options):
    """Refuse an operation whose inputs need more than half of the free memory.

    Raises:
        SkippedError: the inputs are too large.
    """
    if options.device == "meta":
        return
    free = free_memory(options.device)
    if free is None:
        return
    planned_call = make_call(operation, "meta", options.scale)
    needed = bytes_of(planned_call.tensors())
    if needed <= free / 2:
        return
    needed_gb = needed / 1e9
    free_gb = free / 1e9
    raise SkippedError(
        f"its inputs need {needed_gb:,.1f} GB, more than half of the"
        f" {free_gb:,.1f} GB of free memory; try --scale 0.5"
    )


BACKENDS = {"cuda": "CUDA", "cpu": "CPU", "meta": "Meta"}
#: Stand-ins are registered here, and stay as long as this object.
LIBRARY = torch.library.Library("aten", "IMPL")
#: Names of operations that stand-ins run.
REPLACED = set()
#: Names of operations that have a kernel, but not for the arguments in this script.
INCOMPLETE = ("aten::_softmax", "aten::_log_softmax")
SHARED_KERNELS = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def has_kernel(name, backend):
    """Return whether PyTorch has a kernel for an operation on a backend."""
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        for key in (backend,) + SHARED_KERNELS
    )


def register_stand_ins(device):
    """Register the stand-ins for operations that have no kernel on this device."""
    own_backend = BACKENDS[device]
    for name, function, backends in STAND_INS:
        # The reference of --check runs on the CPU, whatever the device.
        for backend in sorted({own_backend, "CPU"}.intersection(backends)):
            if has_kernel(name, backend) and name not in INCOMPLETE:
                continue
            LIBRARY.impl(name, function, backend)
            if backend == own_backend:
                REPLACED.add(name)


#: Tags of operations whose results depend on values.
VALUE_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def why_it_cannot_run(error, call, device):
    """Return why an operation cannot run on a device at all, or None for another error."""
    name = getattr(call.function, "_name", "")
    if device == "meta" and is_value_dependent(call.function):
        return "its result depends on values, which the meta device does not have"
    if not isinstance(error, NotImplementedError) or not name.startswith("aten::"):
        return None
    if has_kernel(name, BACKENDS[device]):
        return None
    return f"PyTorch {torch.__version__} has no {device} kernel for it"


def is_value_dependent(function):
    """Return whether the shape or type of the result depends on values."""
    name = getattr(function, "_name", "")
    if name.startswith(("aten::index", "aten::_unsafe_index")):
        return True  # if an index is a mask
    tags = set(getattr(function, "tags", ()))
    return not tags.isdisjoint(VALUE_DEPENDENT)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Times:
    """Measured times of an operation in microseconds.

    Attributes:
        calls: the time of each call; empty on the meta device.
        back_to_back: mean time of calls without a pause between them; None on a CPU.
    """

    def __init__(self, calls, back_to_back=None):
        self.calls = calls
        self.back_to_back = back_to_back


def measure(operation, options):
    """Run an operation and return its times.

    Raises:
        SkippedError: it cannot run on this device.
    """
    call = make_call(operation, options.device, options.scale)
    try:
        call()
        synchronize(options.device)
    except Exception as error:
        reason = why_it_cannot_run(error, call, options.device)
        if reason is None:
            raise
        raise SkippedError(reason) from error
    if options.device == "meta":
        return Times([])
    if options.device == "cpu":
        return Times(cpu_times(call))
    calls = rotation(operation, options, call)
    for warm_up in (calls * 3)[:10]:
        warm_up()
    torch.cuda.synchronize()
    return Times(gpu_times(calls), back_to_back_time(calls))


def cpu_times(call, most=5, seconds=1.0):
    """Return the times of up to five calls, or of those that a second allows."""
    times = []
    while len(times) < most and sum(times) < seconds * 1e6:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def rotation(operation, options, call):
    """Return calls with different inputs, together twice as large as the L2 cache."""
    if options.warm:
        return [call]
    properties = torch.cuda.get_device_properties(0)
    cache = getattr(properties, "L2_cache_size", 0) or 2**27
    own_bytes = max(bytes_of(call.tensors()), 1)
    needed = math.ceil(2 * cache / own_bytes)
    affordable = int(free_memory(options.device) / 4 / own_bytes)
    calls = [call]
    while len(calls) < min(needed, affordable, 256):
        calls.append(make_call(operation, options.device, options.scale))
    return calls


def back_to_back_time(calls, least_ms=10.0):
    """Return the mean time of calls without a pause, measured with CUDA events."""
    repeats = 10
    elapsed_ms = time_of_repeats(calls, repeats)
    while elapsed_ms < least_ms and repeats < 100_000:
        missing = math.ceil(least_ms / max(elapsed_ms, 0.01))
        repeats *= max(2, min(10, missing))
        elapsed_ms = time_of_repeats(calls, repeats)
    return elapsed_ms * 1e3 / repeats


def time_of_repeats(calls, repeats):
    """Return the time of calls one after the other, in milliseconds."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for number in range(repeats):
        call = calls[number % len(calls)]
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


#: The name of the range around each call whose kernels are timed.
MEASURED = "measured call"


def gpu_times(calls, count=20):
    """Return the GPU times of calls, as the profiler records them for their kernels."""
    with recorder("cuda") as profiler:
        for number in range(count):
            call = calls[number % len(calls)]
            with torch.profiler.record_function(MEASURED):
                call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    return kernel_times(trace["traceEvents"])


def kernel_times(events):
    """Return the time of the kernels that each measured call launched, in microseconds."""
    marks = []
    launches = {}
    kernels = {}
    for event in events:
        category = event.get("cat")
        correlation = event.get("args", {}).get("correlation")
        if category == "user_annotation" and event["name"] == MEASURED:
            marks.append(event)
        elif category in ("cuda_runtime", "cuda_driver"):
            launches[correlation] = event["ts"]
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            interval = (event["ts"], event["dur"])
            kernels.setdefault(correlation, []).append(interval)
    times = []
    for mark in marks:
        end = mark["ts"] + mark["dur"]
        intervals = []
        for correlation, start in launches.items():
            if mark["ts"] <= start <= end:
                intervals += kernels.get(correlation, [])
        times.append(united_length(intervals))
    return times


def united_length(intervals):
    """Return how long at least one of the intervals (start, duration) lasts."""
    total = 0.0
    covered_until = -math.inf
    for start, duration in sorted(intervals):
        end = start + duration
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total


def recorder(device):
    """Return a profiler that records shapes."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU]
    if device == "cuda":
        activities.append(activity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True)


#: PyTorch's profiler records longer lists of tensors as empty lists.
LONGEST_RECORDED_LIST = 30


def record(operations, options):
    """Run each operation once with new inputs and write a trace of that.

    Returns:
        What the trace lacks: a sentence for each operation, by its number.
    """
    calls = {}
    lacks = {}
    for chosen in operations:
        try:
            check_memory(chosen, options)
            call = make_call(chosen, options.device, options.scale)
        except Exception as error:  # noqa: BLE001  # the others are still recorded
            lacks[chosen.number] = f"not in the trace: {one_line(error)}"
            continue
        calls[chosen.number] = call
        longest = max(map(list_length, call.arguments), default=0)
        if longest > LONGEST_RECORDED_LIST:
            lacks[chosen.number] = (
                f"the trace lacks its list of {longest} tensors: PyTorch's profiler"
                f" records lists of more than {LONGEST_RECORDED_LIST} tensors as empty"
            )
    with recorder(options.device) as profiler:
        for chosen in operations:
            if chosen.number not in calls:
                continue
            label = f"operation {chosen.number}: {chosen.name}"
            # The table has the error already; the trace has the operation all the same.
            mark = torch.profiler.record_function(label)
            with contextlib.suppress(Exception), mark:
                calls[chosen.number]()
        synchronize(options.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        opened = gzip.open if options.trace.endswith(".gz") else open
        with path.open("rb") as source, opened(options.trace, "wb") as target:
            shutil.copyfileobj(source, target)
    return lacks


def list_length(argument):
    return len(argument) if isinstance(argument, (list, tuple)) else 0


def check(operation, options):
    """Compare the results of an operation with a reference in float64.

    Returns:
        Whether they agree (None if there is no reference) and a description.
    """
    call = make_call(operation, options.device, options.scale)
    reason = why_no_reference(operation, call)
    if reason is not None:
        return None, f"no reference: {reason}"
    try:
        reference = call.with_arguments(as_float64)
        expected_results = results_of(reference)
    except Exception as error:  # noqa: BLE001  # such as a missing float64 kernel
        return None, f"no reference: {one_line(error)}"
    pairs = []
    for result, expected in zip(results_of(call), expected_results):
        are_floats = is_dense_float(result) and is_dense_float(expected)
        if are_floats and result.shape == expected.shape:
            pairs.append((result.cpu(), expected))
    if not pairs:
        return None, "no reference: no result is a float"
    rounding = max(rounding_of(result.dtype, operation) for result, _ in pairs)
    worst = max(relative_difference(result, expected) for result, expected in pairs)
    description = f"differs from float64 by {worst / rounding:.2g} roundings"
    return worst <= 10 * rounding, description


def results_of(call):
    """Run a call and return its results and the arguments that it changes."""
    results = tensors_in(call())
    arguments = arguments_by_name(call)
    for parameter in call.function._schema.arguments:
        alias = parameter.alias_info
        if alias is not None and alias.is_write:
            results += tensors_in(arguments.get(parameter.name))
    return results


def as_float64(argument):
    """Return an argument for the reference: floats as float64, tensors on the CPU."""
    if isinstance(argument, torch.Tensor):
        return tensor_as_float64(argument.detach())
    if isinstance(argument, torch.dtype) and argument.is_floating_point:
        return torch.float64
    return argument


def tensor_as_float64(tensor):
    """Return a copy on the CPU that spans its memory in the same way."""
    if tensor.is_quantized:
        return tensor.clone().cpu()
    sizes = tensor.shape
    strides = tensor.stride()
    elements = elements_in_memory(sizes, strides)
    memory = tensor.as_strided((elements,), (1,)).clone().cpu()
    if memory.is_complex():
        memory = memory.to(torch.complex128)
    elif memory.is_floating_point():
        memory = memory.double()
    return memory.as_strided(sizes, strides)


#: Arguments of attention that its stand-in for the CPU ignores.
IGNORED_BY_STAND_INS = (
    "cum_seq_q",
    "cu_seqlens_q",
    "seqused_k",
    "seqlen_k",
    "window_size",
    "window_size_left",
    "window_size_right",
    "alibi_slopes",
)


def why_no_reference(operation, call):
    """Return why the result of a call cannot be compared, or None if it can."""
    if is_random(call):
        return "the operation is random"
    if "::empty" in operation.name or "::new_empty" in operation.name:
        return "its result is uninitialized memory"
    arguments = arguments_by_name(call)
    for name in IGNORED_BY_STAND_INS:
        if arguments.get(name) is not None:
            return f"the stand-in on the CPU ignores `{name}`"
    return None


def is_random(call):
    """Return whether the result of a call depends on random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(call.function, "tags", ()):
        return False
    return arguments_by_name(call).get("dropout_p") != 0


def arguments_by_name(call):
    """Return the arguments of a call by the names in its schema."""
    parameters = call.function._schema.arguments
    names = [parameter.name for parameter in parameters]
    arguments = dict(zip(names, call.arguments))
    arguments.update(call.keywords)
    return arguments


def is_dense_float(tensor):
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return is_float and tensor.layout == torch.strided


TF32_ROUNDING = 2.0**-10


def rounding_of(dtype, operation):
    """Return the relative rounding error of a type, or of TF32 where PyTorch may use it."""
    if dtype == torch.float32 and torch.cuda.is_available():
        backend = torch.backends.cuda.matmul
        if "convolution" in operation.name:
            backend = torch.backends.cudnn
        if backend.allow_tf32:
            return TF32_ROUNDING
    return torch.finfo(dtype).eps


def relative_difference(result, expected):
    """Return the norm of the difference relative to the norm of the expected result."""
    dtype = torch.complex128 if result.is_complex() else torch.float64
    result = result.to(dtype)
    expected = expected.to(dtype)
    is_same = (result == expected) | (result.isnan() & expected.isnan())
    zero = torch.zeros_like(expected)
    difference = torch.where(is_same, zero, result - expected)
    finite = torch.where(expected.isfinite(), expected, zero)
    distance = float(torch.linalg.vector_norm(difference))
    norm = float(torch.linalg.vector_norm(finite))
    if not math.isfinite(distance):
        return math.inf
    return distance / norm if norm else distance


def one_line(error):
    """Return the message of an error as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


CLOCK_COMMANDS = (
    ["nvidia-smi", "--query-gpu=name,clocks.sm,clocks.mem", "--format=csv,noheader"],
    ["amd-smi", "metric", "--clock"],
)


def clocks():
    """Return the clocks of the GPU, if a tool of its vendor reports them."""
    for command in CLOCK_COMMANDS:
        if shutil.which(command[0]) is None:
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            output = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=True
            ).stdout
            lines = [line.strip() for line in output.splitlines()]
            facts = "; ".join(line for line in lines[:8] if line)
            return f"clocks ({command[0]}): {facts}"
    return "clocks: unknown"


#: Columns of text; all others are numbers, which are aligned to the right.
TEXT_COLUMNS = ("operation", "arguments", "check", "note")
#: Widths of the columns that are unknown before the operations have run.
WIDTHS = {
    "measured µs": 30,
    "back to back µs": 15,
    "ratio": 6,
    "TFLOP/s": 8,
    "GB/s": 9,
    "check": 40,
    "note": 4,
}


class Table:
    """Prints a row per operation as soon as it has run."""

    def __init__(self, operations, options):
        known = [recorded_cells(operation) for operation in operations]
        self.widths = {}
        for cells in known:
            for header, text in cells.items():
                width = max(len(header), len(text), self.widths.get(header, 0))
                self.widths[header] = width
        if options.device != "meta":
            self.widths["measured µs"] = WIDTHS["measured µs"]
        if options.device == "cuda":
            self.widths["back to back µs"] = WIDTHS["back to back µs"]
            self.widths["ratio"] = WIDTHS["ratio"]
        if options.device != "meta" and options.scale == 1.0:
            if any(operation.flops for operation in operations):
                self.widths["TFLOP/s"] = WIDTHS["TFLOP/s"]
            if any(operation.moved_bytes for operation in operations):
                self.widths["GB/s"] = WIDTHS["GB/s"]
        if options.check:
            self.widths["check"] = WIDTHS["check"]
        self.widths["note"] = WIDTHS["note"]

    def print_header(self):
        self.print_row({header: header for header in self.widths})

    def print_row(self, cells):
        texts = []
        for header, width in self.widths.items():
            text = cells.get(header, "")
            is_text = header in TEXT_COLUMNS
            texts.append(text.ljust(width) if is_text else text.rjust(width))
        print("  ".join(texts).rstrip(), flush=True)


def recorded_cells(operation):
    """Return the cells of a row with the recorded facts."""
    cells = {
        "N": str(operation.number),
        "operation": operation.name,
        "arguments": operation.arguments,
        "calls": str(operation.calls or ""),
    }
    if operation.before_us is not None:
        cells["before µs"] = spread_text(*operation.before_us)
    if operation.recorded_us is not None:
        cells["recorded µs"] = spread_text(*operation.recorded_us)
    return cells


def measured_cells(operation, times, options):
    """Return the cells of a row with the facts measured in this run."""
    cells = {}
    if operation.name in REPLACED:
        cells["note"] = f"run by a stand-in: no {options.device} kernel for it"
    if not times.calls:
        return cells
    if not any(times.calls):
        cells["measured µs"] = "no kernels recorded"
        return cells
    median = statistics.median(times.calls)
    cells["measured µs"] = spread_text(median, min(times.calls), max(times.calls))
    if times.back_to_back is not None:
        cells["back to back µs"] = f"{times.back_to_back:,.1f}"
    if options.scale != 1.0:
        return cells
    if operation.recorded_us is not None and operation.recorded_us[0]:
        cells["ratio"] = f"{median / operation.recorded_us[0]:.2f}"
    if operation.flops:
        cells["TFLOP/s"] = f"{operation.flops / median / 1e6:,.2f}"
    if operation.moved_bytes:
        cells["GB/s"] = f"{operation.moved_bytes / median / 1e3:,.1f}"
    return cells


def spread_text(median, shortest, longest):
    """Return times such as `12.3 (11.9-14.0)`."""
    return f"{median:,.1f} ({shortest:,.1f}-{longest:,.1f})"


def parse_options():
    parser = argparse.ArgumentParser(
        description="Run operations of a trace one by one and compare their times."
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device",
        choices=sorted(BACKENDS),
        default=default,
        help="where to run; meta runs each operation once, without data"
        f" (default: {default})",
    )
    parser.add_argument(
        "--only",
        type=int,
        action="append",
        metavar="N",
        help="run only operation N (repeatable)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the results with a reference in float64",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="also write a trace (.json or .json.gz) in which each operation runs once",
    )
    parser.add_argument(
        "--warm",
        action="store_true",
        help="use the same inputs for each call, so that caches may hold them",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="F",
        help="multiply the largest size of each operation by F, such as 0.5",
    )
    options = parser.parse_args()
    if not 0.0 < options.scale <= 1.0:
        parser.error("--scale: expected a factor above 0 and up to 1, such as 0.5")
    return options


def chosen_operations(options):
    """Return the operations that `--only` names, or all of them."""
    if not options.only:
        return OPERATIONS
    reasons = {number: reason for number, _, reason in NOT_REPRODUCED}
    known = {operation.number for operation in OPERATIONS}
    for number in options.only:
        if number in reasons:
            sys.exit(f"--only {number}: this script cannot run it: {reasons[number]}")
        if number not in known:
            sys.exit(f"--only {number}: this script has no operation {number}")
    return [entry for entry in OPERATIONS if entry.number in options.only]


def print_machine(device):
    """Print what the operations run on."""
    if device == "cuda":
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
        print(clocks())
    else:
        print(f"{device}, PyTorch {torch.__version__}")


def run(operation, options):
    """Run an operation; return its row of the table and whether its results are right."""
    check_memory(operation, options)
    times = measure(operation, options)
    row = recorded_cells(operation)
    row.update(measured_cells(operation, times, options))
    if not options.check or options.device == "meta":
        return row, True
    agrees, description = check(operation, options)
    is_right = agrees is not False
    row["check"] = description if is_right else f"WRONG: {description}"
    return row, is_right


def run_all(operations, options):
    """Run operations and print the table; return whether all of them succeeded."""
    table = Table(operations, options)
    table.print_header()
    succeeded = True
    for entry in operations:
        try:
            row, is_right = run(entry, options)
        except SkippedError as error:
            print(f"{entry.number} {entry.name}: skipped: {one_line(error)}")
            continue
        except Exception as error:  # noqa: BLE001  # the others still run
            print(f"{entry.number} {entry.name}: failed: {one_line(error)}")
            succeeded = False
            continue
        table.print_row(row)
        succeeded = succeeded and is_right
    return succeeded


def main():
    options = parse_options()
    operations = chosen_operations(options)
    print_machine(options.device)
    if not options.only:
        for number, name, reason in NOT_REPRODUCED:
            print(f"{number} {name}: skipped: {reason}")
    register_stand_ins(options.device)
    succeeded = run_all(operations, options)
    if options.trace:
        for number, sentence in record(operations, options).items():
            print(f"{number}: {sentence}")
        print(f"wrote {options.trace}")
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
