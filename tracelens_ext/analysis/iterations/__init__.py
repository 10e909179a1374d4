"""Iterations of a program: which work is of which, and their times."""
