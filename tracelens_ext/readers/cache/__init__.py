"""The cache of parsed traces."""
