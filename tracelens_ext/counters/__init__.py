"""Levels over time: how much work waits for each stream, how fast copies are."""
