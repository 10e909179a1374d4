"""The analyses of a trace: one module or package for each question about it."""
