"""What is inside CUDA graphs: the capture of a graph tells what each of its kernels is for."""
