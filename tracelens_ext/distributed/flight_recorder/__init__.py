"""Dumps of PyTorch's flight recorder: which collective call hangs, and which rank is to blame."""
