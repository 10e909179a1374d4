"""Kernels: by operation, category, name and source."""
