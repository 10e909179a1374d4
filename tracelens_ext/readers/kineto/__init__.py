"""Reader of the JSON that PyTorch's profiler (libkineto) writes."""
