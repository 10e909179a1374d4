"""Traces for other programs: Perfetto and SQLite."""
