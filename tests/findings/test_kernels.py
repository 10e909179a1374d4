"""What the detectors of kernels claim, on small traces of an H100 that never idles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Findings

BF16 = "c10::BFloat16"
FP32 = "float"
Tensor = tuple[str, list[int], list[int]]
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]


def tensor(*sizes: int, kind: str = BF16) -> Tensor:
    """A contiguous tensor."""
    return kind, [*sizes], [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]


class Kernels(TraceMaker):
    """Operations launched early, whose kernels run back to back from 1 ms on."""

    def __init__(self) -> None:
        super().__init__()
        self.end = 1_000.0
        self.number = 0

    def run(
        self,
        name: str,
        us: float,
        *tensors: Tensor,
        kernel: str = "kernel",
        outer: str = "",
        blocks: int = 0,
    ) -> None:
        """Add an operation with a kernel of `us` µs, within the operation `outer` if given."""
        self.number += 1
        at = self.number * 0.1
        args = {
            "Input Dims": [sizes for _, sizes, _ in tensors],
            "Input type": [kind for kind, *_ in tensors],
            "Input Strides": [strides for *_, strides in tensors],
        }
        if outer:
            self.op(outer, at - 0.01, 0.08)
        self.op(name, at, 0.06, args=args if tensors else {})
        self.call("cudaLaunchKernel", at + 0.01, 0.04, correlation=self.number)
        category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
        grid = {"grid": [blocks, 1, 1]}
        self.gpu(
            category,
            kernel,
            self.end,
            us,
            correlation=self.number,
            args=grid if blocks else {},
        )
        self.end += us

    def rest(self) -> Kernels:
        """Add a product that is as fast as expected."""
        size = tensor(4096, 4096)
        self.run("aten::mm", 250, size, size, kernel="nvjet_hsh_128x256_64x4")
        return self

    def findings(self) -> Findings:
        found = TreePerfAnalyzer(self.document(deviceProperties=H100)).findings()
        assert found.explained_ms <= found.total_ms * (1 + 1e-9)
        return found

    def savings(self) -> dict[str, float]:
        """Return the attributed time of each finding in µs."""
        return {each.id: 1e3 * each.attributed_ms for each in self.findings().findings}


IMAGE = tensor(64, 256, 56, 56)
X = tensor(8192, 4096)
TURNED: Tensor = (BF16, [8192, 4096], [1, 8192])
CASTING = "void vectorized_elementwise_kernel<4, bfloat16_copy_kernel_cuda(TensorIteratorBase&)>()"
COPYING = "void elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda()>>()"


def test_a_well_tuned_trace_has_no_findings() -> None:
    """Fused attention, large products, single passes, a plain clone, a few short kernels."""
    kernels = Kernels().rest()
    for _ in range(3):
        kernels.run("aten::_flash_attention_forward", 114, tensor(16, 512, 16, 64))
        kernels.run("aten::gelu", 60, X)
        kernels.run("aten::copy_", 60, X, X, kernel="Memcpy DtoD (Device -> Device)")
        kernels.run("aten::add_", 2, tensor(1, kind="long int"))
        kernels.rest()
    assert kernels.savings() == {}


# Layouts and casts.


@pytest.mark.parametrize(
    ("outer", "name", "kernel", "tensors"),
    [
        (
            "",
            "aten::cudnn_convolution",
            "void cudnn::ops::nchwToNhwcKernel<float>()",
            (),
        ),
        ("", "aten::miopen_convolution", "batched_transpose_16x32_half", ()),
        ("", "", "transpose_CNHW2NCHW_V2_2D_WG_off64", ()),
        ("aten::contiguous", "aten::copy_", COPYING, ()),
        ("aten::reshape", "aten::clone", COPYING, ()),
        ("aten::contiguous", "aten::copy_", "Memcpy DtoD (Device -> Device)", (X, X)),
        ("aten::to", "aten::copy_", COPYING, (X, TURNED)),
    ],
)
def test_layout_conversions(
    outer: str, name: str, kernel: str, tensors: tuple[Tensor, ...]
) -> None:
    kernels = Kernels().rest()
    kernels.run(name or "aten::mm", 100, *tensors, kernel=kernel, outer=outer)
    assert kernels.savings() == {"layout-conversion": pytest.approx(100)}


@pytest.mark.parametrize(
    ("name", "kernel", "tensors", "outer"),
    [
        (
            "aten::cudnn_convolution",
            "sm80_xmma_fprop_nhwckrsc_nhwc_tilesize128x64",
            (),
            "",
        ),
        (
            "aten::max_pool2d",
            "void at::native::max_pool_forward_nchw<float>()",
            (IMAGE,),
            "",
        ),
        ("", "triton_poi_fused_clone_transpose_21", (), ""),
        ("aten::clone", COPYING, (X,), ""),
        ("aten::copy_", COPYING, (X, (BF16, [8192, 4096], [8192, 1])), ""),  # a slice
        ("aten::copy_", COPYING, (X, (BF16, [8192, 4096], [])), ""),
        ("aten::copy_", "Memcpy HtoD (Pinned -> Device)", (X, X), "aten::contiguous"),
    ],
)
def test_kernels_and_copies_that_convert_no_layout(
    name: str, kernel: str, tensors: tuple[Tensor, ...], outer: str
) -> None:
    kernels = Kernels().rest()
    kernels.run(name or "aten::mm", 100, *tensors, kernel=kernel, outer=outer)
    assert not {"layout-conversion", "dtype-casts"} & {*kernels.savings()}


def test_casts_by_their_types_or_else_by_their_kernels() -> None:
    kernels = Kernels().rest()
    kernels.run("aten::copy_", 40, tensor(4096, 4096, kind=FP32), tensor(4096, 4096))
    kernels.run("aten::copy_", 20, kernel=CASTING)
    # the types say that it is none
    kernels.run("aten::copy_", 30, X, X, kernel=CASTING)
    (found,) = kernels.findings().findings
    assert found.id == "dtype-casts"
    assert found.attributed_ms == pytest.approx(0.060)
    assert [(place.name, place.count) for place in found.where["types"]] == [
        ("bf16 to fp32", 1)
    ]


# Attention.

QUERY = tensor(64, 2048, 128)
KEY = tensor(64, 128, 2048)
SCORES = tensor(64, 2048, 2048)
#: 2 products of 2 · 64 · 2048² · 128 operations at 40 % of 989.4 TFLOP/s.
FUSED_US = 2 * 2 * 64 * 2048**2 * 128 / (0.4 * 989.4e6)


def attend(kernels: Kernels, softmax: str = "aten::_softmax") -> None:
    kernels.run("aten::bmm", 400, QUERY, KEY)
    kernels.run("aten::mul", 500, SCORES)
    kernels.run("aten::add", 10, tensor(64, 2048, 128))  # of something else
    kernels.run("acme::log", 10)
    kernels.run(softmax, 600, SCORES)
    kernels.run("aten::bmm", 400, SCORES, QUERY)


def test_attention_in_parts_saves_what_a_fused_kernel_does_not_need() -> None:
    kernels = Kernels().rest()
    for _ in range(2):
        attend(kernels)
        kernels.rest()
    (found,) = kernels.findings().findings
    assert found.id == "unfused-attention"
    assert 1e3 * found.attributed_ms == pytest.approx(2 * (1900 - FUSED_US))
    assert found.saving_low_ms == pytest.approx(2e-3 * (1900 - 2 * FUSED_US))
    assert "40 % of the peak" in found.confidence_reason
    assert found.where["scores"][0].name == "64×2048×2048"


def test_attention_backward_has_four_products() -> None:
    kernels = Kernels().rest()
    kernels.run("aten::bmm", 400, tensor(64, 2048, 2048), QUERY)
    kernels.run("aten::bmm", 400, QUERY, KEY)
    kernels.run("aten::_softmax_backward_data", 800, SCORES, SCORES)
    kernels.run("aten::mul", 400, SCORES)
    kernels.run("aten::bmm", 400, SCORES, QUERY)
    kernels.run("aten::bmm", 400, KEY, SCORES)
    saving = 2800 - 1.25 * 2 * FUSED_US
    assert kernels.savings() == {"unfused-attention": pytest.approx(saving)}


@pytest.mark.parametrize("softmax", ["aten::_log_softmax", "aten::topk"])
def test_products_without_a_softmax_are_no_attention(softmax: str) -> None:
    kernels = Kernels().rest()
    attend(kernels, softmax)
    assert "unfused-attention" not in kernels.savings()


def test_a_softmax_of_a_router_is_no_attention() -> None:
    kernels = Kernels().rest()
    kernels.run("aten::mm", 300, tensor(65536, 1024), tensor(1024, 128))
    kernels.run("aten::_softmax", 100, tensor(65536, 128))
    kernels.run("aten::mm", 300, tensor(65536, 128), tensor(128, 1024))
    assert "unfused-attention" not in kernels.savings()


# Passes over one tensor.


def test_passes_over_one_tensor_save_all_but_the_longest() -> None:
    """A cast that is claimed, and small work, may lie between; a product ends a chain."""
    kernels = Kernels().rest()
    kernels.run("aten::pow", 40, X)
    kernels.run("aten::rsqrt", 2, tensor(8192, 1))
    kernels.run("aten::mul", 60, X, tensor(8192, 1))
    kernels.run("aten::copy_", 50, X, tensor(8192, 4096, kind=FP32))
    kernels.run("aten::mul", 50, X, tensor(4096))
    kernels.rest()
    kernels.run("aten::gelu", 45, X)
    found = kernels.savings()
    assert found == {
        "memory-bound-chain": pytest.approx(90),
        "dtype-casts": pytest.approx(50),
    }


@pytest.mark.parametrize(
    "names",
    [
        ["aten::mul_"] * 6,  # gradients are scaled
        ["aten::sum"] * 4,
        ["aten::cat", "aten::cat"],  # keys and values
        ["aten::zero_"] * 4,
        ["aten::copy_"] * 4,
    ],
)
def test_the_same_for_many_tensors_is_no_chain(names: list[str]) -> None:
    kernels = Kernels().rest()
    for name in names:
        kernels.run(name, 50, X, *([X] if name == "aten::copy_" else []))
    assert kernels.savings() == {}


SILU = "void vectorized_elementwise_kernel<8, at::native::silu_kernel(at::TensorIteratorBase&)>()"
MUL = "void elementwise_kernel<128, 4, BinaryFunctor<float, float, float, MulFunctor<float> > >()"
NORM = {
    "void vectorized_elementwise_kernel<4, pow_tensor_scalar_kernel_impl<float>()>()": 60,
    "void reduce_kernel<512, 1, ReduceOp<float, MeanOps<float, float> > >()": 40,
    "void vectorized_elementwise_kernel<4, CUDAFunctorOnSelf_add<float> >()": 2,
    "void vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda()>()": 2,
    MUL: 80,
    CASTING: 30,
    f"{MUL} ": 70,
}


def test_without_shapes_chains_of_passes_are_found_by_names() -> None:
    kernels = Kernels()
    for blocks, product in ((500, ""), (500, "nvjet_tst"), (400, ""), (500, "softmax")):
        kernels.run("", 40, kernel=SILU, blocks=500)
        if product:
            kernels.run("", 300, kernel=product)
        # with as many blocks, and at most a product
        kernels.run("", 60, kernel=MUL, blocks=blocks)
    for name, us in NORM.items():
        kernels.run("", us, kernel=name)
    kernels.run("", 1000, kernel="nvjet_hsh_128x256_64x4")
    (found,) = (
        each for each in kernels.findings().findings if each.id == "fallback-kernels"
    )
    assert 1e3 * found.attributed_ms == pytest.approx(2 * 40 + 60 + 40 + 2 + 2 + 70)
    assert [place.name for place in found.where["reasons"]] == [
        "RMSNorm in parts",
        "activation and gate apart",
    ]
    kernels.run("aten::gelu", 60, X)  # recorded shapes replace the names
    assert "fallback-kernels" not in kernels.savings()


def test_loops_over_tensors_save_within_a_tensor_only() -> None:
    kernels = Kernels().rest()
    for _ in range(5):
        kernels.run("aten::mul_", 40, X)
        kernels.run("aten::add_", 50, X, X)
    assert kernels.savings() == {"memory-bound-chain": pytest.approx(5 * 40)}


def test_small_tensors_and_optimizers_make_no_chains() -> None:
    kernels = Kernels().rest()
    for _ in range(3):
        kernels.run("aten::mul", 8, tensor(512, 1024))
    kernels.annotation("Optimizer.step#SGD.step", kernels.number * 0.1 + 0.05, 10)
    for name in ("aten::mul", "aten::add", "aten::sqrt"):
        kernels.run(name, 50, X)
    assert kernels.savings() == {}


# Small kernels and slow products.


def test_short_kernels_count_in_runs() -> None:
    kernels = Kernels().rest()
    for count in (20, 5, 10):
        for _ in range(count):
            kernels.run("aten::add", 2, tensor(64))
        kernels.rest()
    assert kernels.savings() == {"small-kernels": pytest.approx(2 * (19 + 9))}


def slow_product(
    us: float, m: int, n: int, k: int, kind: str = BF16, name: str = ""
) -> Kernels:
    kernels = Kernels().rest()
    kernels.run(
        "aten::mm", us, tensor(m, k, kind=kind), tensor(k, n, kind=kind), kernel=name
    )
    return kernels


def test_a_product_far_below_what_the_gpu_reaches() -> None:
    """32 × 32 × 4 tiles make 31.03 waves on 132 units, so they take as long as 32 waves."""
    reached = 5 + 32 / (4096 / 132) * 2 * 4096**3 / (0.6 * 989.4e6)
    kernels = slow_product(1000, 4096, 4096, 4096, name="my_product")
    (found,) = kernels.findings().findings
    assert found.id == "slow-gemm"
    assert 1e3 * found.attributed_ms == pytest.approx(1000 - reached, rel=1e-3)
    assert found.where["products"][0].name == "aten::mm 4096×4096×4096 bf16"


def test_a_slow_product_with_a_kernel_of_an_older_gpu_is_an_old_kernel() -> None:
    """With odd sizes it is `slow-gemm`, because the sizes explain the choice of the kernel."""
    name = "ampere_bf16_s16816gemm_128x128"
    found = {
        size: slow_product(1000, 4096, 4096, size, name=name).savings()
        for size in (4096, 4097)
    }
    assert [*found[4096]] == ["old-kernels"]
    assert found[4096]["old-kernels"] > 700
    assert [*found[4097]] == ["slow-gemm"]


@pytest.mark.parametrize(
    ("us", "sizes", "kind"),
    [
        (330, (4096, 4096, 4096), BF16),  # 42 % of the peak
        (20, (1, 4096, 4096), BF16),  # bound by memory: 14 µs at 70 % of the bandwidth
        (7, (64, 64, 512), BF16),  # nothing is faster than its own start and end
        (18, (512, 512, 8192), BF16),  # too few tiles to fill the GPU
    ],
)
def test_products_as_fast_as_can_be_expected(
    us: float, sizes: tuple[int, int, int], kind: str
) -> None:
    assert slow_product(us, *sizes, kind=kind).savings() == {}


@pytest.mark.parametrize(
    ("kernel", "ident"), [("sgemm", "no-tensor-cores"), ("", "slow-gemm")]
)
def test_single_precision_without_tf32_is_slow(kernel: str, ident: str) -> None:
    """The kernel's name decides, and the shapes do where the name does not tell."""
    (found,) = slow_product(3000, 4096, 4096, 4096, FP32, kernel).findings().findings
    assert found.id == ident
    assert "float32_matmul_precision" in found.snippet


