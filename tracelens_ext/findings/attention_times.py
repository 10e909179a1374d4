"""How long attention takes in a fused kernel."""

from __future__ import annotations

from typing import Final

#: What fused kernels reach of the peak matrix rate: FlashAttention-2 35 to 40 % on H100 and
#: MI300, 50 to 70 % on A100; FlashAttention-3 up to 75 % on H100.
FUSED_SHARE: Final = 0.4


#: A fused kernel takes at least this long, or this besides what it computes and moves.
FIXED_NS: Final = 5_000
