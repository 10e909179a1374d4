"""Where the CPU's time went: what a trace without GPU work can tell."""
