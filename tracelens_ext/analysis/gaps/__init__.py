"""Gaps: when the GPU was idle, and why."""
