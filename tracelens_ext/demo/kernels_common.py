"""Kernels that PyTorch, Triton and vLLM launch on either vendor, by role."""

from __future__ import annotations

from tracelens_ext.demo.kernels import (
    UNCATEGORIZED,
    Kernel,
    Roles,
    dispatched,
    multi_tensor,
    one,
    reduction,
    unrolled,
    vectorized,
)

_ATEN = "at::native"
_ANON = "at::native::(anonymous namespace)"
_DIRECT_COPY = dispatched("direct_copy_kernel_cuda", 12, "c10::BFloat16", outer=3)
_MASKED_SCALE = (
    f"{_ANON}::masked_scale_kernel<bool, c10::BFloat16, float>(at::Tensor&, at::Tensor const&, "
    "at::Tensor const&, float)::{lambda(c10::BFloat16, bool)#1}"
)
_CAST_TO_BF16 = f"{_ATEN}::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda(float)#1}}"
_UNIFORM = (
    f"{_ATEN}::templates::cuda::uniform_and_transform<float, float, 4ul, at::CUDAGeneratorImpl*, "
    f"{_ATEN}::templates::cuda::uniform_kernel<at::CUDAGeneratorImpl*>(at::TensorIteratorBase&, "
    "double, double, at::CUDAGeneratorImpl*)::{lambda()#1}::operator()() const::{lambda()#2}::"
    "operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, at::CUDAGeneratorImpl*, "
    "{lambda(float)#1})"
)


def _triton(
    name: str, category: str, registers: int = 40, per_thread: int = 8
) -> tuple[tuple[Kernel, float], ...]:
    return ((Kernel(name, category, "launch_module", 256, registers, 2048, per_thread), 1.0),)


_ELEMENTWISE: Roles = {
    "add": one(vectorized(f"{_ATEN}::CUDAFunctor_add<c10::BFloat16>", 3), "Elementwise"),
    "mul": one(
        vectorized(
            f"{_ATEN}::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
            f"{_ATEN}::binary_internal::MulFunctor<float> >",
            3,
        ),
        "Elementwise",
    ),
    "silu": one(
        vectorized(dispatched("(anonymous namespace)::silu_kernel", 6, "c10::BFloat16"), 2),
        "Elementwise",
    ),
    "silu_backward": one(
        vectorized(
            dispatched(
                "(anonymous namespace)::silu_backward_kernel", 6, "c10::BFloat16, c10::BFloat16"
            ),
            3,
        ),
        "Elementwise",
    ),
    "lerp": one(
        vectorized(dispatched("lerp_scalar_kernel", 2, "float, float"), 3, width=4), "Elementwise"
    ),
    "silu_and_mul": one(
        "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel"
        "<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*, c10::BFloat16 const*, int)",
        "Elementwise",
        threads=256,
    ),
    "cast": one(vectorized(_CAST_TO_BF16, 2, width=4), "Memory Ops"),
    "copy": one(unrolled(_DIRECT_COPY), "Memory Ops"),
    "fill": one(vectorized(f"{_ATEN}::FillFunctor<float>", 1, width=4), "Memory Ops"),
    "cat": one(
        f"void {_ANON}::CatArrayBatchedCopy_contig<{_ANON}::OpaqueType<2u>, unsigned int, 3, 128, "
        f"1>({_ANON}::OpaqueType<2u>*, {_ANON}::CatArrInputTensorMetadata<{_ANON}::OpaqueType<2u>, "
        f"unsigned int, 128, 1>, {_ANON}::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
        "Memory Ops",
        threads=512,
    ),
    "dropout": one(
        f"void {_ANON}::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 8, bool>"
        "(at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, "
        "at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>, "
        "at::cuda::detail::TensorInfo<bool, unsigned int>, unsigned int, float, "
        "at::PhiloxCudaState)",
        "RNG & Dropout",
        threads=256,
        registers=40,
    ),
    "dropout_backward": one(unrolled(_MASKED_SCALE), "RNG & Dropout"),
    "uniform": one(
        f"void {_ANON}::distribution_elementwise_grid_stride_kernel<float, 4, {_UNIFORM}>(long, "
        "at::PhiloxCudaState)",
        "RNG & Dropout",
        threads=256,
        registers=64,
    ),
}

