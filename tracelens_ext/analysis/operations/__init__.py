"""CPU operations: their GPU time, arguments and call tree."""
