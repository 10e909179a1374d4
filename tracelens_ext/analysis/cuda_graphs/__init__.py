"""CUDA graphs: their launches, and the captured operations that each launch replays."""