_NORM_AND_SOFTMAX: Roles = {
    "layer_norm": one(
        f"void {_ANON}::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float, "
        "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, "
        "c10::BFloat16*)",
        "Normalization",
        shared_memory=24,
    ),
    "layer_norm_backward": (
        (
            Kernel(
                f"void {_ANON}::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, "
                "false>(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, "
                "c10::BFloat16 const*, c10::BFloat16*, int)",
                "Normalization",
                registers=48,
            ),
            0.6,
        ),
        (
            Kernel(
                f"void {_ANON}::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, 32u, "
                "16u, 128u, true, true, false>(long, long, c10::BFloat16 const*, c10::BFloat16 "
                "const*, float const*, float const*, c10::BFloat16*, c10::BFloat16*)",
                "Normalization",
                threads=512,
                shared_memory=4352,
            ),
            0.4,
        ),
    ),
    "softmax": one(
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>"
        "(float*, float const*, int, int, int, bool const*, int, bool)",
        "Softmax",
    ),
    "softmax_backward": one(
        "void (anonymous namespace)::softmax_warp_backward<float, float, float, 6, false, false>"
        "(float*, float const*, float const*, int, int, int, bool const*)",
        "Softmax",
    ),
    "log_softmax": one(
        f"void {_ANON}::cunn_SoftMaxForward<4, c10::BFloat16, float, float, "
        f"{_ANON}::LogSoftMaxForwardEpilogue>(float*, c10::BFloat16 const*, int)",
        "Softmax",
        threads=1024,
        shared_memory=4096,
    ),
    "log_softmax_backward": one(
        f"void {_ANON}::cunn_SoftMaxBackward<4, float, float, c10::BFloat16, "
        f"{_ANON}::LogSoftMaxBackwardEpilogue>(c10::BFloat16*, float const*, float const*, long)",
        "Softmax",
        threads=1024,
        shared_memory=4096,
    ),
    "nll_loss": one(
        f"void {_ANON}::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, "
        "float const*, long const*, float const*, bool, long, long, long, long)",
        "Loss",
        threads=32,
    ),
    "nll_loss_backward": one(
        f"void {_ANON}::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*, float const*, "
        "long const*, float const*, float const*, bool, int, int, long, long)",
        "Loss",
        threads=32,
    ),
    "sum": one(
        reduction(
            f"{_ATEN}::func_wrapper_t<float, {_ATEN}::sum_functor<float, float, float>::operator()"
            "(at::TensorIterator&)::{lambda(float, float)#1}>"
        ),
        "Reduction",
        threads=512,
    ),
    "norm": one(reduction(f"{_ATEN}::NormTwoOps<float, float, float>"), "Reduction", threads=512),
}

_INDEXING_AND_POOLING: Roles = {
    "embedding": one(
        f"void {_ATEN}::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, "
        "long, long, bool)",
        "Embedding & Gather/Scatter",
        threads=256,
    ),
    "embedding_scatter": (
        (
            Kernel(
                f"void {_ANON}::compute_grad_weight<c10::BFloat16, long>(long const*, "
                "c10::BFloat16 const*, long const*, long, long, long const*, long const*, "
                "at::AccumulateType<c10::BFloat16, true>::type*, long)",
                "Embedding & Gather/Scatter",
            ),
            0.7,
        ),
        (
            Kernel(
                f"void {_ANON}::sum_and_scatter<c10::BFloat16, long>(long const*, c10::BFloat16*, "
                "long, long const*, long const*, at::AccumulateType<c10::BFloat16, true>::type "
                "const*, long const*, long const*, long, long)",
                "Embedding & Gather/Scatter",
            ),
            0.3,
        ),
    ),
    "topk": (
        (
            Kernel(
                f"void {_ATEN}::sbtopk::gatherTopK<float, unsigned int, 2, false>"
                "(at::cuda::detail::TensorInfo<float const, unsigned int>, unsigned int, unsigned "
                "int, bool, unsigned int, unsigned int, at::cuda::detail::TensorInfo<float, "
                "unsigned int>, unsigned int, at::cuda::detail::TensorInfo<long, unsigned int>, "
                "unsigned int, float*)",
                "Sort & TopK",
                threads=1024,
            ),
            0.7,
        ),
        (
            Kernel(
                f"void {_ATEN}::bitonicSortKVInPlace<2, -1, 16, 16, float, long, "
                f"{_ATEN}::GTOp<float, true>, unsigned int>(at::cuda::detail::TensorInfo<float, "
                "unsigned int>, unsigned int, unsigned int, unsigned int, "
                "at::cuda::detail::TensorInfo<long, unsigned int>, unsigned int, "
                f"{_ATEN}::GTOp<float, true>)",
                "Sort & TopK",
                threads=256,
            ),
            0.3,
        ),
    ),
    "max_pool": one(
        f"void {_ANON}::max_pool_forward_nchw<c10::BFloat16, float>(int, c10::BFloat16 const*, "
        "long, long, long, int, int, int, int, int, int, int, int, int, int, c10::BFloat16*, "
        "long*)",
        "Pooling & Resampling",
        threads=256,
    ),
    "max_pool_backward": one(
        f"void {_ANON}::max_pool_backward_nchw<c10::BFloat16, float>(c10::BFloat16 const*, long "
        "const*, int, long, long, long, int, int, int, int, int, int, int, int, int, int, "
        "c10::BFloat16*)",
        "Pooling & Resampling",
        threads=256,
    ),
}

