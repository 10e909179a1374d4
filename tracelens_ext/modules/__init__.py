"""GPU time by `nn.Module`."""
