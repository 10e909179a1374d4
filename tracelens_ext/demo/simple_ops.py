"""Operations that launch one role over their output, as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Simple:
    """An operation that launches one role over its output.

    Attributes:
        chain: the nested operations, outermost first; ``{dnn}`` is the convolution library.
        role: the kernels of the innermost one.
        traffic: bytes moved, in multiples of the output's.
        node: its autograd function; none when it is not differentiated.
        backward_chain: the operations inside that function.
        backward_role: their kernels; none when the gradient only passes through.
        backward_traffic: as `traffic`.
        frame: the Python built-in that calls it.
    """

    chain: tuple[str, ...]
    role: str
    traffic: float
    node: str = ""
    backward_chain: tuple[str, ...] = ()
    backward_role: str = ""
    backward_traffic: float = 0.0
    frame: str = ""


SIMPLE = {
    "add": Simple(("aten::add",), "add", 3, "AddBackward0"),
    "mul": Simple(("aten::mul",), "mul", 3, "MulBackward0", ("aten::mul",), "mul", 6),
    "silu": Simple(
        ("aten::silu",),
        "silu",
        2,
        "SiluBackward0",
        ("aten::silu_backward",),
        "silu_backward",
        3,
        "<built-in function silu>",
    ),
    "dropout": Simple(
        ("aten::dropout", "aten::native_dropout"),
        "dropout",
        2.5,
        "NativeDropoutBackward0",
        ("aten::native_dropout_backward",),
        "dropout_backward",
        2.5,
        "<built-in function dropout>",
    ),
    "layer_norm": Simple(
        ("aten::layer_norm", "aten::native_layer_norm"),
        "layer_norm",
        2,
        "NativeLayerNormBackward0",
        ("aten::native_layer_norm_backward",),
        "layer_norm_backward",
        5,
        "<built-in method layer_norm of type object at 0x7f3b2c8e1a20>",
    ),
    "rope": Simple(("LigerRopeFunction",), "rope", 2, "LigerRopeFunctionBackward", (), "rope", 2),
    "softmax": Simple(
        ("aten::softmax", "aten::_softmax"),
        "softmax",
        2,
        "SoftmaxBackward0",
        ("aten::_softmax_backward_data",),
        "softmax_backward",
        3,
    ),
    "batch_norm": Simple(
        ("aten::batch_norm", "aten::_batch_norm_impl_index", "aten::{dnn}_batch_norm"),
        "batch_norm",
        3,
        "{Dnn}BatchNormBackward0",
        ("aten::{dnn}_batch_norm_backward",),
        "batch_norm_backward",
        5,
        "<built-in method batch_norm of type object at 0x7f3b2c8e1a20>",
    ),
    "max_pool": Simple(
        ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
        "max_pool",
        9,
        "MaxPool2DWithIndicesBackward0",
        ("aten::max_pool2d_with_indices_backward",),
        "max_pool_backward",
        9,
        "<built-in function max_pool2d>",
    ),
    "scan": Simple(
        ("SelectiveScanFn",), "scan", 9, "SelectiveScanFnBackward", (), "scan_backward", 22
    ),
    "fft": Simple(
        ("aten::fft_fft", "aten::_fft_c2c"),
        "fft",
        2,
        "FftC2CBackward0",
        ("aten::_fft_c2c",),
        "inverse_fft",
        2,
        "<built-in function fft_fft>",
    ),
    "inverse_fft": Simple(
        ("aten::fft_ifft", "aten::_fft_c2c"),
        "inverse_fft",
        2,
        "FftC2CBackward0",
        ("aten::_fft_c2c",),
        "fft",
        2,
        "<built-in function fft_ifft>",
    ),
    "cast": Simple(
        ("aten::to", "aten::_to_copy", "aten::copy_"),
        "cast",
        3,
        "ToCopyBackward0",
        ("aten::to", "aten::_to_copy", "aten::copy_"),
        "cast",
        3,
    ),
    "contiguous": Simple(
        ("aten::contiguous", "aten::clone", "aten::copy_"),
        "copy",
        2,
        "CloneBackward0",
    ),
    "cat": Simple(("aten::cat",), "cat", 2, "CatBackward0"),
    "fill": Simple(("aten::zeros_like", "aten::zero_", "aten::fill_"), "fill", 1),
    "uniform": Simple(("aten::rand_like", "aten::uniform_"), "uniform", 1),
    "quantize": Simple(("sgl_kernel::sgl_per_token_group_quant_fp8",), "quantize", 3),
    "sum": Simple(("aten::sum",), "sum", 1, frame="<built-in method sum of Tensor object>"),
    "topk": Simple(("aten::topk",), "topk", 2.5),
    "token_weights": Simple(("acme_rl::token_weights",), "token_weights", 3),
}
