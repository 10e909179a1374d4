"""Perfetto's own format, as PyTorch's CUPTI monitor, rocprofv3 and others write it."""
