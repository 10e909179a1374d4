"""Nsight Systems: its reports, their SQLite exports, and its tables of GPU events."""
