"""Memory: what was alive at the peak, and who allocated it, of PyTorch's `[memory]` events."""
