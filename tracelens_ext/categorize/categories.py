"""The category names users see; stable, and plugins may add more."""

from __future__ import annotations

from typing import Final

UNCATEGORIZED: Final = "Uncategorized"
"""What no rule knows."""

OTHER_OP: Final = "other"
"""The category of a CPU operation that no rule knows."""

CATEGORIES: Final[tuple[str, ...]] = (
    "GEMM",
    "Flash Attention Forward",
    "Flash Attention Backward",
    "Convolution",
    "Communication",
    "Memory Ops",
    "Normalization",
    "Softmax",
    "Elementwise",
    "Reduction",
    "Embedding & Gather/Scatter",
    "Sort & TopK",
    "MoE Routing",
    "Quantization",
    "Optimizer",
    "RNG & Dropout",
    "Positional Encoding",
    "Pooling & Resampling",
    "Loss",
    "Recurrent & State Space",
    "FFT",
    "Sampling & Decoding",
    "Fused Elementwise (compiler-generated)",
    "Other",
    UNCATEGORIZED,
)
"""Every built-in category in the order reports list them; the last is what no rule knows."""
