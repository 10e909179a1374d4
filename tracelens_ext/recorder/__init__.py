"""Records a program: with a hook that works in any Python program, or with another profiler.

The modules in `hook/` run within the program. They are copied into the output folder and import
nothing of this package. The other modules run the program, and find out what was recorded.
"""
