"""Problems as they look in traces, each in several ways; each fills the room made for it."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.counterfactuals import Room, tensor

Problem = Callable[[Room], None]
PROBLEMS: dict[str, list[Problem]] = {}


def _makes(ident: str) -> Callable[[Problem], Problem]:
    def add(problem: Problem) -> Problem:
        PROBLEMS.setdefault(ident, []).append(problem)
        return problem

    return add


_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@_makes("dataloader")
def _annotated_loader(room: Room) -> None:
    room.span("user_annotation", _NEXT, 0, room.cost)


@_makes("dataloader")
def _loader_in_this_process(room: Room) -> None:
    frame = "torch/utils/data/dataloader.py(701): __next__"
    room.span("python_function", frame, 0, room.cost)
    name = _NEXT.replace("MultiProcessing", "SingleProcess")
    room.span("user_annotation", name, 1, room.cost - 2)
    room.span("python_function", "dataset.py(12): __getitem__", 2, room.cost - 4)
    room.op("aten::item", room.cost / 3, 3, tensor("long int"))
    room.op("aten::stack", room.cost / 2, room.cost / 4, tensor("float", 3, 224, 224))


@_makes("allocator")
def _one_allocation(room: Room) -> None:
    room.op("aten::empty", 0, room.cost)
    room.call("cudaMalloc", 1, room.cost - 2)


@_makes("allocator")
def _freed_and_allocated_again(room: Room) -> None:
    part = room.cost / 8
    for number in range(8):
        room.call(
            "cudaFree" if number < 4 else "cudaMalloc", number * part, part * 0.98
        )


def _item(room: Room, name: str, start: float, dur: float) -> None:
    inside = "aten::_local_scalar_dense" if name == "aten::item" else "aten::copy_"
    room.op(name, start, dur, tensor("float"))
    room.op(inside, start + 1, dur - 2, tensor("float"))
    if room.amd:
        copy = room.call("hipMemcpyWithStream", start + 2, dur - 4)
    else:
        copy = room.call("cudaMemcpyAsync", start + 2, 4)
        room.call("cudaStreamSynchronize", start + 7, dur - 10)
    kind = "Memcpy DtoH (Device -> Pageable)"
    room.work("gpu_memcpy", kind, start + 8, 1.5, copy, bytes=4)


@_makes("synchronization")
def _item_that_lasts(room: Room) -> None:
    _item(room, "aten::item", 0, room.cost)


@_makes("synchronization")
def _items(room: Room) -> None:
    for number in range(4):
        _item(room, "aten::to", number * room.cost / 4, room.cost / 4 - 1)


@_makes("synchronization")
def _device_synchronised(room: Room) -> None:
    frame = "torch/cuda/__init__.py(985): synchronize"
    room.span("python_function", frame, 0, room.cost)
    room.call("cudaDeviceSynchronize", 1, room.cost - 2)


@_makes("synchronization")
def _sizes_that_depend_on_values(room: Room) -> None:
    room.op("aten::nonzero", 0, room.cost, tensor("float", 4096))
    copy = room.call("cudaMemcpyAsync", 4, 4)
    work = "Memcpy DtoH (Device -> Pinned)"
    room.work("gpu_memcpy", work, 10, 1.5, copy, bytes=8)
    room.call("cudaStreamSynchronize", 9, room.cost - 12)


@_makes("host-bound")
def _python(room: Room) -> None:
    room.span("python_function", "train.py(7): loop", 0, room.cost)


@_makes("host-bound")
def _operations_on_the_host(room: Room) -> None:
    for number in range(20):
        part = room.cost / 20
        room.op(
            "aten::randperm", number * part, 0.9 * part, tensor("long int", 100_000)
        )


@_makes("host-bound")
def _python_between_launches(room: Room) -> None:
    part = room.cost / 50
    for number in range(50):
        room.span("python_function", "model.py(9): forward", number * part, part * 0.6)
        room.op(
            "aten::add", number * part + part * 0.6, part * 0.1, tensor("float", 64)
        )
        call = room.call("cudaLaunchKernel", number * part + part * 0.61, part * 0.05)
        room.work(
            "kernel", "void vectorized_add(int)", (number + 0.97) * part, 2.0, call
        )


@_makes("cpu-operation")
def _random_numbers_of_the_cpu(room: Room) -> None:
    room.op("aten::randn", 0, room.cost, tensor("float", 1 << 24))
    room.op("aten::normal_", 2, room.cost - 4, tensor("float", 1 << 24))


@_makes("cpu-operation")
def _annotated_phase(room: Room) -> None:
    room.span("user_annotation", "preprocess", 0, room.cost)
    for number in range(40):
        room.op("aten::add", (number + 0.1) * room.cost / 40, 2, tensor("float", 64))


@_makes("cpu-operation")
def _sorted_on_the_cpu(room: Room) -> None:
    for number in range(4):
        room.op(
            "aten::sort",
            number * room.cost / 4,
            0.97 * room.cost / 4,
            tensor("float", 1 << 20),
        )


@_makes("recompilation")
def _compiled_three_times(room: Room) -> None:
    part = room.cost / 3
    for number in range(3):
        name = "compile_fx.<locals>.fw_compiler_base (dynamo_timed)"
        room.span("cpu_op", name, number * part, 0.95 * part)
        call = room.call("cudaLaunchKernel", (number + 0.96) * part, 5)
        room.work("kernel", "triton_poi_fused_add_0", (number + 0.97) * part, 2.0, call)


@_makes("recompilation")
def _compiled_by_dynamo(room: Room) -> None:
    """Wherever it is: the name says that it is a second time."""
    room.span("user_annotation", "Torch-Compiled Region: 0/1", 0, room.cost)
    room.span(
        "user_annotation", "_compile.compile_inner (dynamo_timed)", 1, room.cost - 2
    )
    frame = "torch/_dynamo/convert_frame.py(1138): _compile"
    room.span("python_function", frame, 2, room.cost - 4)


@_makes("graph-recapture")
def _captured_for_each_launch(room: Room) -> None:
    part = room.cost / 5
    for number in range(5):
        start = number * part
        room.call("cudaStreamBeginCapture", start, 5)
        room.call("cudaLaunchKernel", start + part * 0.3, 4)
        room.call("cudaStreamEndCapture", start + part * 0.6, part * 0.1)
        room.call("cudaGraphInstantiate", start + part * 0.71, part * 0.2)
        launch = room.call("cudaGraphLaunch", start + part * 0.95, 6)
        room.work(
            "kernel", "void fused_step_kernel()", start + part * 0.95 + 5, 9.0, launch
        )


@_makes("small-kernels")
def _short_kernels(room: Room) -> None:
    times = int((room.cost - 10) / 2.2)
    for number in range(times):
        room.op(
            "aten::add", number * 2.2, 2.1, tensor("float", 64), tensor("float", 64)
        )
        call = room.call("cudaLaunchKernel", number * 2.2 + 0.2, 1.5)
        room.work("kernel", "void vectorized_add(int)", 10 + number * 2.2, 2.0, call)


@_makes("small-kernels")
def _short_kernels_of_a_graph(room: Room) -> None:
    call = room.call("cudaGraphLaunch", 0, 20)
    for number in range(int((room.cost - 20) / 3.7)):
        room.work(
            "kernel", "void rms_norm_kernel<bf16>()", 20 + number * 3.7, 3.5, call
        )


@_makes("unfused-optimizer")
def _step_of_each_parameter(room: Room) -> None:
    name = "Optimizer.step#AdamW.step"
    room.span("user_annotation", name, 0, room.cost)
    ops = (
        "aten::mul_",
        "aten::lerp_",
        "aten::addcmul_",
        "aten::sqrt",
        "aten::addcdiv_",
    )
    for number in range(int(room.cost / 9) - 2):
        shape = tensor("float", 512, 64 + number // 5)
        room.op(ops[number % 5], number * 9, 8.0, shape, shape)
        call = room.call("cudaLaunchKernel", number * 9 + 2, 4)
        kernel = f"void at::native::vectorized_elementwise_kernel<{number % 5}>(int)"
        room.work("kernel", kernel, number * 9 + 7, 2.5, call)


@_makes("exposed-communication")
def _all_reduce_alone(room: Room) -> None:
    shape = tensor("c10::BFloat16", 1 << 24)
    said = {"Collective name": "allreduce", "dtype": "BFloat16", "Group size": 8}
    said |= {"In msg nelems": 1 << 24, "Out msg nelems": 1 << 24}
    room.op("c10d::allreduce_", 0, 20, shape)
    room.op("record_param_comms", 1, 17, shape, **said)
    call = room.call("cudaLaunchKernel", 3, 5)
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    room.work("kernel", name, 10, room.cost - 11, call, stream=79, **said)


@_makes("exposed-communication")
def _gathers_alone(room: Room) -> None:
    part = room.cost / 5
    names = (
        "ncclKernel_AllGather_RING_LL_Sum_int8_t",
        "ncclDevKernel_Generic_1(ncclDevArgs)",
    )
    for number in range(5):
        room.span("cpu_op", "nccl:_all_gather_base", number * part, 12)
        call = room.call("cudaLaunchKernel", number * part + 2, 5)
        start = number * part + 9
        name = names[number % 2]
        room.work("kernel", name, start, part - 9.5, call, stream=20)


def _copied(room: Room, host: str, *, waits: bool) -> None:
    size = int(room.cost * 24e3)
    shape = tensor("float", size // 4)
    room.op("aten::copy_", 0, room.cost - 1 if waits else 9, shape, shape)
    if room.amd and waits:
        copy = room.call("hipMemcpyWithStream", 1, room.cost - 3)
    else:
        copy = room.call("cudaMemcpyAsync", 1, 6)
        if waits:
            room.call("cudaStreamSynchronize", 8, room.cost - 10)
    name = f"Memcpy HtoD ({host} -> Device)"
    room.work("gpu_memcpy", name, 9, room.cost - 10, copy, bytes=size)


@_makes("pageable-copies")
def _pageable_copy(room: Room) -> None:
    _copied(room, "Pageable", waits=True)


@_makes("exposed-copy")
def _pinned_copy(room: Room) -> None:
    _copied(room, "Pinned", waits=False)


def _vectorized(name: str) -> str:
    return f"void at::native::vectorized_elementwise_kernel<4, {name}>(int, {name})"


@_makes("unfused-attention")
def _attention_in_parts(room: Room) -> None:
    """32 heads of 64 on 2048 positions: fused, this takes an eighth of the time."""
    kind = "c10::BFloat16"
    query = tensor(kind, 32, 2048, 64)
    key = tensor(kind, 32, 64, 2048)
    scores = tensor(kind, 32, 2048, 2048)
    product = room.moving(scores)
    room.kernels(
        [
            (
                "aten::bmm",
                [query, key],
                "ampere_bf16_s16816gemm_bf16_128x128_ldg8_tn",
                product,
            ),
            ("aten::div", [scores], _vectorized("MulFunctor"), 2 * product),
            (
                "aten::_softmax",
                [scores],
                "void softmax_warp_forward<bf16>()",
                2 * product,
            ),
            (
                "aten::bmm",
                [scores, query],
                "ampere_bf16_s16816gemm_bf16_128x64_ldg8_nn",
                product,
            ),
        ]
    )


@_makes("unfused-attention")
def _attention_with_mask_and_dropout(room: Room) -> None:
    kind = "c10::Half"
    query = tensor(kind, 96, 1024, 64)
    key = tensor(kind, 96, 64, 1024)
    scores = tensor(kind, 96, 1024, 1024)
    parts = tensor(kind, 8, 12, 1024, 1024)
    mask = tensor("bool", 8, 1, 1, 1024)
    product = room.moving(scores)
    room.kernels(
        [
            (
                "aten::baddbmm",
                [scores, query, key],
                "sm90_xmma_gemm_f16f16_f16f32_tn",
                product,
            ),
            (
                "aten::masked_fill_",
                [parts, mask],
                _vectorized("masked_fill_kernel"),
                2 * product,
            ),
            (
                "aten::_softmax",
                [parts],
                "void cunn_SoftMaxForward<8, c10::Half>()",
                2 * product,
            ),
            (
                "aten::native_dropout",
                [parts],
                "void fused_dropout_kernel_vec()",
                2.5 * product,
            ),
            ("aten::bmm", [scores, query], "sm90_xmma_gemm_f16f16_f16f32_nn", product),
        ]
    )


@_makes("slow-gemm")
def _product_at_a_twentieth_of_the_peak(room: Room) -> None:
    assert room.rates
    shapes = [tensor("c10::BFloat16", 2048, 2049), tensor("c10::BFloat16", 2049, 2048)]
    name = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_nn_align1"
    name = "Cijk_Ailk_Bljk_BBS_BH_MT32x32x16_SE_K1" if room.amd else name
    room.kernels([("aten::mm", shapes, name, 20 * 2 * 2048**2 * 2049 / room.rates[1])])


@_makes("slow-gemm")
def _linear_layer_on_a_slow_kernel(room: Room) -> None:
    assert room.rates
    kind = "c10::Half"
    shapes = [tensor(kind, 4096), tensor(kind, 2048, 1024), tensor(kind, 1024, 4096)]
    name = (
        "void magma_sgemmEx_kernel<float, __half, __half, true, false, 6, 4, 6, 3, 4>()"
    )
    room.kernels(
        [("aten::addmm", shapes, name, 12 * 2 * 2048 * 1024 * 4096 / room.rates[1])]
    )


@_makes("memory-bound-chain")
def _passes_over_one_tensor(room: Room) -> None:
    shape = tensor("c10::BFloat16", 64, 1024, 4096)
    pass_over = room.moving(shape, shape)
    names = ("mul", "add", "tanh", "mul", "add", "mul", "pow", "mul")
    room.kernels([(f"aten::{n}", [shape], _vectorized(n), pass_over) for n in names])


@_makes("memory-bound-chain")
def _passes_in_place(room: Room) -> None:
    shape = tensor("float", 32, 2048, 2048)
    pass_over = room.moving(shape, shape)
    names = (
        "mul_",
        "add_",
        "sigmoid_",
        "mul_",
        "clamp_",
        "sub_",
        "exp_",
        "div_",
        "add_",
    )
    room.kernels([(f"aten::{n}", [shape], _vectorized(n), pass_over) for n in names])


@_makes("layout-conversion")
def _contiguous_copies(room: Room) -> None:
    source = "c10::BFloat16", [32, 2048, 1024], [2048 * 1024, 1, 2048]
    target = tensor("c10::BFloat16", 32, 2048, 1024)
    name = "void at::native::elementwise_kernel<direct_copy_kernel_cuda(bf16)>(int)"
    unit = [("aten::copy_", [target, source], name, 1.3 * room.moving(source, target))]
    room.kernels(unit)
    for op in [e for e in room.events if e["name"] == "aten::copy_"]:
        start = op["ts"] - room.place.at
        dur = op["dur"]
        room.op("aten::contiguous", start - 0.4, dur + 0.8, source)
        room.op("aten::clone", start - 0.2, dur + 0.4, source)


@_makes("layout-conversion")
def _kernels_of_layouts(room: Room) -> None:
    image = tensor("c10::BFloat16", 64, 256, 112, 112)
    name = "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false>()"
    room.kernels(
        [("aten::cudnn_convolution", [image], name, room.moving(image, image))]
    )


@_makes("dtype-casts")
def _casts(room: Room) -> None:
    source = tensor("c10::BFloat16", 8192, 8192)
    target = tensor("float", 8192, 8192)
    name = _vectorized(
        "at::native::bfloat16tofloat32_copy_kernel_cuda(TensorIteratorBase&)"
    )
    room.kernels([("aten::copy_", [target, source], name, room.moving(source, target))])
    for op in [e for e in room.events if e["name"] == "aten::copy_"]:
        start = op["ts"] - room.place.at
        dur = op["dur"]
        room.op("aten::to", start - 0.4, dur + 0.8, source)
        room.op("aten::_to_copy", start - 0.2, dur + 0.4, source)
