"""Keeps parsed traces in a folder of the user, so that they need not be parsed again."""
