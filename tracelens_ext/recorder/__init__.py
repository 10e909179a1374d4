"""Recording of programs, with a hook that uses PyTorch's profiler, or with other profilers.

The modules in `hook/` run within the recorded program. They are copied into the output folder and
import nothing of this package. The other modules run the program, and report on the result.
"""
