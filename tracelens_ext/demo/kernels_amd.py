"""Kernels of AMD's libraries (hipBLASLt, AOTriton, MIOpen, RCCL, rocFFT …) by role."""

from __future__ import annotations

from tracelens_ext.demo.kernels import Kernel, Roles, one

# A Tensile name is a descriptor: the layout of A and B, the data types, the macro tile MT,
# and a long list of tuning parameters.
_TUNING = (
    "MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8_"
    "GRVWB8_GSUAMB_GLS0_ISA942_IU1_K1_LBSPPA512_LBSPPB256_LBSPPM0_LPA16_LPB16_LPM0_LRVW8_LWPMn1_"
    "MIAV0_MIWT8_4_MO40_NTn1_NTA0_NTB0_NTC0_NTD4_NTM0_NEPBS16_NLCA1_NLCB1_ONLL1_PGR2_PLR1_PKA1_"
    "SIA3_SS1_SPO0_SRVW0_SSO0_SVW4_SK0_SKXCCM0_TLDS1_ULSGRO0_USL1_UIOFGRO0_USFGROn1_VSn1_VWA4_"
    "VWB1_WSGRA0_WSGRB0_WS64_WG32_8_1"
)


def _tensile(
    layout: str, tile: str, types: str = "BBS_BH", share: float = 1.0
) -> tuple[Kernel, float]:
    name = f"Cijk_{layout}_{types}_Bias_HA_S_SAV_UserArgs_MT{tile}_{_TUNING}"
    return Kernel(name, "GEMM", "launch_ex", 256, 128, 65536, 128), share


def _triton(
    name: str, category: str, share: float = 1.0, per_thread: int = 64
) -> tuple[Kernel, float]:
    return Kernel(name, category, "launch_module", 256, 128, 32768, per_thread), share


def _miopen(
    name: str, share: float = 1.0, threads: int = 256, per_thread: int = 64
) -> tuple[Kernel, float]:
    return Kernel(name, "Convolution", "launch_ex", threads, 96, 32768, per_thread), share


# RCCL builds one generic kernel; only the operation tells the collectives apart.
_RCCL = (
    (
        Kernel(
            "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
            "Communication",
            "launch",
            256,
            96,
            61440,
            blocks=56,
        ),
        1.0,
    ),
)

_GEMM: Roles = {
    "gemm": (_tensile("Alik_Bljk", "256x256x64"),),
    "gemm_dgrad": (_tensile("Ailk_Bljk", "256x224x64"),),
    "gemm_wgrad": (_tensile("Ailk_Bjlk", "192x256x64"),),
    "gemm_small": (
        _tensile("Alik_Bljk", "64x16x128", share=0.8),
        (
            Kernel("Cijk_SB_BiasS_HAS_ScaleAlphaVec_PostGSU8_VW4", "GEMM", "launch_ex", 256, 32, 0),
            0.2,
        ),
    ),
    "gemm_decode": (_tensile("Alik_Bljk", "16x16x512"),),
    "gemm_head_decode": (_tensile("Alik_Bljk", "64x32x256"),),
    "gemv": one(
        "void wvSplitK_hf_sml_<__hip_bfloat16, 32, 4, 16, 8, 2, 1>(int, int, __hip_bfloat16 "
        "const*, __hip_bfloat16 const*, __hip_bfloat16*, int, int)",
        "GEMM",
        threads=1024,
        shared_memory=65536,
    ),
    "gemm_fp8": (_tensile("Alik_Bljk", "256x256x128", types="F8BS_BH"),),
}

_ATTENTION: Roles = {
    "attention": (_triton("attn_fwd", "Flash Attention Forward"),),
    "attention_backward": (
        _triton("bwd_preprocess", "Flash Attention Backward", 0.05, 32),
        _triton("bwd_kernel_dk_dv", "Flash Attention Backward", 0.55),
        _triton("bwd_kernel_dq", "Flash Attention Backward", 0.4),
    ),
    "attention_decode": one(
        "void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16, __hip_bfloat16, "
        "(vllm::Fp8KVCacheDataType)0, __hip_bfloat16, 16, 128, 256, false, 4>(__hip_bfloat16 "
        "const*, __hip_bfloat16 const*, __hip_bfloat16 const*, int, float, int const*, int "
        "const*, int const*, int, float const*, int, int, int, float*, float*, __hip_bfloat16*, "
        "__hip_bfloat16*, int, float const*, float const*)",
        "Flash Attention Forward",
        threads=256,
        registers=128,
        per_thread=64,
    ),
}

