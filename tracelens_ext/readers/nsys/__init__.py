"""Readers of what Nsight Systems writes: SQLite exports, reports, CSV tables."""
