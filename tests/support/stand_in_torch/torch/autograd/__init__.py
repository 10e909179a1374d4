"""Profiling."""

from torch.autograd import profiler

__all__ = ["profiler"]
