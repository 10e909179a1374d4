"""CUDA graphs: their launches, and what a capture tells of them."""
