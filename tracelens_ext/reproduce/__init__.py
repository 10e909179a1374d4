"""Scripts that run operations of a trace alone: what was recorded, and PyTorch's schemas."""
