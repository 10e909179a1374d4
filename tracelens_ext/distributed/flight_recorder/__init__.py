"""Analysis of PyTorch's flight recorder dumps: which call hangs, and which rank is to blame."""
