"""From a program to its trace: a hook that records any Python program, and other profilers.

`hook/` is what runs within the program; it is copied into the output folder and imports nothing
of this package. The rest runs the program, and finds out what became of it.
"""
