"""Kernels of NVIDIA's libraries (cuBLAS, cuDNN, NCCL, cuFFT …) by role."""

from __future__ import annotations

from tracelens_ext.demo.kernels import Kernel, Roles, one

_SMS = 132
_FLASH = "pytorch_flash"
_FORWARD_TRAITS = (
    f"{_FLASH}::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, "
    f"{_FLASH}::Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"
)
_BACKWARD_TRAITS = (
    f"{_FLASH}::Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, "
    f"cutlass::bfloat16_t, {_FLASH}::Flash_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t> >"
)
_FLASH_ARGUMENTS = f"({_FLASH}::Flash_bwd_params)"
_NCCL_ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"


def _gemm(
    name: str, *, blocks: int = _SMS, threads: int = 384, share: float = 1.0
) -> tuple[Kernel, float]:
    kernel = Kernel(name, "GEMM", "launch_ex", threads, 168, 229376, 128, blocks)
    return kernel, share


def _convolution(name: str, *, share: float = 1.0, helper: bool = False) -> tuple[Kernel, float]:
    if helper:
        return Kernel(name, "Convolution", "launch", 256, 32, 4160), share
    return Kernel(name, "Convolution", "launch", 128, 224, 98304, 128), share


def _nccl(name: str) -> tuple[tuple[Kernel, float], ...]:
    kernel = Kernel(name + _NCCL_ARGUMENTS, "Communication", "launch_ex", 544, 96, 84064, blocks=24)
    return ((kernel, 1.0),)


_GEMM: Roles = {
    "gemm": (_gemm("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT"),),
    "gemm_dgrad": (
        _gemm(
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_"
            "execute_segment_k_off_kernel__5x_cublas"
        ),
    ),
    "gemm_wgrad": (
        _gemm(
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize256x128x64_warpgroupsize2x1x1_"
            "execute_segment_k_off_kernel__5x_cublas"
        ),
    ),
    "gemm_small": (
        _gemm(
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8>"
            "(cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8::Params)",
            blocks=0,
            threads=128,
            share=0.8,
        ),
        _gemm(
            "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, "
            "__nv_bfloat16, true, false, false>(cublasLt::cublasSplitKParams<float>, float const*, "
            "__nv_bfloat16 const*, __nv_bfloat16*, float const*, float const*, __nv_bfloat16 "
            "const*, float const*, __nv_bfloat16*, void*, long, float*, int*)",
            blocks=0,
            threads=512,
            share=0.2,
        ),
    ),
    "gemm_decode": (_gemm("nvjet_tst_64x16_64x16_4x1_v_bz_TNT"),),
    "gemm_head_decode": (_gemm("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"),),
    "gemv": (
        _gemm(
            "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, "
            "128, 16, 4, 4, false, false, cublasGemvParamsEx<int, "
            "cublasGemvTensorStridedBatched<__nv_bfloat16 const>, "
            "cublasGemvTensorStridedBatched<__nv_bfloat16 const>, "
            "cublasGemvTensorStridedBatched<__nv_bfloat16>, float> >(cublasGemvParamsEx<int, "
            "cublasGemvTensorStridedBatched<__nv_bfloat16 const>, "
            "cublasGemvTensorStridedBatched<__nv_bfloat16 const>, "
            "cublasGemvTensorStridedBatched<__nv_bfloat16>, float>, float, float)",
            blocks=0,
            threads=128,
        ),
    ),
    "gemm_fp8": (_gemm("nvjet_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT"),),
}

_ATTENTION: Roles = {
    "attention": (
        (
            Kernel(
                f"void {_FLASH}::flash_fwd_kernel<{_FORWARD_TRAITS}, false, true, false, false, "
                f"true, true, false>({_FLASH}::Flash_fwd_params)",
                "Flash Attention Forward",
                "launch",
                128,
                255,
                65536,
                128,
            ),
            1.0,
        ),
    ),
    "attention_backward": (
        (
            Kernel(
                f"void {_FLASH}::flash_bwd_dot_do_o_kernel<true, {_BACKWARD_TRAITS} >"
                + _FLASH_ARGUMENTS,
                "Flash Attention Backward",
                "launch",
                256,
                64,
                0,
                32,
            ),
            0.05,
        ),
        (
            Kernel(
                f"void {_FLASH}::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{_BACKWARD_TRAITS}, "
                "false, true, false, false, true, true, false>" + _FLASH_ARGUMENTS,
                "Flash Attention Backward",
                "launch",
                256,
                255,
                147456,
                128,
            ),
            0.9,
        ),
        (
            Kernel(
                f"void {_FLASH}::flash_bwd_convert_dq_kernel<{_BACKWARD_TRAITS} >"
                f"({_FLASH}::Flash_bwd_params, int)",
                "Flash Attention Backward",
                "launch",
                256,
                80,
                16384,
                32,
            ),
            0.05,
        ),
    ),
    "attention_decode": (
        (Kernel("kernel_mha", "Flash Attention Forward", "launch", 256, 128, 65536, 64), 1.0),
    ),
}

