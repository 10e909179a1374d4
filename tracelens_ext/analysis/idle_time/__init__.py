"""Idle time of the GPU: its gaps, their causes and shapes, and the CPU activity during them."""
