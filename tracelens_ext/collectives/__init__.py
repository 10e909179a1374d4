"""Communication: collectives by group and size."""
