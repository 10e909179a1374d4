"""Where the CPU spent its time, for traces without GPU work."""
