"""Serving engines: steps, phases and layers."""
