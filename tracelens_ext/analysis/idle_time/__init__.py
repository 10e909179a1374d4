"""Idle time: where the gaps are, and why."""
