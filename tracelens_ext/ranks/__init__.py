"""The ranks of a job together: which kernels are one call, who waited, what for, and whose fault."""