_CONVOLUTION: Roles = {
    "conv": (
        _miopen("batched_transpose_16x32_half", 0.15),
        _miopen(
            "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32_wt32x32x8_ws2x1_wr2x2_ta1x8x4x1_"
            "1x4x1x64_tb1x8x2x1_1x4x1x64",
            0.7,
        ),
        _miopen("batched_transpose_32x16_half", 0.15),
    ),
    "conv_dgrad": (
        _miopen(
            "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_"
            "1x4x1x64_tb1x8x1x2_1x4x1x64_mh_gkgs"
        ),
    ),
    "conv_wgrad": (
        _miopen(
            "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8_ws1x1_wr1x2_ta1x4x1x4_"
            "1x8x1x32_tb1x4x1x2_1x8x1x32_gkgs"
        ),
    ),
    "batch_norm": one(
        "MIOpenBatchNormFwdTrainSpatial", "Normalization", launcher="launch_ex", threads=1024
    ),
    "batch_norm_backward": one(
        "MIOpenBatchNormBwdSpatial", "Normalization", launcher="launch_ex", threads=1024
    ),
}

_COMMUNICATION: Roles = {
    "all_reduce": _RCCL,
    "all_to_all": _RCCL,
    "broadcast": _RCCL,
    "all_gather": _RCCL,
}

_OTHER_LIBRARIES: Roles = {
    "quantize": one(
        "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16, "
        "c10::Float8_e4m3fnuz>(c10::Float8_e4m3fnuz*, float*, c10::BFloat16 const*, float const*, "
        "int)",
        "Quantization",
        threads=1024,
    ),
    "fft": one(
        "fft_rtc_fwd_len4096_factors_16_16_16_wgs_256_tpt_256_half_lds_sp_op_CI_CI_unitstride_"
        "sbrr_dirReg",
        "FFT",
        launcher="launch_ex",
        threads=256,
        per_thread=16,
    ),
    "inverse_fft": one(
        "fft_rtc_back_len4096_factors_16_16_16_wgs_256_tpt_256_half_lds_sp_op_CI_CI_unitstride_"
        "sbrr_dirReg",
        "FFT",
        launcher="launch_ex",
        threads=256,
        per_thread=16,
    ),
    "sort": one(
        "void rocprim::ROCPRIM_400001_NS::detail::onesweep_iteration_kernel<rocprim::"
        "ROCPRIM_400001_NS::detail::wrapped_radix_sort_onesweep_config<rocprim::"
        "ROCPRIM_400001_NS::default_config, long, long>, false, long*, long*, unsigned int, "
        "rocprim::ROCPRIM_400001_NS::identity_decomposer>(long*, long*, long*, long*, unsigned "
        "int, unsigned int*, unsigned int*, rocprim::ROCPRIM_400001_NS::detail::"
        "onesweep_lookback_state*, rocprim::ROCPRIM_400001_NS::identity_decomposer, unsigned "
        "int, unsigned int, unsigned int)",
        "Sort & TopK",
        threads=1024,
        per_thread=16,
    ),
    "moe_gate": one("_ZN5aiter20topksoftmax_12x256x8E", "MoE Routing", launcher="launch_module"),
    "rms_norm": one(
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_"
        "27Rmsnorm2dFwdPipelineProblemIDF16bDF16bfDF16bDF16bDF16bffNS_19Generic2dBlockShapeINS_"
        "8sequenceIJLi1ELi1536EEEENS5_IJLi1ELi64EEEENS5_IJLi1ELi8EEEEEENS_18Rmsnorm2dFwdTraits"
        "ILb1ELb0ELb0ELb0ELNS_21Rmsnorm2dFusedAddEnumE1ELNS_23Rmsnorm2dFusedQuantEnumE0EEEEENS_"
        "33Rmsnorm2dFwdPipelineDefaultPolicyEEENS_17Default2DEpilogueINS_24Default2DEpilogue"
        "ProblemIfDF16bLb0ELb1ELb0EEEvEEEEJNSM_5KargsEEEEvDpT1_",
        "Normalization",
        threads=64,
    ),
    "kv_write": one(
        "void vllm::reshape_and_cache_kernel<__hip_bfloat16, __hip_bfloat16, "
        "(vllm::Fp8KVCacheDataType)0>(__hip_bfloat16 const*, __hip_bfloat16 const*, "
        "__hip_bfloat16*, __hip_bfloat16*, long const*, int, int, int, int, int, int, float "
        "const*, float const*)",
        "Memory Ops",
        threads=512,
    ),
    # Where CUDA has memset nodes, a HIP graph holds the runtime's own kernels.
    "graph_memset": one("__amd_rocclr_fillBufferAligned", "Memory Ops", threads=256),
    "scale_decode": one("__amd_rocclr_copyBuffer", "Memory Ops", threads=512),
    "sample": one("_gumbel_sample_kernel", "Sampling & Decoding", launcher="launch_module"),
}

ROLES: Roles = {
    **_GEMM,
    **_ATTENTION,
    **_CONVOLUTION,
    **_COMMUNICATION,
    **_OTHER_LIBRARIES,
}
