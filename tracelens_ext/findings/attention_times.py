"""Constants for the time that attention takes in a fused kernel."""

from __future__ import annotations

from typing import Final

#: The share of the peak matrix rate that fused kernels reach: FlashAttention-2 35 to 40 % on H100
#: and MI300, 50 to 70 % on A100; FlashAttention-3 up to 75 % on H100.
FUSED_SHARE: Final = 0.4


#: The time that a fused kernel takes besides computing and moving data.
FIXED_NS: Final = 5_000
