"""Small tables as `nsys stats` makes them, for the tests of statistics by class."""

from __future__ import annotations

from pathlib import Path

GPA = Path(__file__).resolve().parents[3] / "shared" / "nsys" / "gpa"
TWO_GPUS = GPA.parent / "two_gpu_training.sqlite"
SPECIFICATION = GPA.parents[1] / "specification" / "2-nsight-class-statistics.md"
REAL_KERNELS = GPA / "llama2-70B-GBS512-FSDP256_cuda_gpu_kern_sum.csv"
REAL_MEMORY = GPA / "llama2-70B-GBS512-FSDP256_cuda_gpu_mem_time_sum.csv"
TAG = "TSL:XlaModule:#hlo_module=pjit__train_step,program_id=11#"

KERNELS = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.0,6000000,11,1.0,1.0,1,1,0.0,"void xmma_gemm<int, float>(int, ""a"")"
25.0,3000001,5,1.0,1.0,1,1,0.0,"ncclDevKernel_AllGather_RING_LL(ncclDevComm *, unsigned long)"
20.0,2000000,9,1.0,1.0,1,1,0.0,loop_FUSION_2
5.0,1000000,3,1.0,1.0,1,1,0.0,memset_kernel
"""
MEMORY = """\
Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
60.0,3000000,10,1.0,1.0,1,1,0.0,[CUDA memcpy Device-to-Device]
40.0,2000000,5,1.0,1.0,1,1,0.0,[CUDA memset]
"""
SIZES = """\
Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
402.653,10,8.389,8.389,8.389,8.389,0.000,[CUDA memcpy Device-to-Device]
"""
RANGES = """\
Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Style,PID,TID,NumGPUOps
step,100,5000000,90,PushPop,1,1,8
other,100,7000000,90,PushPop,1,1,8
step,9000000,5000001,90,PushPop,1,1,8
"""
GPU_TRACE = """\
Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Device,Ctx,GreenCtx,Strm,Name
100,30,11,2,,NVIDIA A100-SXM4-80GB (1),1,,7,"void gemm<int, float>(int)"
150,10,12,,4.194,NVIDIA A100-SXM4-80GB (1),1,,13,[CUDA memcpy Host-to-Device]
170,5,13,,,NVIDIA A100-SXM4-80GB (0),1,,7,[CUDA memset]
"""
CLASSES = {"xmma_gemm": "GEMM", "fusion": "Fusion", "softmax": "Softmax"}


def write_tables(folder: Path) -> None:
    """The tables above, under the names that `nsys stats -o run` gives them."""
    for name, text in {
        "cuda_gpu_kern_sum": KERNELS,
        "cuda_gpu_mem_time_sum": MEMORY,
        "cuda_gpu_mem_size_sum": SIZES,
        "nvtx_gpu_proj_trace": RANGES,
        "cuda_gpu_trace": GPU_TRACE,
    }.items():
        (folder / f"run_{name}.csv").write_text(text, encoding="utf-8")