_OPTIMIZER: Roles = {
    "adamw": one(
        multi_tensor(
            "FusedOptimizerTensorListMetadata<4>",
            f"FusedAdamMathFunctor<float, 4, ({_ATEN}::ADAM_MODE)1, false>",
            "float const*, double, double, double, double, double, bool, float*, float*",
        ),
        "Optimizer",
        threads=512,
        registers=48,
        per_thread=64,
    ),
    "clip": one(
        multi_tensor(
            "TensorListMetadata<1>",
            "BinaryOpScalarTensorFunctor<c10::BFloat16, 1, 1, 0>, std::multiplies<float>, float*",
            "float",
        ),
        "Optimizer",
        threads=512,
        per_thread=64,
    ),
}

_TRITON: Roles = {
    "rope": _triton("_triton_rope", "Positional Encoding", registers=64),
    "fused_swiglu": _triton(
        "triton_poi_fused_mul_silu_split_0", "Fused Elementwise (compiler-generated)"
    ),
    "fused_swiglu_backward": _triton(
        "triton_poi_fused_cat_mul_sigmoid_silu_sub_1", "Fused Elementwise (compiler-generated)"
    ),
    "fused_sum": _triton("triton_red_fused_mul_sum_2", "Reduction"),
    "fused_norm": _triton("triton_per_fused_add_native_layer_norm_3", "Normalization"),
    "moe_gemm": _triton("fused_moe_kernel", "GEMM", registers=168, per_thread=256),
    "temperature": _triton("_temperature_kernel", "Sampling & Decoding"),
    "kv_indices": _triton("create_flashinfer_kv_indices_triton", "Other"),
}

_EXTENSIONS: Roles = {
    "moe_align": one(
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, "
        "int, int, unsigned long, int*)",
        "MoE Routing",
        threads=1024,
    ),
    "moe_sum": one(
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 2>(c10::BFloat16*, c10::BFloat16 const*, "
        "int)",
        "MoE Routing",
        threads=1024,
    ),
    "scan": one(
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1, true, true, "
        "true, true, true, c10::BFloat16, float> >(SSMParamsBase)",
        "Recurrent & State Space",
        registers=104,
        shared_memory=8448,
        per_thread=64,
    ),
    "scan_backward": one(
        "void selective_scan_bwd_kernel<Selective_Scan_bwd_kernel_traits<128, 16, true, true, "
        "true, true, true, c10::BFloat16, float> >(SSMParamsBwd)",
        "Recurrent & State Space",
        registers=168,
        shared_memory=24832,
        per_thread=64,
    ),
    "rope_decode": one(
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, "
        "c10::BFloat16*, c10::BFloat16 const*, int, long, long, long, int, int)",
        "Positional Encoding",
        threads=512,
    ),
    # Two kernels that no rule can know: somebody's own code.
    "token_weights": one(
        "void acme::rl::token_weights<128, float>(float const*, float const*, float*, int)",
        UNCATEGORIZED,
    ),
    "prefix_lookup": one("tok_trie_walk_k2", UNCATEGORIZED, threads=64),
}

ROLES: Roles = {
    **_ELEMENTWISE,
    **_NORM_AND_SOFTMAX,
    **_INDEXING_AND_POOLING,
    **_OPTIMIZER,
    **_TRITON,
    **_EXTENSIONS,
}
