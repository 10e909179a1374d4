"""Serving engines: their steps, phases and layers."""
