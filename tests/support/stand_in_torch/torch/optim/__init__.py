"""Optimizers."""

from torch.optim.optimizer import SGD, Optimizer

__all__ = ["SGD", "Optimizer"]
