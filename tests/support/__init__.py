"""Helpers of several tests: makers of traces, strategies, drivers of other programs."""
