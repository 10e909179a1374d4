"""The ranks of a job together: which kernels are one call, who waited, and what for."""
