"""Roofline: how good each operation is, against what its GPU could do in the best case."""