# Traces without shapes, and unknown GPUs.


@pytest.mark.parametrize(("between", "saving"), [("aten::div", 200), ("aten::mm", 0)])
def test_without_shapes_attention_is_found_by_names(
    between: str, saving: float
) -> None:
    kernels = Kernels()
    for name in (
        "aten::bmm",
        between,
        "aten::_softmax",
        "aten::bmm",
        "aten::mul",
        "aten::mul",
    ):
        kernels.run(name, 100)
    found = kernels.findings()
    assert sum(1e3 * each.attributed_ms for each in found.findings) == pytest.approx(
        saving
    )
    assert len(found.notes) == 1
    assert "record_shapes" in found.notes[0]


def test_on_an_unknown_gpu_only_attention_is_found() -> None:
    kernels = Kernels()
    attend(kernels)
    found = TreePerfAnalyzer(kernels.document()).findings()
    claims = {
        each.id: 1e3 * each.attributed_ms
        for each in found.findings
        if each.attributed_ms
    }
    assert claims == {"unfused-attention": pytest.approx(1900 - 800)}
    assert any("peaks" in note for note in found.notes)


def test_impossible_sizes_are_no_findings() -> None:
    kernels = Kernels().rest()
    huge: Tensor = (BF16, [10**200, 10**200, 0, 1], [1])
    for name in (
        "aten::bmm",
        "aten::_softmax",
        "aten::bmm",
        "aten::mul",
        "aten::copy_",
    ):
        kernels.run(name, 50, huge, huge)
    assert kernels.savings() == {}


@pytest.mark.parametrize(
    ("device", "share"),
    [("NVIDIA H100 80GB HBM3", 1 / 3), ("NVIDIA A100-SXM4-80GB", 0)],
)
def test_flash_attention_2_is_old_from_hopper_on(device: str, share: float) -> None:
    kernels = Kernels().rest()
    for kernel in (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Params)",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>()",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 128>>(Params)",
    ):
        kernels.run("aten::_flash", 300, kernel=kernel)
    document = kernels.document(deviceProperties=[{"id": 0, "name": device}])
    findings = TreePerfAnalyzer(document).findings().findings
    claims = {each.id: 1e3 * each.attributed_ms for each in findings}
    assert claims.get("flash-attention-2", 0) == pytest.approx(600 * share)