_CONVOLUTION: Roles = {
    "conv": (
        _convolution(
            "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, "
            "(cudnnKernelDataType_t)0>(cudnn::ops::nchw2nhwc_params_t<float>, __nv_bfloat16 "
            "const*, __nv_bfloat16*)",
            share=0.2,
            helper=True,
        ),
        _convolution(
            "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_"
            "warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
            share=0.8,
        ),
    ),
    "conv_dgrad": (
        _convolution(
            "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_"
            "stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
        ),
    ),
    "conv_wgrad": (
        _convolution(
            "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x"
            "128x32_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
        ),
    ),
    "batch_norm": (
        (
            Kernel(
                "void cudnn::bn_fw_tr_1C11_singleread<__nv_bfloat16, 512, true, 1, 2, 0>"
                "(cudnn::bn_fw_tr_1C11_args<__nv_bfloat16>)",
                "Normalization",
                "launch",
                512,
                40,
            ),
            1.0,
        ),
    ),
    "batch_norm_backward": (
        (
            Kernel(
                "void cudnn::bn_bw_1C11_singleread<__nv_bfloat16, 512, true, 1, 2, 0>"
                "(cudnn::bn_bw_1C11_args<__nv_bfloat16>)",
                "Normalization",
                "launch",
                512,
                48,
            ),
            1.0,
        ),
    ),
}

_COMMUNICATION: Roles = {
    "all_reduce": _nccl("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    "all_to_all": _nccl("ncclDevKernel_SendRecv"),
    "broadcast": _nccl("ncclDevKernel_Broadcast_RING_LL"),
    "all_gather": _nccl("ncclDevKernel_AllGather_RING_LL"),
}

_OTHER_LIBRARIES: Roles = {
    "quantize": one(
        "void per_token_group_quant_8bit_kernel<__nv_bfloat16, c10::Float8_e4m3fn, false>"
        "(__nv_bfloat16 const*, void*, float*, int, int, int, float, float, float, int, "
        "int)",
        "Quantization",
        threads=256,
    ),
    "fft": one(
        "void vector_fft<4096, EPT<16>, 1, 4, 70, 0, 2, 0, unsigned int, float, "
        "HostConfigPlaceholder>(kernel_arguments_t<unsigned int>)",
        "FFT",
        threads=256,
        registers=64,
        shared_memory=32768,
        per_thread=16,
    ),
    "inverse_fft": one(
        "void vector_fft<4096, EPT<16>, 1, 4, 70, 1, 2, 0, unsigned int, float, "
        "HostConfigPlaceholder>(kernel_arguments_t<unsigned int>)",
        "FFT",
        threads=256,
        registers=64,
        shared_memory=32768,
        per_thread=16,
    ),
    "sort": one(
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::"
        "DeviceRadixSortPolicy<long, long, int>::Policy900, false, long, long, int, int, "
        "int>(int*, int*, int*, int const*, long*, long const*, long*, long const*, int, "
        "int, int)",
        "Sort & TopK",
        threads=384,
        registers=64,
        shared_memory=35840,
        per_thread=16,
    ),
    "moe_gate": (
        (
            Kernel(
                "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16, 32, int>(float const*, bool "
                "const*, float*, int, int*, int*, int, int, int)",
                "MoE Routing",
            ),
            1.0,
        ),
    ),
    "rms_norm": one(
        "std::enable_if<(((8) > (0)) && vllm::_typeConvert<c10::BFloat16>::exists), "
        "void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, "
        "long, c10::BFloat16*, c10::BFloat16 const*, float, int, int)",
        "Normalization",
        threads=192,
    ),
    "kv_write": one(
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
        "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, __nv_bfloat16 const*, "
        "__nv_bfloat16*, __nv_bfloat16*, long const*, long, long, long, long, long, int, "
        "int, int, float const*, float const*)",
        "Memory Ops",
        threads=512,
    ),
    "scale_decode": one(
        "void tensorrt_llm::common::scaleMatrix<(tensorrt_llm::common::QuantizeMode)1, "
        "__nv_bfloat16, float>(__nv_bfloat16*, float const*, __nv_bfloat16 const*, long, "
        "long)",
        "Memory Ops",
        threads=256,
    ),
    "sample": one(
        "void flashinfer::sampling::TopPSamplingFromProbKernel<1024u, "
        "(cub::BlockScanAlgorithm)2, (cub::BlockReduceAlgorithm)2, 4u, true, float, int>"
        "(float*, int*, int*, float*, unsigned int, float, unsigned int, unsigned long, "
        "unsigned long)",
        "Sampling & Decoding",
        threads=1024,
        shared_memory=8256,
    ),
}

ROLES: Roles = {
    **_GEMM,
    **_ATTENTION,
    **_CONVOLUTION,
    **_COMMUNICATION,
    **_OTHER_LIBRARIES,
}
